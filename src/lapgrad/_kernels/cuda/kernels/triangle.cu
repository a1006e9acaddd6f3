// Triangles of large matrices: mirroring, clearing, copies, and the inverses of diagonal blocks.
#include "batch.cuh"

constexpr int kTile = 32;
constexpr int kTileRows = 8;  // 32 x 8 threads: each moves four rows of a tile

// Finds the tile (i, j), i >= j, of a triangle of tiles from the number of a block.
__device__ inline void find_tile(Index number, Index& i, Index& j) {
  i = static_cast<Index>((sqrt(8.0 * static_cast<double>(number) + 1.0) - 1.0) * 0.5);
  while ((i + 1) * (i + 2) / 2 <= number) ++i;
  while (i * (i + 1) / 2 > number) --i;
  j = number - i * (i + 1) / 2;
}

// The operation on a pair a_ij (below the diagonal) and a_ji (above), i > j.
constexpr int kMirrorUp = 0;    // a_ji := a_ij
constexpr int kMirrorDown = 1;  // a_ij := a_ji
constexpr int kMoveDown = 2;    // a_ij := a_ji, then a_ji := 0
constexpr int kClearUpper = 3;  // a_ji := 0
constexpr int kClearLower = 4;  // a_ij := 0

// Reshapes one pair of mirrored tiles of A in place, with 256 threads. Entries that are overwritten are never read, so they may be
// uninitialised. grid = (tiles (tiles + 1) / 2, items).
// Shared memory: two tiles of 32 x 33.
template <typename T, int kind>
__device__ void reshape_tiles(const Matrix<T>& A, Index n) {
  T* const below = shared_memory<T>();
  T* const above = below + kTile * (kTile + 1);
  Index ti, tj;
  find_tile(blockIdx.x, ti, tj);
  const int column = threadIdx.x % kTile, first = threadIdx.x / kTile;
  for (int r = first; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;  // of the lower tile
    if (kind == kMirrorUp && i < n && j < i) below[r * (kTile + 1) + column] = A(i, j);
    const Index p = tj * kTile + r, q = ti * kTile + column;  // of the upper tile
    if ((kind == kMirrorDown || kind == kMoveDown) && p < q && q < n) above[r * (kTile + 1) + column] = A(p, q);
  }
  __syncthreads();
  for (int r = first; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;
    if (i < n && j < n && i > j) {
      if constexpr (kind == kMirrorDown || kind == kMoveDown) A(i, j) = above[column * (kTile + 1) + r];
      if constexpr (kind == kClearLower) A(i, j) = 0;
    }
    const Index p = tj * kTile + r, q = ti * kTile + column;
    if (p < n && q < n && q > p) {
      if constexpr (kind == kMirrorUp) A(p, q) = below[column * (kTile + 1) + r];
      if constexpr (kind == kMoveDown || kind == kClearUpper) A(p, q) = 0;
    }
  }
}

template <typename T, int kind>
__global__ void reshape_triangle(T* data, Index item, Index row, Index n) {
  reshape_tiles<T, kind>(Matrix<T>{data + blockIdx.y * item, row, 1}, n);
}

// The first step of a Cholesky factorisation: the upper triangle of A := the transposed lower one of S, and zeros below, because
// cuSOLVER lets a NaN in the other triangle spoil the result. A may be the memory of S, or of S^T.
// spoilt[item] := n + 1 - i, where i (from 1) is the first row of that triangle with a NaN or an infinity. It must be 0 before, and
// stays 0 if there is none. grid as in reshape_triangle; shared memory: one padded tile.
template <typename T>
__global__ void take_triangle(T* data, Index item, Index row, const T* source, Index s_item, Index s_row, Index s_col,
                              Index n, int* spoilt) {
  T* const tile = shared_memory<T>();
  Index ti, tj;
  find_tile(blockIdx.x, ti, tj);
  const Matrix<T> A{data + blockIdx.y * item, row, 1};
  const Matrix<const T> S{source + blockIdx.y * s_item, s_row, s_col};
  const int column = threadIdx.x % kTile, first = threadIdx.x / kTile;
  for (int r = first; r < kTile; r += kTileRows) {
    // Consecutive threads read consecutive addresses, in either storage order of S.
    const int down = s_row == 1 ? column : r, across = s_row == 1 ? r : column;
    const Index i = ti * kTile + down, j = tj * kTile + across;
    if (i >= n || j > i) continue;
    const T value = S(i, j);
    if (!isfinite(value)) atomicMax(spoilt + blockIdx.y, static_cast<int>(n - i));
    tile[down * (kTile + 1) + across] = value;
  }
  __syncthreads();
  for (int r = first; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;
    if (i < n && j < i) A(i, j) = 0;
    const Index p = tj * kTile + r, q = ti * kTile + column;
    if (q < n && p <= q) A(p, q) = tile[column * (kTile + 1) + r];
  }
}

