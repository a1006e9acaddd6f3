// Triangles packed into vectors, and back; triangles of small matrices copied and mirrored; diagonals.
//
// A triangle consists of runs. Run r holds the first r + 1 entries of row r + skip of the matrix and starts at entry
// r (r + 1) / 2 of the vector. That is a lower triangle, row by row; an upper triangle, column by column, is a lower one of A',
// passed with swapped strides. Threads are assigned to rows, which gives the run directly, without a square root.
#include "block.cuh"

__device__ inline Index start_of_run(Index r) { return r * (r + 1) / 2; }

constexpr int kPackingThreads = 256;

// Packs A into v, or with `unpacks` v into A. A group of `lanes` threads (a power of two) moves a row; a block moves `passes` times
// as many rows as it has groups. Rows are numbered over all items; rows without an entry of the triangle are included only when
// unpacking, which writes zeros there. Lanes go along rows, so this is for row-major matrices, or for small ones that the cache
// holds. 256 threads, any grid that covers the rows.
template <typename T, bool unpacks>
__global__ void move_rows(T* __restrict__ data, Index a_item, Index row, Index col, T* __restrict__ packed, Index v_item,
                          Index v_step, Index n, Index skip, Index items, Index lanes, Index passes) {
  const unsigned groups = kPackingThreads / static_cast<unsigned>(lanes);
  const unsigned lane = threadIdx.x % static_cast<unsigned>(lanes), group = threadIdx.x / static_cast<unsigned>(lanes);
  const Index above = unpacks ? 0 : skip;  // rows before the first one that is moved
  const unsigned rows = static_cast<unsigned>(n - above);
  const Index first = static_cast<Index>(blockIdx.x) * passes * groups;
  // One 64-bit division; 32-bit numbers are enough from here on.
  Index item = first / rows;
  unsigned i = static_cast<unsigned>(first - item * rows) + group;
  for (Index pass = 0; pass < passes; ++pass, i += groups) {
    item += i / rows;
    i %= rows;
    if (item >= items) return;
    const Index r = static_cast<Index>(i) + above - skip;
    T* const a = data + item * a_item + (static_cast<Index>(i) + above) * row;
    T* const v = packed + item * v_item + (r < 0 ? 0 : start_of_run(r)) * v_step;
    if constexpr (unpacks) {
#pragma unroll 4
      for (Index j = lane; j < n; j += lanes) a[j * col] = j <= r ? v[j * v_step] : T(0);
    } else {
#pragma unroll 4
      for (Index j = lane; j <= r; j += lanes) v[j * v_step] = a[j * col];
    }
  }
}

constexpr int kPackingTile = 32;

// The same for column-major matrices: a block transposes a tile of 32 x 32 in shared memory, so that lanes access consecutive
// addresses of both A and v. 256 threads, grid = (items * tiles * tiles).
// Shared memory: one padded tile.
template <typename T, bool unpacks>
__global__ void move_tiles(T* __restrict__ data, Index a_item, Index row, Index col, T* __restrict__ packed,
                           Index v_item, Index v_step, Index n, Index skip, Index tiles) {
  T* const tile = shared_memory<T>();
  const Index item = blockIdx.x / (tiles * tiles), number = blockIdx.x - item * tiles * tiles;
  const Index top = number / tiles * kPackingTile, left = number % tiles * kPackingTile;
  const Index bottom = top + kPackingTile < n ? top + kPackingTile : n;
  if (!unpacks && left > bottom - 1 - skip) return;  // the whole tile lies above the triangle
  const Matrix<T> A{data + item * a_item, row, col};
  T* const v = packed + item * v_item;
  const int lane = threadIdx.x % kPackingTile, first = threadIdx.x / kPackingTile;
  constexpr int step = kPackingThreads / kPackingTile;
  // Lanes go along the columns of A.
  if constexpr (!unpacks) {
    for (int c = first; c < kPackingTile; c += step) {
      const Index i = top + lane, j = left + c;
      if (i < n && j <= i - skip) tile[lane * (kPackingTile + 1) + c] = A(i, j);
    }
    __syncthreads();
  }
  // Lanes go along the runs.
  for (int s = first; s < kPackingTile; s += step) {
    const Index r = top + s - skip, j = left + lane;
    if (top + s >= n) break;
    if constexpr (unpacks)
      tile[s * (kPackingTile + 1) + lane] = j <= r ? v[(start_of_run(r) + j) * v_step] : T(0);
    else if (j <= r)
      v[(start_of_run(r) + j) * v_step] = tile[s * (kPackingTile + 1) + lane];
  }
  if constexpr (unpacks) {
    __syncthreads();
    for (int c = first; c < kPackingTile; c += step) {
      const Index i = top + lane, j = left + c;
      if (i < n && j < n) A(i, j) = tile[lane * (kPackingTile + 1) + c];
    }
  }
}

