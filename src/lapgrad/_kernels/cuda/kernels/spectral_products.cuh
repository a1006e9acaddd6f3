// Products of small matrices in shared memory, by a team of threads, and what their gradients divide by.
#pragma once
#include "spectral.cuh"

// An array of `stride` numbers per row, in shared memory.
template <typename T>
struct Tile {
  T* data;
  int stride;

  __device__ T& operator()(int i, int k) const { return data[i * stride + k]; }
};

// Threads as a grid of down x across; a thread has the entries (y + r down, x + c across) of a result of at most
// side x side. Neighbouring threads have neighbouring columns: rows are read without conflicts, and columns too where the
// stride is odd.
template <int side, int down, int across>
struct Grid {
  static constexpr int threads = down * across, tall = side / down, wide = side / across;
  int y, x;

  __device__ explicit Grid(int rank) : y(rank / across), x(rank % across) {}

  // sum := sum_k A(i, k) B(k, j) for its entries (i, j) of a result of rows x columns; `turn_` reads a transpose.
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

  // Calls f(i, j, value) for its entries (i, j).
  template <typename T, typename F>
  __device__ void each(const T (&value)[tall][wide], int rows, int columns, F f) const {
#pragma unroll
    for (int r = 0; r < tall; ++r)
#pragma unroll
      for (int c = 0; c < wide; ++c)
        if (y + r * down < rows && x + c * across < columns) f(y + r * down, x + c * across, value[r][c]);
  }
};

// The largest of the values of a team, which are not negative. `memory` has room for one number per warp.
template <typename T, int threads>
__device__ T largest_of_team(T value, T* memory, const Team<threads>& team) {
  value = max_of_lanes(value, threads < 32 ? threads : 32);
  if constexpr (threads > 32) {
    if (team.rank % 32 == 0) memory[team.rank / 32] = value;
    team.wait();
    for (int warp = 0; warp < threads / 32; ++warp) value = memory[warp] > value ? memory[warp] : value;
    team.wait();
  }
  return value;
}

// What stands for 1 / gap, gap >= 0, where it closes; the policies as csrc/base/gaps.h counts them.
constexpr int kMask = 0, kLorentz = 1, kClamp = 2, kNan = 3;

template <typename T>
struct Gaps {
  int policy;
  T scale, threshold;

  // For the largest value; where that is 0 the scale is taken as 1. The threshold's reciprocal does not overflow.
  __device__ Gaps(int rule, T largest, T tol) : policy(rule), scale(largest) {
    threshold = tol * (scale == T(0) ? T(1) : scale);
    threshold = threshold < Numbers<T>::smallest ? Numbers<T>::smallest : threshold;
    scale = scale < threshold ? threshold : scale;
  }

  __device__ bool tied(T gap) const { return !(gap > threshold); }

  __device__ T inverse(T gap) const {
    if (policy == kMask) return gap > threshold ? T(1) / gap : T(0);
    if (policy == kClamp) return T(1) / (gap > threshold ? gap : threshold);
    if (policy == kNan) return T(1) / gap;
    const T relative = gap / scale, least = threshold / scale;
    return relative / (relative * relative + least * least) / scale;
  }
};

// Entries of sk(gU U') that are only rounding are not divided by small gaps (policy mask), as csrc/base/gaps.h says. How far one may
// be off: for each of its two rows of gU, of `length` numbers, this many times the largest entry of the row.
template <typename T>
__device__ T rounding_units(double length) {
  return T(8.0 * (1.0 + sqrt(length))) * Numbers<T>::eps;
}

// The gaps below which that is done, relative to the largest value: eps^(1/4).
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

// Whether `turn` is only rounding: below `noise`, the sum over its rows, where the gap is below `close`. Slopes that differ by
// `step` let a quotient as large as that be expected, unless the difference drowns in rounding as well.
template <typename T>
__device__ bool only_rounding(T turn, T noise, T gap, T close, T step) {
  return gap < close && absolute(turn) < noise && absolute(gap * step) < noise;
}

// A loss is even on equal values up to the root of eps, relative to the largest entry.
template <typename T>
__device__ T uneven_from();
template <>
__device__ inline double uneven_from<double>() {
  return 0x1p-26;
}
template <>
__device__ inline float uneven_from<float>() {
  return 3.452669770922512e-4f;
}
