// trsm and trmm for batches of triangular matrices up to order 128: X = L^-1 A and X = L A, L lower, on the left.
//
// The other cases are passed with other strides: a transposed L has swapped strides, a right side is the transposed problem, and
// an upper L is a lower one with rows and columns in reverse order, as are the rows of A and X.
#include "batch.cuh"

// Reports (item, index) of zeros on the diagonal; one thread per diagonal element.
template <typename T>
__global__ void find_zero_pivots(const T* L, Index l_item, Index l_diagonal, Index n, Index items,
                                 Index* first_failure) {
  const Index number = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (number >= items * n) return;
  const Index item = number / n, k = number % n;
  if (L[item * l_item + k * l_diagonal] == T(0)) report_failure(first_failure, item, static_cast<int>(k));
}

constexpr Index kNothingFailed = 0x7fffffffffffffff;

// The item and column that a thread computes. A block has `groups` items with `width` threads each, one per column; or one item and a
// chunk of `width` of its columns. grid = (blocks of items) * chunks.
struct Share {
  Index first_item, item, column;
  int group;
  bool exists;  // whether there is such a column
};

__device__ inline Share find_share(Index columns, Index items, Index groups, Index width, Index chunks) {
  Share mine;
  mine.first_item = blockIdx.x / chunks * groups;
  mine.group = static_cast<int>(threadIdx.x / width);
  mine.item = mine.first_item + mine.group;
  mine.column = blockIdx.x % chunks * width + threadIdx.x % width;
  mine.exists = mine.group < groups && mine.item < items && mine.column < columns;
  return mine;
}

// Loads L^T into one tile per item, so that the entries of column k that step k needs are contiguous; for a solve with the inverse of
// the diagonal. Called by all threads of the block, also those without a column. Padded by the identity up to `size`.
// With `searched` zeros on the diagonal are reported, by their index (1) or, if the rows are in reverse order, n - 1 minus it (-1).
template <typename T, bool kSolve>
__device__ void load_turned(T* tiles, int stride, const T* L, Index l_item, Index l_row, Index l_col, int n, int size,
                            Index first_item, Index items, Index groups, Index* first_failure, Index searched) {
  const bool by_rows = lies_by_rows(Matrix<const T>{L, l_row, l_col});
  for (int e = threadIdx.x; e < static_cast<int>(groups) * size * size; e += blockDim.x) {
    const int group = e / (size * size), p = e / size % size, q = e % size;
    const int i = by_rows ? p : q, j = by_rows ? q : p;
    const Index item = first_item + group;
    const bool inside = item < items && i < n && j <= i;
    const T value = inside ? L[item * l_item + i * l_row + j * l_col] : T(i == j);
    if (kSolve && searched && i == j && value == T(0)) report_failure(first_failure, item, searched > 0 ? i : n - 1 - i);
    tiles[group * stride + j * padded<T>(size) + i] = kSolve && i == j ? T(1) / value : value;
  }
  __syncthreads();
}

// x_i -= l_ik y for i >= first, where `column` is a row of a transposed tile.
template <typename T, int N>
__device__ void subtract_column(T (&x)[N], const T* column, T y, int first) {
#pragma unroll
  for (int i = 0; i < N; i += Pack<T>::kSize) {
    if (i + Pack<T>::kSize <= first) continue;
    const Pack<T> pack = pack_at(column + i);
#pragma unroll
    for (int s = 0; s < Pack<T>::kSize; ++s)
      if (i + s >= first) x[i + s] -= pack.at[s] * y;
  }
}

// x := L^-1 x or L x for a tile of order N:
//     solve:    x_k = a_k / l_kk, then a_i -= l_ik x_k for i > k
//     product:  from the last k back, x_i += l_ik a_k for i > k, x_k = l_kk a_k
template <typename T, int N, bool kSolve>
__device__ void apply_tile(T (&x)[N], const T* tile, int ld) {
  if constexpr (kSolve) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] *= tile[k * ld + k];
      subtract_column(x, tile + k * ld, x[k], k + 1);
    }
  } else {
#pragma unroll
    for (int k = N - 1; k >= 0; --k) {
      subtract_column(x, tile + k * ld, -x[k], k + 1);
      x[k] *= tile[k * ld + k];
    }
  }
}

