// Kernels with faults that the watch over memory must find, each also in a correct version.
#include "block.cuh"

constexpr int kReadAcrossWarp = 0, kReadAcrossBlock = 1, kWriteOfWhatOthersRead = 2, kVoteForABarrier = 3;
constexpr int kTwoWriters = 4, kPadding = 5, kPastTheEnd = 6;

// Threads of a block exchange numbers: target[i] := source[i ^ mask], within a warp (mask < 32) or beyond; correct if `right`.
template <typename T, int kind, bool right>
__global__ void exchange(T* target, const T* source, Index mask) {
  T* const shared = shared_memory<T>();
  const int i = threadIdx.x, threads = blockDim.x, other = i ^ static_cast<int>(mask);
  if (kind != kPadding || right || i != 0) shared[i] = source[i];
  if (kind == kTwoWriters && !right) shared[other] = source[other];
  if (kind == kPastTheEnd && !right && i == 0) shared[threads] = 0;
  if (right || kind == kReadAcrossBlock) __syncwarp();
  if (kind != kReadAcrossWarp && (right || kind != kReadAcrossBlock)) __syncthreads();
  T value = shared[other];
  if (kind == kWriteOfWhatOthersRead || kind == kVoteForABarrier) {
    if (kind == kVoteForABarrier && !__any_sync(kAllLanes, value == value)) return;
    if (right) __syncthreads();
    shared[i] = T(0);
  }
  target[i] = value;
}