// The last step of a Cholesky factorisation. status := LAPACK's code (k > 0: minor k is not positive), or -k if row k is the first with
// a NaN or an infinity and no smaller minor failed. A failed item becomes the identity; the triangle of the others is reshaped.
// `code` (blocks x items) has the codes of diagonal blocks of order `size`, each counted from the block's first row; the first that is
// not 0 counts. `status` may be null; the first item that failed is reported.
template <typename T, int kind>
__global__ void finish_factor(T* data, Index item, Index row, Index n, const int* code, Index blocks, Index size, const int* spoilt,
                              int* status, Index* first_failure) {
  const int row_met = static_cast<int>(n) + 1 - spoilt[blockIdx.y];
  int lapack = 0;
  for (Index block = 0; block < blocks && lapack == 0; ++block) {
    const int found = code[block * gridDim.y + blockIdx.y];
    if (found != 0) lapack = static_cast<int>(block * size) + (found < 0 ? -found : found);
  }
  const int result = row_met <= n && (lapack == 0 || lapack >= row_met) ? -row_met : lapack;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (status) status[blockIdx.y] = result;
    if (result != 0) report_failure(first_failure, blockIdx.y, result);
  }
  const Matrix<T> A{data + blockIdx.y * item, row, 1};
  if (result == 0) {
    reshape_tiles<T, kind>(A, n);
    return;
  }
  Index ti, tj;
  find_tile(blockIdx.x, ti, tj);
  const int column = threadIdx.x % kTile;
  for (int r = threadIdx.x / kTile; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;
    if (i < n && j < n) A(i, j) = T(i == j);
    const Index p = tj * kTile + r, q = ti * kTile + column;
    if (p < n && q < n) A(p, q) = T(p == q);
  }
}

// L := the lower triangular F, stored by columns, of one matrix; L is stored by rows, or is the transpose of such a matrix. Reports a
// failure, with code 1, if `code` is not 0 or an entry is not finite. grid = (tiles, tiles); shared memory: one padded tile.
template <typename T>
__global__ void place_factor(T* L, Index l_row, Index l_col, const T* F, Index n, const int* code, Index* first_failure) {
  T* const tile = shared_memory<T>();
  const Matrix<T> to{L, l_row, l_col};
  const Index top = static_cast<Index>(blockIdx.x) * kTile, left = static_cast<Index>(blockIdx.y) * kTile;
  const int lane = threadIdx.x % kTile, first = threadIdx.x / kTile;
  bool finite = *code == 0;
  for (int c = first; c < kTile; c += kTileRows) {
    if (left + c >= n || top + lane >= n) continue;
    const T value = top + lane >= left + c ? F[(left + c) * n + top + lane] : T(0);
    finite = finite && isfinite(value);
    tile[lane * (kTile + 1) + c] = value;
  }
  if (!finite) report_failure(first_failure, 0, 1);
  __syncthreads();
  const bool by_rows = l_col == 1;  // consecutive threads write consecutive addresses
  for (int r = first; r < kTile; r += kTileRows) {
    const int i = by_rows ? r : lane, j = by_rows ? lane : r;
    if (top + i < n && left + j < n) to(top + i, left + j) = tile[i * (kTile + 1) + j];
  }
}

// The last step of an inverse: B := weight scale (B + ratio X X'), X n x k, symmetric, from the lower triangle of B.
// grid as in reshape_triangle; shared memory: one padded tile.
template <typename T>
__global__ void finish_inverse(T* data, Index item, Index row, Index n, const T* columns, Index x_item, Index x_row,
                               Index x_col, Index k, const T* weights, double scale, double ratio) {
  T* const tile = shared_memory<T>();
  Index ti, tj;
  find_tile(blockIdx.x, ti, tj);
  const Matrix<T> B{data + blockIdx.y * item, row, 1};
  const Matrix<const T> X{columns + blockIdx.y * x_item, x_row, x_col};
  const T weight = static_cast<T>(scale) * weights[blockIdx.y];
  const int column = threadIdx.x % kTile, first = threadIdx.x / kTile;
  for (int r = first; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;
    if (i >= n || j > i) continue;
    T product = 0;
    for (Index c = 0; c < k; ++c) product += X(i, c) * X(j, c);
    const T value = weight * (B(i, j) + static_cast<T>(ratio) * product);
    B(i, j) = value;
    tile[r * (kTile + 1) + column] = value;
  }
  __syncthreads();
  for (int r = first; r < kTile; r += kTileRows) {
    const Index p = tj * kTile + r, q = ti * kTile + column;  // of the upper tile
    if (p < n && q < n && q > p) B(p, q) = tile[column * (kTile + 1) + r];
  }
}

