// Types and functions that the kernels of eigenvalues and singular values share: limits of number types, groups of lanes, teams of
// threads.
#pragma once
#include "batch.cuh"

template <typename T>
struct Numbers;

template <>
struct Numbers<double> {
  static constexpr double eps = 2.220446049250313e-16;
  static constexpr double smallest = 2.2250738585072014e-308;  // normal
  static constexpr double largest = 1.7976931348623157e308;
};

template <>
struct Numbers<float> {
  static constexpr float eps = 1.1920928955078125e-07f;
  static constexpr float smallest = 1.1754943508222875e-38f;
  static constexpr float largest = 3.4028234663852886e38f;
};

// The sign of a vector is decided by its first entry whose size is at least this part of the largest one: it becomes positive.
constexpr double kSameSize = 1.0 - 1e-6;

template <typename T>
__device__ T absolute(T x) {
  return x < T(0) ? -x : x;
}

// Returns 1 / sqrt(x) for a normal positive x. The device's float instruction has an error of two units in the last place. One
// Newton step makes it one unit, which keeps long products of rotations orthogonal.
__device__ inline double inverse_root(double x) { return rsqrt(x); }
__device__ inline float inverse_root(float x) {
  const float y = rsqrtf(x);
  return fma(y * 0.5f, fma(-x * y, y, 1.0f), y);
}

// Returns the bits of a ballot that belong to this lane's group of `width` neighbouring lanes.
__device__ inline unsigned select_group(unsigned ballot, int lane, int width) {
  return width == 32 ? ballot : ballot >> (lane / width * width) & ((1u << width) - 1u);
}

// Returns, to all lanes of a warp, whether the leading entry of `length` contiguous numbers is negative.
template <typename T>
__device__ bool has_negative_lead(const T* entries, Index length, int lane) {
  T most = 0;
  for (Index c = lane; c < length; c += 32) most = absolute(entries[c]) > most ? absolute(entries[c]) : most;
  most = max_lanes(most) * T(kSameSize);
  Index decisive = length;
  bool negative = false;
  for (Index c = lane; c < length && decisive == length; c += 32)
    if (absolute(entries[c]) >= most) {
      decisive = c;
      negative = entries[c] < T(0);
    }
  Index first = decisive;
  for (int distance = 16; distance > 0; distance /= 2) {
    const Index found = __shfl_xor_sync(kAllLanes, first, distance);
    first = found < first ? found : first;
  }
  return __any_sync(kAllLanes, negative && decisive == first) != 0;
}

// The threads that compute one matrix: part of a warp, or a block.
template <int threads>
struct Team {
  static constexpr bool block = threads > 32;
  int rank;  // of this thread

  __device__ void wait() const {
    if constexpr (block) __syncthreads();
    else __syncwarp();
  }
  // Whether `mine` is true in some thread of the team.
  __device__ bool any(bool mine) const {
    if constexpr (block) {
      return __syncthreads_or(mine) != 0;
    } else {
      return select_group(__ballot_sync(kAllLanes, mine), static_cast<int>(threadIdx.x % 32), threads) != 0;
    }
  }
  // Whether `mine` is true in some thread that must take the same branch: of the team, or of other teams in the same warp.
  __device__ bool any_around(bool mine) const {
    if constexpr (block) return __syncthreads_or(mine) != 0;
    else return __any_sync(kAllLanes, mine) != 0;
  }
};
