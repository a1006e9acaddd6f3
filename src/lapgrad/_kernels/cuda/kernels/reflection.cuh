// The Householder reflection of a row, whatever the size of its entries.
//
// Step k reflects what is left of row k, (alpha, x), to (beta, 0):
//     beta = -sign(alpha) |(alpha, x)|,  v = (1, x / (alpha - beta)),  tau = (beta - alpha) / beta,  H_k = I - tau v v^T
// and the rows below it likewise. Where x is zero, H_k is the identity, as in LAPACK.
#pragma once
#include "batch.cuh"

// Sums of squares between these are right to the last digits, whatever their terms; and so are products with rows that are
// smaller by many decades, or larger.
template <typename T>
__device__ bool is_ordinary(T alpha, T square) {
  if constexpr (sizeof(T) == 8) return square >= 1e-40 && square + alpha * alpha <= 1e40;
  return square >= T(1e-6) && square + alpha * alpha <= T(1e6);
}

// A power of two that brings `largest` near 1, for squares that would over- or underflow; 1 for zeros. Rarely called, so
// kept out of the code that is written out for each column, and in steps: what libraries know of exponents differs for
// numbers below the normal ones.
template <typename T>
__device__ __noinline__ T unit_for(T largest) {
  constexpr int kMost = sizeof(T) == 8 ? 255 : 31;  // powers of 16 that are normal numbers
  T unit = 1;
  if (!(largest > T(0))) return unit;
#pragma unroll 1
  for (int step = 0; step < kMost && largest * unit < T(0x1p-2); ++step) unit *= T(0x1p4);
#pragma unroll 1
  for (int step = 0; step < kMost && largest * unit > T(0x1p2); ++step) unit *= T(0x1p-4);
  return unit;
}

// v = (1, x * scale).
template <typename T>
struct Reflection {
  T beta, tau, scale;
};

// `square` = |x|^2; `nothing` says whether x is zero. One division: 1 / (beta (alpha - beta)).
template <typename T>
__device__ Reflection<T> reflection(T alpha, T square, bool nothing) {
  const T beta = -copysign(sqrt(alpha * alpha + square), alpha), difference = alpha - beta;
  const T quotient = T(1) / (beta * difference);
  if (nothing) return {alpha, T(0), T(0)};
  return {beta, -difference * difference * quotient, beta * quotient};
}

template <typename T>
__device__ T larger(T a, T b) {
  return a > b ? a : b;
}