// a_ij := a_ji for i < j, of contiguous matrices that are small: the cache holds the columns that are read. A group of `lanes` threads
// (a power of two) writes a row, as in move_rows.
template <typename T>
__global__ void mirror_rows(T* data, Index n, Index items, Index lanes, Index passes) {
  const unsigned width = static_cast<unsigned>(lanes), lane = threadIdx.x % width, groups = kPackingThreads / width;
  Index number = static_cast<Index>(blockIdx.x) * passes * groups + threadIdx.x / width;
  for (Index pass = 0; pass < passes; ++pass, number += groups) {
    const Index item = number / n, i = number - item * n;
    if (item >= items) return;
    T* const A = data + item * n * n;
    for (Index j = lane; j < n; j += width)
      if (j > i) A[i * n + j] = A[j * n + i];
  }
}

// A := diag(d), contiguous. A group of `lanes` threads (a power of two) writes a row, as in move_rows.
template <typename T>
__global__ void place_diagonals(T* __restrict__ data, const T* __restrict__ d, Index d_item, Index d_step, Index n, Index items,
                                Index lanes, Index passes) {
  const unsigned width = static_cast<unsigned>(lanes), lane = threadIdx.x % width, groups = kPackingThreads / width;
  Index number = static_cast<Index>(blockIdx.x) * passes * groups + threadIdx.x / width;
  for (Index pass = 0; pass < passes; ++pass, number += groups) {
    const Index item = number / n, i = number - item * n;
    if (item >= items) return;
    const T value = d[item * d_item + i * d_step];
    T* const row = data + number * n;
#pragma unroll 4
    for (Index j = lane; j < n; j += width) row[j] = j == i ? value : T(0);
  }
}

// B := the symmetric matrix with the lower triangle of A; B is contiguous, and A small: the cache holds the columns that are read.
template <typename T>
__global__ void copy_mirrored_rows(T* __restrict__ copy, const T* __restrict__ data, Index item, Index row, Index col, Index n,
                                   Index items, Index lanes, Index passes) {
  const unsigned width = static_cast<unsigned>(lanes), lane = threadIdx.x % width, groups = kPackingThreads / width;
  Index number = static_cast<Index>(blockIdx.x) * passes * groups + threadIdx.x / width;
  for (Index pass = 0; pass < passes; ++pass, number += groups) {
    const Index b = number / n, i = number - b * n;
    if (b >= items) return;
    const T* const A = data + b * item;
    T* const target = copy + number * n;
    for (Index j = lane; j < n; j += width) target[j] = j <= i ? A[i * row + j * col] : A[j * row + i * col];
  }
}

// The same for larger matrices: a block copies a tile on or below the diagonal, and its transpose. grid = (items * tiles).
// Shared memory: one padded tile.
template <typename T>
__global__ void copy_mirrored_tiles(T* __restrict__ copy, const T* __restrict__ data, Index item, Index row, Index col, Index n,
                                    Index down) {
  T* const tile = shared_memory<T>();
  const Index tiles = down * (down + 1) / 2, b = blockIdx.x / tiles;
  Index ti = 0, tj = blockIdx.x - b * tiles;
  while (tj > ti) tj -= ++ti;
  const T* const A = data + b * item;
  T* const B = copy + b * n * n;
  const Index top = ti * kPackingTile, left = tj * kPackingTile;
  const int lane = threadIdx.x % kPackingTile, first = threadIdx.x / kPackingTile;
  constexpr int step = kPackingThreads / kPackingTile;
  for (int s = first; s < kPackingTile; s += step) {
    const int r = col == 1 ? s : lane, c = col == 1 ? lane : s;
    const Index i = top + r, j = left + c;
    if (i < n && j <= i) tile[r * (kPackingTile + 1) + c] = A[i * row + j * col];
  }
  __syncthreads();
  for (int s = first; s < kPackingTile; s += step) {
    Index i = top + s, j = left + lane;
    if (i < n && j <= i) B[i * n + j] = tile[s * (kPackingTile + 1) + lane];
    i = top + lane, j = left + s;  // of the tile, which is written to (j, i)
    if (i < n && j < i) B[j * n + i] = tile[lane * (kPackingTile + 1) + s];
  }
}

// d := the diagonals of A, contiguous; `diagonal` is the distance of their elements. 256 threads, any grid that covers the elements.
template <typename T>
__global__ void gather_diagonals(T* __restrict__ d, const T* __restrict__ data, Index item, Index diagonal, Index n, Index count) {
  const Index number = static_cast<Index>(blockIdx.x) * kPackingThreads + threadIdx.x;
  if (number >= count) return;
  const Index b = number / n;
  d[number] = data[b * item + (number - b * n) * diagonal];
}
