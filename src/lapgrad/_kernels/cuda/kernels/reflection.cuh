// The Householder reflection of a row with entries of any size.
//
// Step k reflects the rest of row k, (alpha, x), to (beta, 0):
//     beta = -sign(alpha) |(alpha, x)|,  v = (1, x / (alpha - beta)),  tau = (beta - alpha) / beta,  H_k = I - tau v v^T
// and applies H_k to the rows below. If x is zero, H_k is the identity, as in LAPACK.
#pragma once
#include "batch.cuh"

// Whether the sum of squares needs no scaling: it is accurate whatever its terms are, and so are products with rows that are
// many decades smaller or larger.
template <typename T>
__device__ bool is_ordinary(T alpha, T square) {
  if constexpr (sizeof(T) == 8) return square >= 1e-40 && square + alpha * alpha <= 1e40;
  return square >= T(1e-6) && square + alpha * alpha <= T(1e6);
}

// Returns a power of two that scales `largest` to about 1, for squares that would over- or underflow; 1 for zeros. Not inlined,
// because it is rarely called and callers are unrolled for each column. It multiplies step by step, because library functions
// for exponents differ on subnormal numbers.
template <typename T>
__device__ __noinline__ T find_unit(T largest) {
  constexpr int kMost = sizeof(T) == 8 ? 255 : 31;  // powers of 16 that are normal numbers
  T unit = 1;
  if (!(largest > T(0))) return unit;
#pragma unroll 1
  for (int step = 0; step < kMost && largest * unit < T(0x1p-2); ++step) unit *= T(0x1p4);
#pragma unroll 1
  for (int step = 0; step < kMost && largest * unit > T(0x1p2); ++step) unit *= T(0x1p-4);
  return unit;
}

// A reflection with v = (1, x * scale).
template <typename T>
struct Reflection {
  T beta, tau, scale;
};

// Returns the reflection for `square` = |x|^2; `nothing`: x is zero. It takes one division: 1 / (beta (alpha - beta)).
template <typename T>
__device__ Reflection<T> make_reflection(T alpha, T square, bool nothing) {
  const T beta = -copysign(sqrt(alpha * alpha + square), alpha), difference = alpha - beta;
  const T quotient = T(1) / (beta * difference);
  if (nothing) return {alpha, T(0), T(0)};
  return {beta, -difference * difference * quotient, beta * quotient};
}

template <typename T>
__device__ T larger(T a, T b) {
  return a > b ? a : b;
}
