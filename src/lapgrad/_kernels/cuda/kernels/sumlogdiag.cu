// Sums of the logarithms of diagonals, and their gradient.
#include "block.cuh"

constexpr int kLogThreads = 256;

// s[item] := the sum of log |a_ii|, where `diagonal` is the distance of diagonal elements. A group of `lanes` threads (a power of two,
// at most 32) has an item; 256 threads, any grid that covers the items.
template <typename T>
__global__ void sum_logs(T* __restrict__ s, const T* __restrict__ data, Index item, Index diagonal, Index n, Index items,
                         Index lanes) {
  const unsigned width = static_cast<unsigned>(lanes), lane = threadIdx.x % width;
  const Index number = static_cast<Index>(blockIdx.x) * (kLogThreads / width) + threadIdx.x / width;
  T sum = 0;
  if (number < items)
    for (Index i = lane; i < n; i += width) sum += log(fabs(data[number * item + i * diagonal]));
  sum = sum_lanes(sum, static_cast<int>(width));
  if (number < items && lane == 0) s[number] = sum;
}

// The same with a block of 256 threads for an item, for long diagonals; grid = (items).
// Shared memory: a number per warp.
template <typename T>
__global__ void sum_many_logs(T* __restrict__ s, const T* __restrict__ data, Index item, Index diagonal, Index n) {
  T* const parts = shared_memory<T>();
  const T* const A = data + blockIdx.x * item;
  T sum = 0;
#pragma unroll 4
  for (Index i = threadIdx.x; i < n; i += kLogThreads) sum += log(fabs(A[i * diagonal]));
  sum = sum_lanes(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int warps = kLogThreads / 32;
  sum = sum_lanes(static_cast<int>(threadIdx.x) < warps ? parts[threadIdx.x] : T(0));
  if (threadIdx.x == 0) s[blockIdx.x] = sum;
}

// gA := diag(gs / a_ii), contiguous. A group of `lanes` threads (a power of two) writes a row; a block writes `passes` times as many
// rows as it has groups. 256 threads, any grid that covers the rows of all items.
template <typename T>
__global__ void pull_back_logs(T* __restrict__ gradient, const T* __restrict__ gs, Index gs_item, const T* __restrict__ data, Index item,
                               Index diagonal, Index n, Index items, Index lanes, Index passes) {
  const unsigned width = static_cast<unsigned>(lanes), lane = threadIdx.x % width, groups = kLogThreads / width;
  Index number = static_cast<Index>(blockIdx.x) * passes * groups + threadIdx.x / width;
  for (Index pass = 0; pass < passes; ++pass, number += groups) {
    const Index b = number / n, i = number - b * n;
    if (b >= items) return;
    const T value = gs[b * gs_item] / data[b * item + i * diagonal];
    T* const row = gradient + number * n;
#pragma unroll 4
    for (Index j = lane; j < n; j += width) row[j] = j == i ? value : T(0);
  }
}
