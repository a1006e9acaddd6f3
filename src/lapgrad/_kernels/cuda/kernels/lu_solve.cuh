// Solves with blocks of LU factors, in the registers of a thread.
#pragma once

#include "lu.cuh"

// Solves with a diagonal block of the factors, stored transposed, for the x of every thread; 1 / u_kk is on its diagonal.
//     L x = b:    x_i -= l_ik x_k for i > k, from the first k
//     U x = b:    x_k := x_k / u_kk, x_i -= u_ik x_k for i < k, from the last k
//     U^T x = b:  x_k := (x_k - sum_{i < k} u_ik x_i) / u_kk, from the first k
//     L^T x = b:  x_k := x_k - sum_{i > k} l_ik x_i, from the last k
template <typename T, int N>
__device__ void solve_lower(T (&x)[N], const T* block, int ld) {
  constexpr int kPack = Pack<T>::kSize;
#pragma unroll
  for (int k = 0; k < N; ++k)
#pragma unroll
    for (int i = k / kPack * kPack; i < N; i += kPack) {
      const Pack<T> pack = pack_at(block + k * ld + i);
#pragma unroll
      for (int s = 0; s < kPack; ++s)
        if (i + s > k) x[i + s] -= pack.at[s] * x[k];
    }
}

template <typename T, int N>
__device__ void solve_upper(T (&x)[N], const T* block, int ld) {
  constexpr int kPack = Pack<T>::kSize;
#pragma unroll
  for (int k = N - 1; k >= 0; --k) {
    x[k] *= block[k * ld + k];
#pragma unroll
    for (int i = 0; i < k; i += kPack) {
      const Pack<T> pack = pack_at(block + k * ld + i);
#pragma unroll
      for (int s = 0; s < kPack; ++s)
        if (i + s < k) x[i + s] -= pack.at[s] * x[k];
    }
  }
}

template <typename T, int N>
__device__ void solve_upper_turned(T (&x)[N], const T* block, int ld) {
  constexpr int kPack = Pack<T>::kSize;
#pragma unroll
  for (int k = 0; k < N; ++k) {
#pragma unroll
    for (int i = 0; i < k; i += kPack) {
      const Pack<T> pack = pack_at(block + k * ld + i);
#pragma unroll
      for (int s = 0; s < kPack; ++s)
        if (i + s < k) x[k] -= pack.at[s] * x[i + s];
    }
    x[k] *= block[k * ld + k];
  }
}

template <typename T, int N>
__device__ void solve_lower_turned(T (&x)[N], const T* block, int ld) {
  constexpr int kPack = Pack<T>::kSize;
#pragma unroll
  for (int k = N - 1; k >= 0; --k)
#pragma unroll
    for (int i = k / kPack * kPack; i < N; i += kPack) {
      const Pack<T> pack = pack_at(block + k * ld + i);
#pragma unroll
      for (int s = 0; s < kPack; ++s)
        if (i + s > k) x[k] -= pack.at[s] * x[i + s];
    }
}
