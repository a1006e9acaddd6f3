// Functions that kernels for batches of small matrices share: tiles in shared memory, how they are loaded and stored, and how a
// failed item is reported.
//
// Up to order 32 a matrix is computed by N = 4, 8, 16 or 32 neighbouring lanes, a *group*; lane i works on row or column i, which
// it keeps in N registers. A larger matrix is computed by a thread block, in blocks of 16 rows and columns.
#pragma once

#include "block.cuh"

// 16 bytes of numbers: the most that one load instruction moves.
template <typename T>
struct __align__(16) Pack {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T at[kSize];
};

// Returns the row length of a tile with `columns` columns. Rows are one pack longer than necessary, so that eight lanes that read
// packs of eight rows access different banks of shared memory.
template <typename T>
__host__ __device__ constexpr int padded(int columns) {
  return columns + Pack<T>::kSize;
}

// Elements between the tiles of two groups: a multiple of 128 bytes plus one pack, so that groups of a warp that read the
// same element of their tiles access different banks.
template <typename T, int R, int C>
constexpr int kRectangleStride = ((R * padded<T>(C) * static_cast<int>(sizeof(T)) + 127) / 128 * 128 + 16) /
                                 static_cast<int>(sizeof(T));
template <typename T, int N>
constexpr int kTileStride = kRectangleStride<T, N, N>;

template <typename T>
__device__ Pack<T> pack_at(const T* place) {
  return *reinterpret_cast<const Pack<T>*>(place);
}

template <typename T, int N>
__device__ void read_row(T (&row)[N], const T* place) {
#pragma unroll
  for (int j = 0; j < N; j += Pack<T>::kSize) {
    const Pack<T> pack = pack_at(place + j);
#pragma unroll
    for (int s = 0; s < Pack<T>::kSize; ++s) row[j + s] = pack.at[s];
  }
}

template <typename T, int N>
__device__ void write_row(T* place, const T (&row)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += Pack<T>::kSize) {
    Pack<T> pack;
#pragma unroll
    for (int s = 0; s < Pack<T>::kSize; ++s) pack.at[s] = row[j + s];
    *reinterpret_cast<Pack<T>*>(place + j) = pack;
  }
}

// Whether neighbours in memory are neighbours in a row. Lanes then read along rows, otherwise along columns.
template <typename T>
__device__ bool lies_by_rows(const Matrix<T>& A) {
  const Index row = A.row < 0 ? -A.row : A.row, col = A.col < 0 ? -A.col : A.col;
  return col <= row;
}

// tile := the lower triangle of A (n x n, n <= N), zeros above; padded by `fill` on the diagonal and zeros elsewhere.
template <typename T, int N>
__device__ void load_lower(T* tile, const Matrix<const T>& A, int n, int lane, T fill) {
  constexpr int ld = padded<T>(N);
  if (lies_by_rows(A)) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      tile[i * ld + lane] = i < n && lane <= i ? A(i, lane) : i >= n && lane == i ? fill : T(0);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j)
      tile[lane * ld + j] = lane < n && j <= lane ? A(lane, j) : lane >= n && lane == j ? fill : T(0);
  }
}

// A := the tile, n x n.
template <typename T, int N>
__device__ void store_square(const Matrix<T>& A, const T* tile, int n, int lane) {
  constexpr int ld = padded<T>(N);
  if (lane >= n) return;
  if (lies_by_rows(A)) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < n) A(i, lane) = tile[i * ld + lane];
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (j < n) A(lane, j) = tile[lane * ld + j];
  }
}

// tile := A (m x n, m <= R, n <= C), padded with zeros, by a group of R lanes. R and C are powers of two.
template <typename T, int R, int C>
__device__ void load_rectangle(T* tile, const Matrix<const T>& A, int m, int n, int lane) {
  const bool by_rows = lies_by_rows(A);
#pragma unroll
  for (int s = 0; s < C; ++s) {
    const int i = by_rows ? (s * R + lane) / C : lane, j = by_rows ? (s * R + lane) % C : s;
    tile[i * padded<T>(C) + j] = i < m && j < n ? A(i, j) : T(0);
  }
}