// target := source, row by row; they must not overlap. grid = (rows, items). A thread starts eight loads before it waits for the
// first.
template <typename T>
__global__ void copy_rows(T* target, Index t_item, Index t_row, const T* source, Index s_item, Index s_row, Index n) {
  constexpr int at_once = 8;
  T* const to = target + blockIdx.y * t_item + blockIdx.x * t_row;
  const T* const from = source + blockIdx.y * s_item + blockIdx.x * s_row;
  const Index step = blockDim.x;
  Index j = threadIdx.x;
  for (; j + (at_once - 1) * step < n; j += at_once * step) {
    T values[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) values[k] = from[j + k * step];
#pragma unroll
    for (int k = 0; k < at_once; ++k) to[j + k * step] = values[k];
  }
  for (; j < n; j += step) to[j] = from[j];
}

// target (m x n) := source^T. grid = (tiles down, tiles across, items); shared memory: one padded tile.
template <typename T>
__global__ void copy_transposed(T* target, Index t_item, Index t_row, const T* source, Index s_item, Index s_row,
                                Index m, Index n) {
  T* const tile = shared_memory<T>();
  const Matrix<T> to{target + blockIdx.z * t_item, t_row, 1};
  const Matrix<const T> from{source + blockIdx.z * s_item, s_row, 1};
  const Index top = static_cast<Index>(blockIdx.x) * kTile, left = static_cast<Index>(blockIdx.y) * kTile;
  const int column = threadIdx.x % kTile, first = threadIdx.x / kTile;
  for (int r = first; r < kTile; r += kTileRows)
    if (left + r < n && top + column < m) tile[r * (kTile + 1) + column] = from(left + r, top + column);
  __syncthreads();
  for (int r = first; r < kTile; r += kTileRows)
    if (top + r < m && left + column < n) to(top + r, left + column) = tile[column * (kTile + 1) + r];
}

// W := L^-1 for every diagonal block of order 64 of every item. Reads only the lower triangle of L and writes only the lower triangle
// of W. grid = (blocks, items); 64 threads. Thread j holds column j of W in registers and solves L w = e_j from the top: once
// w_i is known, l_ki w_i is subtracted from all w_k below. These products are independent, and all threads read the same l_ki. The
// last block is padded by the identity. With `unit` the diagonal of L is not read: it is 1.
// Shared memory: L, column by column, 64 x 64, and 1 / l_ii.
constexpr int kLeaf = 64;

template <typename T>
__global__ void invert_leaves(const T* L, Index l_item, Index l_row, Index l_col, T* W, Index w_item, Index w_row,
                              Index n, Index unit) {
  T* const column = shared_memory<T>();
  T* const reciprocal = column + kLeaf * kLeaf;
  const Index start = static_cast<Index>(blockIdx.x) * kLeaf;
  const int size = static_cast<int>(n - start < kLeaf ? n - start : kLeaf), j = threadIdx.x;
  const Matrix<const T> source{L + blockIdx.y * l_item + start * (l_row + l_col), l_row, l_col};
  const Matrix<T> target{W + blockIdx.y * w_item + start * (w_row + 1), w_row, 1};
  // Consecutive threads read consecutive addresses, in either storage order of L; 16 loads are in flight at a time.
  constexpr int at_once = 16;
  for (int first = 0; first < kLeaf; first += at_once) {
    T values[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const int i = l_col == 1 ? first + k : j, c = l_col == 1 ? j : first + k;
      values[k] = c <= i && i < size && !(unit && i == c) ? source(i, c) : T(i == c);
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const int i = l_col == 1 ? first + k : j, c = l_col == 1 ? j : first + k;
      if (c <= i) column[c * kLeaf + i] = values[k];
    }
  }
  __syncthreads();
  reciprocal[j] = T(1) / column[j * kLeaf + j];
  __syncthreads();
  T w[kLeaf];
#pragma unroll
  for (int i = 0; i < kLeaf; ++i) w[i] = T(i == j);
#pragma unroll
  for (int i = 0; i < kLeaf; ++i) {
    w[i] *= reciprocal[i];
#pragma unroll
    for (int k = i + 1; k < kLeaf; ++k) w[k] -= column[i * kLeaf + k] * w[i];
  }
#pragma unroll
  for (int i = 0; i < kLeaf; ++i)
    if (j <= i && i < size) target(i, j) = w[i];
}

