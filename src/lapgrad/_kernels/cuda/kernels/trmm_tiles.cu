// Triangular and symmetric products of small matrices, in one launch.
#include "block.cuh"

constexpr int kProductTile = 32;
constexpr int kProductRows = 8;  // 32 x 8 threads: each computes four entries of a tile

// C := tri(A) B: only one triangle of A, with its diagonal, counts.
constexpr int kTriangularFactor = 0;
// The lower triangle of C := A B, zeros above it.
constexpr int kTriangularResult = 1;
// C := A B, which is known to be symmetric: the lower triangle is computed and mirrored.
constexpr int kSymmetricResult = 2;

// C (m x n) := alpha A B, A m x k, B k x n, as `kind` says. A block computes one tile of one item; 256 threads, grid = (items * tiles),
// where a symmetric result has the tiles of its lower triangle only. `upper`: of A, the upper triangle counts.
// Shared memory: two padded tiles.
template <typename T, int kind>
__global__ void multiply_tiles(T* __restrict__ c_data, Index c_item, Index c_row, Index c_col, const T* __restrict__ a_data,
                               Index a_item, Index a_row, Index a_col, const T* __restrict__ b_data, Index b_item, Index b_row,
                               Index b_col, Index m, Index n, Index k, Index upper, double alpha) {
  constexpr int kPadded = kProductTile + 1;
  T* const left = shared_memory<T>();
  T* const right = left + kProductTile * kPadded;
  const Index down = (m + kProductTile - 1) / kProductTile, across = (n + kProductTile - 1) / kProductTile;
  const Index tiles = kind == kSymmetricResult ? down * (down + 1) / 2 : down * across;
  const Index item = blockIdx.x / tiles;
  Index ti = 0, tj = blockIdx.x - item * tiles;
  if (kind == kSymmetricResult) {
    while (tj > ti) tj -= ++ti;
  } else {
    ti = tj / across;
    tj -= ti * across;
  }
  const Index top = ti * kProductTile, side = tj * kProductTile;
  const T* const A = a_data + item * a_item;
  const T* const B = b_data + item * b_item;
  const int lane = threadIdx.x % kProductTile, first = threadIdx.x / kProductTile;
  Index from = 0, to = k;
  if (kind == kTriangularFactor && upper) from = top;
  if (kind == kTriangularFactor && !upper && top + kProductTile < k) to = top + kProductTile;
  if (kind == kTriangularResult && side > top + kProductTile - 1) to = 0;
  T sums[kProductTile / kProductRows] = {};
  for (Index start = from; start < to; start += kProductTile) {
    for (int s = first; s < kProductTile; s += kProductRows) {
      {
        const int r = a_col == 1 ? s : lane, c = a_col == 1 ? lane : s;  // consecutive threads read consecutive addresses
        const Index i = top + r, at = start + c;
        const bool counts = i < m && at < k && (kind != kTriangularFactor || (upper ? at >= i : at <= i));
        left[r * kPadded + c] = counts ? A[i * a_row + at * a_col] : T(0);
      }
      {
        const int r = b_col == 1 ? lane : s, c = b_col == 1 ? s : lane;
        const Index j = side + r, at = start + c;
        right[r * kPadded + c] = j < n && at < k ? B[at * b_row + j * b_col] : T(0);
      }
    }
    __syncthreads();
    const int depth = to - start < kProductTile ? static_cast<int>(to - start) : kProductTile;
    for (int c = 0; c < depth; ++c) {
      const T other = right[lane * kPadded + c];
#pragma unroll
      for (int p = 0; p < kProductTile / kProductRows; ++p) sums[p] += left[(first + p * kProductRows) * kPadded + c] * other;
    }
    __syncthreads();
  }
  T* const C = c_data + item * c_item;
#pragma unroll
  for (int p = 0; p < kProductTile / kProductRows; ++p) {
    const Index i = top + first + p * kProductRows, j = side + lane;
    if (i >= m || j >= n) continue;
    const T value = static_cast<T>(alpha) * sums[p];
    if (kind == kSymmetricResult) {
      if (j > i) continue;
      C[i * c_row + j * c_col] = value;
      if (j < i) C[j * c_row + i * c_col] = value;
    } else {
      C[i * c_row + j * c_col] = kind == kTriangularResult && j > i ? T(0) : value;
    }
  }
}