// A := the first m rows and n columns of the tile.
template <typename T, int R, int C>
__device__ void store_rectangle(const Matrix<T>& A, const T* tile, int m, int n, int lane) {
  const bool by_rows = lies_by_rows(A);
#pragma unroll
  for (int s = 0; s < C; ++s) {
    const int i = by_rows ? (s * R + lane) / C : lane, j = by_rows ? (s * R + lane) % C : s;
    if (i < m && j < n) A(i, j) = tile[i * padded<T>(C) + j];
  }
}

// x := L^-T x for the x of every lane, from the last k: x_k := x_k / l_kk, then x_i -= l_ki x_k for i < k. This is also
// x := x L^-1 for a row x. All lanes read the same entries of the tile L; `inverse` holds 1 / l_kk.
template <typename T, int N>
__device__ void solve_transposed(T (&x)[N], const T* L, const T* inverse, int ld = padded<T>(N)) {
#pragma unroll
  for (int k = N - 1; k >= 0; --k) {
    x[k] *= inverse[k];
#pragma unroll
    for (int i = 0; i < k; i += Pack<T>::kSize) {
      const Pack<T> pack = pack_at(L + k * ld + i);
#pragma unroll
      for (int s = 0; s < Pack<T>::kSize; ++s)
        if (i + s < k) x[i + s] -= pack.at[s] * x[k];
    }
  }
}

// Matrices of order above 32 are computed in blocks of this order.
constexpr int kPanel = 16;

// C -= A B^T for 16 x 16 blocks in shared memory, by a team of 16 threads: thread (u, v) computes rows u + 4 s and
// columns v + 4 t.
template <typename T>
__device__ void subtract_product(T* C, int ldc, const T* A, int lda, const T* B, int ldb, int u, int v) {
  T sum[4][4] = {};
#pragma unroll 4
  for (int k = 0; k < kPanel; k += Pack<T>::kSize) {
    Pack<T> a[4], b[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s] = pack_at(A + (u + 4 * s) * lda + k);
      b[s] = pack_at(B + (v + 4 * s) * ldb + k);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int q = 0; q < Pack<T>::kSize; ++q) sum[s][t] += a[s].at[q] * b[t].at[q];
  }
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int t = 0; t < 4; ++t) C[(u + 4 * s) * ldc + v + 4 * t] -= sum[s][t];
}

// Finds row and column of a block from its number; blocks on and below the diagonal are numbered row by row.
__device__ inline void find_block(int number, int& row, int& column) {
  row = 0;
  column = number;
  while (column > row) column -= ++row;
}

// sum += rows `first` and `second` of H (rows x columns) times columns j to j + 3 of B, which has 16 columns. For a row that does
// not exist the result is meaningless.
template <typename T>
__device__ void multiply_two_rows(T (&sum)[2][4], const T* H, int ld, const T* B, int first, int second, int rows,
                                    int columns, int j) {
  const T* const row_1 = H + (first < rows ? first : 0) * ld;
  const T* const row_2 = H + (second < rows ? second : 0) * ld;
  for (int k = 0; k < columns; k += Pack<T>::kSize) {
    const Pack<T> h_1 = pack_at(row_1 + k), h_2 = pack_at(row_2 + k);
#pragma unroll
    for (int q = 0; q < Pack<T>::kSize; ++q) {
      T b[4];
      read_row(b, B + (k + q) * padded<T>(kPanel) + j);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        sum[0][t] += h_1.at[q] * b[t];
        sum[1][t] += h_2.at[q] * b[t];
      }
    }
  }
}

// Reports a failure: lowers *cell to a number that encodes item and code. The smallest such number, the first failed item, stays.
// The cell holds the largest Index as long as nothing failed. A null cell: failures are not reported.
__device__ inline void report_failure(Index* cell, Index item, int code) {
  if (cell) atomicMin(cell, item * (Index(1) << 32) + (static_cast<Index>(code) + (Index(1) << 31)));
}