// merge_inverses computes the inverses of diagonal blocks of order 2 half of L from those of order `half`. For
// [[L11, 0], [L21, L22]],
//     W21 := -W22 (L21 W11)
// A thread block computes kStrip columns of both products, which need only the same columns of W11. Thread i holds row i of the
// result in registers, and all threads read the same rows of the right factor. The left factor passes through shared memory, kDepth
// columns at a time, while the next ones are loaded into registers. One launch replaces two products of cuBLAS, each of which would
// take the host three times as long to launch.
// grid = (half / 8, pairs, items); `half` threads. Shared memory: half x 17 and half x 8.
constexpr int kStrip = 8;
constexpr int kDepth = 16;

// sum += row `thread` of A times `right`, from column `first` of A on. A is rows x columns, padded with zeros. For a lower
// triangular A, columns beyond the rows of a warp are skipped.
template <typename T>
__device__ void multiply_strip(T (&sum)[kStrip], const Matrix<const T>& A, int rows, int columns, int first, bool lower,
                               const T* right, T* tile) {
  const int thread = threadIdx.x, threads = blockDim.x;
  T next[kDepth];
  // Consecutive threads read consecutive addresses, in either storage order of A.
  const auto place = [&](int turn, int& i, int& k) {
    const int number = turn * threads + thread;
    i = A.col == 1 ? number / kDepth : number % threads;
    k = A.col == 1 ? number % kDepth : number / threads;
  };
  const auto load = [&](int start) {
#pragma unroll
    for (int turn = 0; turn < kDepth; ++turn) {
      int i, k;
      place(turn, i, k);
      next[turn] = i < rows && start + k < columns ? A(i, start + k) : T(0);
    }
  };
  load(first);
  for (int start = first; start < columns; start += kDepth) {
#pragma unroll
    for (int turn = 0; turn < kDepth; ++turn) {
      int i, k;
      place(turn, i, k);
      tile[i * (kDepth + 1) + k] = next[turn];
    }
    __syncthreads();
    if (start + kDepth < columns) load(start + kDepth);
    if (!lower || start <= (thread | 31)) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        const T value = tile[thread * (kDepth + 1) + k];
#pragma unroll
        for (int s = 0; s < kStrip; ++s) sum[s] += value * right[(start + k) * kStrip + s];
      }
    }
    __syncthreads();
  }
}

template <typename T>
__global__ void merge_inverses(const T* L, Index l_item, Index l_row, Index l_col, T* W, Index w_item, Index w_row, Index n,
                               Index order) {
  const int half = static_cast<int>(order), thread = threadIdx.x;
  const Index start = static_cast<Index>(blockIdx.y) * 2 * half, middle = start + half;
  if (middle >= n) return;
  const int below = static_cast<int>(n - middle < half ? n - middle : half);
  const int left = static_cast<int>(blockIdx.x) * kStrip;
  T* const right = shared_memory<T>();
  T* const tile = right + half * kStrip;
  T* const inverse = W + blockIdx.z * w_item;
  const Matrix<T> W11{inverse + start * (w_row + 1), w_row, 1}, W21{inverse + middle * w_row + start, w_row, 1};
  const Matrix<const T> W22{inverse + middle * (w_row + 1), w_row, 1};
  const Matrix<const T> L21{L + blockIdx.z * l_item + middle * l_row + start * l_col, l_row, l_col};
  T sum[kStrip];
#pragma unroll
  for (int s = 0; s < kStrip; ++s) {
    right[thread * kStrip + s] = thread < left + s ? T(0) : W11(thread, left + s);
    sum[s] = 0;
  }
  __syncthreads();
  multiply_strip(sum, L21, below, half, left / kDepth * kDepth, false, right, tile);
#pragma unroll
  for (int s = 0; s < kStrip; ++s) {
    right[thread * kStrip + s] = sum[s];
    sum[s] = 0;
  }
  __syncthreads();
  multiply_strip(sum, W22, below, below, 0, true, right, tile);
#pragma unroll
  for (int s = 0; s < kStrip; ++s)
    if (thread < below) W21(thread, left + s) = -sum[s];
}
