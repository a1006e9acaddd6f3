// Products of small matrices in shared memory by a team of threads, and what replaces 1 / gap in spectral gradients.
#pragma once
#include "spectral.cuh"

// A row-major matrix in shared memory with `stride` numbers per row.
template <typename T>
struct Tile {
  T* data;
  int stride;

  __device__ T& operator()(int i, int k) const { return data[i * stride + k]; }
};

// The threads of a team as a grid of down x across. A thread computes the entries (y + r down, x + c across) of a result of at
// most side x side. Neighbouring threads have neighbouring columns, so rows are read without bank conflicts, and so are columns
// if the stride is odd.
template <int side, int down, int across>
struct Grid {
  static constexpr int threads = down * across, tall = side / down, wide = side / across;
  int y, x;

  __device__ explicit Grid(int rank) : y(rank / across), x(rank % across) {}

  // sum := sum_k A(i, k) B(k, j) for this thread's entries (i, j) of a rows x columns result. turn_a, turn_b: A or B is read
  // transposed.
  template <bool turn_a, bool turn_b, typename T>
  __device__ void multiply(const Tile<T>& A, const Tile<T>& B, int rows, int columns, int inner, T (&sum)[tall][wide]) const {
    int i[tall], j[wide];
#pragma unroll
    for (int r = 0; r < tall; ++r) i[r] = y + r * down < rows ? y + r * down : rows - 1;
#pragma unroll
    for (int c = 0; c < wide; ++c) j[c] = x + c * across < columns ? x + c * across : columns - 1;
#pragma unroll
    for (int r = 0; r < tall; ++r)
#pragma unroll
      for (int c = 0; c < wide; ++c) sum[r][c] = 0;
    for (int k = 0; k < inner; ++k) {
      T a[tall], b[wide];
#pragma unroll
      for (int r = 0; r < tall; ++r) a[r] = turn_a ? A(k, i[r]) : A(i[r], k);
#pragma unroll
      for (int c = 0; c < wide; ++c) b[c] = turn_b ? B(j[c], k) : B(k, j[c]);
#pragma unroll
      for (int r = 0; r < tall; ++r)
#pragma unroll
        for (int c = 0; c < wide; ++c) sum[r][c] += a[r] * b[c];
    }
  }

  // Calls f(i, j, value) for this thread's entries (i, j).
  template <typename T, typename F>
  __device__ void each(const T (&value)[tall][wide], int rows, int columns, F f) const {
#pragma unroll
    for (int r = 0; r < tall; ++r)
#pragma unroll
      for (int c = 0; c < wide; ++c)
        if (y + r * down < rows && x + c * across < columns) f(y + r * down, x + c * across, value[r][c]);
  }
};

// Returns the largest of the team's values, which are not negative. `memory` is a workspace with one number per warp.
template <typename T, int threads>
__device__ T max_team(T value, T* memory, const Team<threads>& team) {
  value = max_lanes(value, threads < 32 ? threads : 32);
  if constexpr (threads > 32) {
    if (team.rank % 32 == 0) memory[team.rank / 32] = value;
    team.wait();
    for (int warp = 0; warp < threads / 32; ++warp) value = memory[warp] > value ? memory[warp] : value;
    team.wait();
  }
  return value;
}

// The policies of csrc/base/gaps.h for small gaps, with the same numbers.
constexpr int kMask = 0, kLorentz = 1, kClamp = 2, kNan = 3;

// What replaces 1 / gap for gap >= 0.
template <typename T>
struct Gaps {
  int policy;
  T scale, threshold;

  // The threshold is tol times the largest value, or tol if that is 0, and never so small that its reciprocal overflows.
  __device__ Gaps(int rule, T largest, T tol) : policy(rule), scale(largest) {
    threshold = tol * (scale == T(0) ? T(1) : scale);
    threshold = threshold < Numbers<T>::smallest ? Numbers<T>::smallest : threshold;
    scale = scale < threshold ? threshold : scale;
  }

  __device__ bool is_tied(T gap) const { return !(gap > threshold); }

  __device__ T invert(T gap) const {
    if (policy == kMask) return gap > threshold ? T(1) / gap : T(0);
    if (policy == kClamp) return T(1) / (gap > threshold ? gap : threshold);
    if (policy == kNan) return T(1) / gap;
    const T relative = gap / scale, least = threshold / scale;
    return relative / (relative * relative + least * least) / scale;
  }
};

// The rounding error of an entry of sk(gU U') is at most the sum over its two rows of gU, of `length` numbers, of this number times
// the largest entry of the row. csrc/base/gaps.h has the derivation.
template <typename T>
__device__ T rounding_units(double length) {
  return T(8.0 * (1.0 + sqrt(length))) * Numbers<T>::eps;
}

// Entries that are only rounding are discarded at gaps below this, relative to the largest value: eps^(1/4).
template <typename T>
__device__ T close_gap();
template <>
__device__ inline double close_gap<double>() {
  return 0x1p-13;
}
template <>
__device__ inline float close_gap<float>() {
  return 0.018581361171917516f;
}

// Whether an entry `turn` is only rounding: smaller than `noise`, its error bound, at a gap below `close`. If the cotangents of the
// two values differ, by `step`, the entry is kept unless gap * step is below the noise as well.
template <typename T>
__device__ bool is_only_rounding(T turn, T noise, T gap, T close, T step) {
  return gap < close && absolute(turn) < noise && absolute(gap * step) < noise;
}

// Differences that must be zero for a derivative to exist count as zero up to sqrt(eps) times the largest entry.
template <typename T>
__device__ T unevenness_threshold();
template <>
__device__ inline double unevenness_threshold<double>() {
  return 0x1p-26;
}
template <>
__device__ inline float unevenness_threshold<float>() {
  return 3.452669770922512e-4f;
}
