// What the kernels of eigenvalues and singular values share: numbers of a type, groups of lanes, teams of threads.
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

// Entries of a vector within this of the largest decide its sign: the first of them becomes positive.
constexpr double kSameSize = 1.0 - 1e-6;

template <typename T>
__device__ T absolute(T x) {
  return x < T(0) ? -x : x;
}

// 1 / sqrt(x) for a normal positive x. The device's float instruction is good to two units in the last place; a step of
// Newton's iteration makes it one, which keeps long products of rotations orthogonal.
__device__ inline double inverse_root(double x) { return rsqrt(x); }
__device__ inline float inverse_root(float x) {
  const float y = rsqrtf(x);
  return fma(y * 0.5f, fma(-x * y, y, 1.0f), y);
}

// The bits of the lanes of one group, of `width` neighbouring lanes.
__device__ inline unsigned lanes_of_group(unsigned ballot, int lane, int width) {
  return width == 32 ? ballot : ballot >> (lane / width * width) & ((1u << width) - 1u);
}

// The threads that share one matrix: part of a warp, or a block.
template <int threads>
struct Team {
  static constexpr bool block = threads > 32;
  int rank;  // of this thread

  __device__ void wait() const {
    if constexpr (block) __syncthreads();
    else __syncwarp();
  }
  // Whether some thread of the team says so.
  __device__ bool any(bool mine) const {
    if constexpr (block) {
      return __syncthreads_or(mine) != 0;
    } else {
      return lanes_of_group(__ballot_sync(kAllLanes, mine), static_cast<int>(threadIdx.x % 32), threads) != 0;
    }
  }
  // Whether some thread says so that runs in step with this one: of the team, or of the other teams of its warp.
  __device__ bool any_around(bool mine) const {
    if constexpr (block) return __syncthreads_or(mine) != 0;
    else return __any_sync(kAllLanes, mine) != 0;
  }
};
