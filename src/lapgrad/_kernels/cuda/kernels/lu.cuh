// Functions that kernels for LU factorisations share: the choice of pivots, ranges of numbers, determinants and statuses.
//
// An item's status is 0, k if pivot k is exactly zero, or -k if row k of the matrix, or else of its factors, is the
// first that is not finite.
#pragma once

#include "batch.cuh"


// Orders the candidates for a pivot: larger numbers first, then smaller indices. The low kBits bits are the complement of `index`; the
// others are the leading bits of |value|, so that the pivot may be smaller than the largest candidate by a part of
// 2^(kBits - 20). That is as stable: multipliers are hardly larger than 1. NaN counts as larger than all numbers.
template <int kBits>
__device__ unsigned rank_pivot(double value, int index) {
  constexpr unsigned kMask = (1u << kBits) - 1;
  return (static_cast<unsigned>(__double_as_longlong(value) >> 32) & 0x7fffffffu & ~kMask) | (kMask - index);
}

template <int kBits>
__device__ unsigned rank_pivot(float value, int index) {
  constexpr unsigned kMask = (1u << kBits) - 1;
  return (static_cast<unsigned>(__float_as_int(value)) & 0x7fffffffu & ~kMask) | (kMask - index);
}

// Eliminates column c of a panel whose rows are in registers, `r` in the thread of `row`: exchanges rows k and `chosen` through shared
// memory, and subtracts the new row k from those below it. Returns the pivot. All threads of the block call it.
template <typename T, int K>
__device__ __forceinline__ T eliminate_column(T (&r)[K], int c, int k, int chosen, int row, int rows, T* chosen_row, T* other_row) {
  if (row == chosen) {
#pragma unroll
    for (int j = 0; j < K; ++j) chosen_row[j] = r[j];
  }
  if (row == k) {
#pragma unroll
    for (int j = 0; j < K; ++j) other_row[j] = r[j];
  }
  __syncthreads();
  if (row == k || row == chosen) {
#pragma unroll
    for (int j = 0; j < K; ++j) r[j] = row == k ? chosen_row[j] : other_row[j];
  }
  const T pivot = chosen_row[c];
  if (row > k && row < rows) {
    const T weight = pivot != T(0) ? r[c] / pivot : T(0);
    r[c] = weight;
#pragma unroll
    for (int j = 0; j < K; ++j)
      if (j > c) r[j] -= weight * chosen_row[j];
  }
  return pivot;
}

// Which statuses are failures, as a sum: rows that are not finite, zero pivots, results that are not finite.
constexpr int kNonFinite = 1, kZeroPivot = 2, kOverflow = 4;

__device__ inline bool is_reported(int status, int n, Index reported) {
  return status != 0 && (reported & (status < 0 ? kNonFinite : status <= n ? kZeroPivot : kOverflow));
}

// Exponent of the power of two by which a matrix or column with `largest` as its largest entry is multiplied: 0 unless products and
// sums with it could overflow or underflow.
template <typename T>
__device__ int choose_exponent(T largest) {
  constexpr double kMost = sizeof(T) == 8 ? 0x1.fffffffffffffp+991 : 0x1.fffffep+95;  // 2^-32 of the largest number
  return largest > T(kMost) ? -32 : largest < T(1) / T(kMost) ? 32 : 0;
}

// The product of the pivots of a triangle: mantissa 2^exponent, where 1/2 <= |mantissa| < 1, or 0 or not finite.
template <typename T>
struct Scaled {
  T mantissa;
  int exponent;

  __device__ __noinline__ void multiply(T value) {
    mantissa *= value;
    if (mantissa == T(0) || !isfinite(mantissa)) return;
    const int e = ilogb(mantissa) + 1;
    mantissa = ldexp(mantissa, -e);
    exponent += e;
  }
};

// value 2^exponent, in two steps so that neither power is out of range before the result is.
// Not inlined, because callers are unrolled for each column.
template <typename T>
__device__ __noinline__ T scale_by_power(T value, int exponent) {
  exponent = exponent < -4000 ? -4000 : exponent > 4000 ? 4000 : exponent;
  const int half = exponent / 2;
  return ldexp(ldexp(value, half), exponent - half);
}

// Where results that depend on the determinant go; null pointers: nowhere.
template <typename T>
struct Determinants {
  T *value, *sign, *logarithm;

  __device__ void store(Index item, const Scaled<T>& d, bool singular) const {
    if (value) value[item] = singular ? T(0) : scale_by_power(d.mantissa, d.exponent);
    if (sign) sign[item] = singular || d.mantissa == T(0) ? T(0) : d.mantissa < T(0) ? T(-1) : T(1);
    if (logarithm) {
      const T size = log(T(2) * fabs(d.mantissa)) + static_cast<T>(d.exponent - 1) * T(0.69314718055994530942);
      logarithm[item] = singular ? log(T(0)) : size;
    }
  }
};

// The product over the lanes of a group of N, to every lane of the group.
template <typename T, int N>
__device__ Scaled<T> multiply_lanes(Scaled<T> own) {
#pragma unroll
  for (int distance = N / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, own.mantissa, distance);
    own.exponent += __shfl_xor_sync(kAllLanes, own.exponent, distance);
    own.multiply(other);
  }
  return own;
}
