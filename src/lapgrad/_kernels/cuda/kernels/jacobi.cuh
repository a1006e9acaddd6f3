// Functions that the kernels of one-sided Jacobi share: scaling, the rotation of a pair of rows, and vectors for singular values
// that are zero.
#pragma once
#include "spectral.cuh"

constexpr int kMostSweeps = 40;  // 6 to 10 are usual

// Numbers of the scaling. The largest entry is scaled to 2^top, so that sums of fourth powers do not overflow. Rows whose square is
// below `least` count as zero. Squares below `low` (`lower`) are multiplied by `lift` (`lift_more`) before they are squared again.
template <typename T>
struct Range;

template <>
struct Range<double> {
  static constexpr int top = 245, limit = 1000;
  static constexpr double least = 0x1p-960;
  static constexpr double low = 0x1p-150, lift = 0x1p350, lower = 0x1p-500, lift_more = 0x1p750;
};

template <>
struct Range<float> {
  static constexpr int top = 25, limit = 120;
  static constexpr float least = 0x1p-100f;
  static constexpr float low = 0x1p-10f, lift = 0x1p40f, lower = 0x1p-60f, lift_more = 0x1p90f;
};

__device__ inline bool is_oblique(double xx, double yy, double xy, double allowed, double lift) {
  xy *= lift;
  return xy * xy > allowed * allowed * (xx * lift) * (yy * lift);
}
__device__ inline bool is_oblique(float xx, float yy, float xy, float allowed, float) {
  // Double precision, so that products of four entries do not underflow.
  return double(xy) * xy > double(allowed) * allowed * (double(xx) * yy);
}

// Returns the smallest value of `per_pair` neighbouring lanes to each of them.
template <int per_pair>
__device__ int min_lanes(int value) {
#pragma unroll
  for (int distance = per_pair / 2; distance > 0; distance /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other < value ? other : value;
  }
  return value;
}

// The rotation that makes x and y orthogonal: cosine x + sine y and -sine x + cosine y, by at most 45 degrees, so that the longer row
// stays the longer one. tangent = sine / cosine. It is the identity for rows that are orthogonal already, or zero.
template <typename T>
struct Rotation {
  T cosine, sine, tangent;
  bool oblique, first_is_longer;
};

// Returns the rotation from xx = |x|^2, yy = |y|^2 and xy = x.y. With d = xx - yy, o = 2 xy, h = sqrt(d^2 + o^2) the angle has
// cos^2 = (1 + |d| / h) / 2 and sin = o / (2 h cos), with the sign of d.
template <typename T>
__device__ Rotation<T> find_rotation(T xx, T yy, T xy, bool takes_part, T allowed) {
  const T size = xx + yy;
  const T lift = size < Range<T>::lower ? Range<T>::lift_more : size < Range<T>::low ? Range<T>::lift : T(1);
  const bool zero = !(xx >= Range<T>::least && yy >= Range<T>::least);
  const bool oblique = takes_part && !zero && is_oblique(xx, yy, xy, allowed, lift);
  const T d = (xx - yy) * lift, o = T(2) * xy * lift;
  const T inverse_h = inverse_root(oblique ? d * d + o * o : T(1));
  const T cosine_squared = T(0.5) + T(0.5) * absolute(d) * inverse_h;
  const T inverse = inverse_root(oblique ? cosine_squared : T(1));
  T cosine = oblique ? cosine_squared * inverse : T(1);
  T sine = oblique ? T(0.5) * o * inverse_h * inverse : T(0);
  sine = d < T(0) ? -sine : sine;
  const T tangent = sine * inverse;
  // Corrects cosine^2 + sine^2 to 1: the errors of a thousand rotations of a row would add up.
  const T missing = T(0.5) * fma(-sine, sine, fma(-cosine, cosine, T(1)));
  cosine = fma(cosine, missing, cosine);
  sine = fma(sine, missing, sine);
  return {cosine, sine, tangent, oblique, d >= T(0)};
}

// Fills rows [filled, k) of V, in global memory, so that all rows are orthonormal. Each starts as the unit vector that is farthest
// from the span of the rows before, and is orthogonalised three times. `along` is a workspace of max(k, n) numbers. With `fix_sign`
// the leading entry is made positive.
template <typename T, typename Crew>
__device__ void complete_rows(T* V, int filled, int k, int n, bool fix_sign, T* along, const Crew& team, int threads) {
  for (int i = 0; i < k; ++i) {
    const bool open = i >= filled;
    if (!team.any_around(open)) continue;
    // A team without a row to fill takes part in barriers only: its rows may belong to another team, which writes them.
    const int length = open ? n : 0, before = open ? i : 0;
    T* const row = V + static_cast<Index>(i) * n;
    for (int c = team.rank; c < length; c += threads) {
      T inside = 0;
      for (int j = 0; j < before; ++j) inside += V[static_cast<Index>(j) * n + c] * V[static_cast<Index>(j) * n + c];
      along[c] = inside;
    }
    team.wait();
    int best = 0;
    for (int c = 1; c < length; ++c) best = along[c] < along[best] ? c : best;
    for (int c = team.rank; c < length; c += threads) row[c] = T(c == best);
    team.wait();
    for (int pass = 0; pass < 3; ++pass) {
      for (int j = team.rank; j < before; j += threads) {
        T sum = 0;
        for (int c = 0; c < length; ++c) sum += V[static_cast<Index>(j) * n + c] * row[c];
        along[j] = sum;
      }
      team.wait();
      for (int c = team.rank; c < length; c += threads) {
        T rest = row[c];
        for (int j = 0; j < before; ++j) rest -= along[j] * V[static_cast<Index>(j) * n + c];
        row[c] = rest;
      }
      team.wait();
      T square = 0, most = 0, decisive = 0;
      for (int c = 0; c < length; ++c) {
        square += row[c] * row[c];
        most = absolute(row[c]) > most ? absolute(row[c]) : most;
      }
      for (int c = length - 1; c >= 0; --c) decisive = absolute(row[c]) >= most * T(kSameSize) ? row[c] : decisive;
      const T inverse = (fix_sign && decisive < T(0) ? T(-1) : T(1)) / sqrt(square);
      team.wait();
      for (int c = team.rank; c < length; c += threads) row[c] *= inverse;
      team.wait();
    }
  }
}