// Orders n <= N: a column is held in N registers. Without `searched` it writes nothing if a failure was reported before. X may be A.
// Shared memory: a tile per item.
template <typename T, int N, bool kSolve>
__global__ void apply_small(T* X, Index x_item, Index x_row, Index x_col, const T* L, Index l_item, Index l_row,
                            Index l_col, const T* A, Index a_item, Index a_row, Index a_col, Index order, Index columns,
                            Index items, Index groups, Index width, Index chunks, Index* first_failure, Index searched) {
  if (!searched && first_failure && *first_failure != kNothingFailed) return;
  const int n = static_cast<int>(order);
  const Share mine = find_share(columns, items, groups, width, chunks);
  T* const tiles = shared_memory<T>();
  load_turned<T, kSolve>(tiles, kTileStride<T, N>, L, l_item, l_row, l_col, n, N, mine.first_item, items, groups,
                         first_failure, searched);
  if (!mine.exists) return;
  const T* const source = A + mine.item * a_item + mine.column * a_col;
  T* const target = X + mine.item * x_item + mine.column * x_col;
  T x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = i < n ? source[i * a_row] : T(0);
  apply_tile<T, N, kSolve>(x, tiles + mine.group * kTileStride<T, N>, padded<T>(N));
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < n) target[i * x_row] = x[i];
}

// Larger orders in panels of 16 rows: x_R = L_RR^-1 (a_R - sum_{B < R} L_RB x_B), first panel first; for the product
// x_R = L_RR a_R + sum_{B < R} L_RB a_B, last panel first. A thread reads only entries that it wrote itself, or has
// not overwritten yet. One item, or chunk of its columns, per block. Shared memory: a tile.
template <typename T, bool kSolve>
__global__ void apply_medium(T* X, Index x_item, Index x_row, Index x_col, const T* L, Index l_item, Index l_row,
                             Index l_col, const T* A, Index a_item, Index a_row, Index a_col, Index order,
                             Index columns, Index items, Index groups, Index width, Index chunks,
                             Index* first_failure, Index searched) {
  if (!searched && first_failure && *first_failure != kNothingFailed) return;
  const int n = static_cast<int>(order), panels = (n + kPanel - 1) / kPanel, ld = padded<T>(panels * kPanel);
  const Share mine = find_share(columns, items, groups, width, chunks);
  T* const tile = shared_memory<T>();
  load_turned<T, kSolve>(tile, 0, L, l_item, l_row, l_col, n, panels * kPanel, mine.first_item, items, groups,
                         first_failure, searched);
  if (!mine.exists) return;
  const T* const source = A + mine.item * a_item + mine.column * a_col;
  T* const target = X + mine.item * x_item + mine.column * x_col;
  for (int step = 0; step < panels; ++step) {
    const int start = (kSolve ? step : panels - 1 - step) * kPanel;
    T x[kPanel];
#pragma unroll
    for (int i = 0; i < kPanel; ++i) x[i] = start + i < n ? source[(start + i) * a_row] : T(0);
    if constexpr (!kSolve) apply_tile<T, kPanel, false>(x, tile + start * (ld + 1), ld);
#pragma unroll 1
    for (int before = 0; before < start; before += kPanel) {
      T y[kPanel];
#pragma unroll
      for (int k = 0; k < kPanel; ++k) y[k] = kSolve ? target[(before + k) * x_row] : -source[(before + k) * a_row];
#pragma unroll
      for (int k = 0; k < kPanel; ++k) subtract_column(x, tile + (before + k) * ld + start, y[k], 0);
    }
    if constexpr (kSolve) apply_tile<T, kPanel, true>(x, tile + start * (ld + 1), ld);
#pragma unroll
    for (int i = 0; i < kPanel; ++i)
      if (start + i < n) target[(start + i) * x_row] = x[i];
  }
}
