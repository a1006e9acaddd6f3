// Triangles of large matrices: mirroring, zeroing, and the inverses of diagonal blocks.
#include "block.cuh"

constexpr int kTile = 32;
constexpr int kTileRows = 8;  // threads (32, 8): each moves four rows of a tile

// Which tile (i, j), i >= j, of a triangle of tiles the block with this number has.
__device__ inline void tile_of(Index number, Index& i, Index& j) {
  i = static_cast<Index>((sqrt(8.0 * static_cast<double>(number) + 1.0) - 1.0) * 0.5);
  while ((i + 1) * (i + 2) / 2 <= number) ++i;
  while (i * (i + 1) / 2 > number) --i;
  j = number - i * (i + 1) / 2;
}

// What becomes of a pair (a_ij, a_ji), i > j.
constexpr int kMirrorDown = 0;  // the upper one goes to both: a symmetric matrix from its upper triangle
constexpr int kMirrorUp = 1;    // the lower one goes to both
constexpr int kMoveDown = 2;    // the upper one goes to the lower place, and is replaced by 0
constexpr int kClearUpper = 3;  // the upper one becomes 0
constexpr int kAverage = 4;     // both become their mean

// In place; one block of 32 x 8 threads has one pair of tiles. grid = (tiles (tiles + 1) / 2, items).
// Memory of a block: two tiles of 32 x 33.
template <typename T, int kind>
__global__ void reshape_triangle(T* data, Index item, Index row, Index n) {
  T* const below = shared_memory<T>();
  T* const above = below + kTile * (kTile + 1);
  Index ti, tj;
  tile_of(blockIdx.x, ti, tj);
  const Matrix<T> A{data + blockIdx.y * item, row, 1};
  const int column = threadIdx.x % kTile, first = threadIdx.x / kTile;
  for (int r = first; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;  // of the lower tile
    if (i < n && j < n) below[r * (kTile + 1) + column] = A(i, j);
    const Index p = tj * kTile + r, q = ti * kTile + column;  // of the upper tile
    if (p < n && q < n) above[r * (kTile + 1) + column] = A(p, q);
  }
  __syncthreads();
  for (int r = first; r < kTile; r += kTileRows) {
    const Index i = ti * kTile + r, j = tj * kTile + column;
    if (i < n && j < n && i > j) {
      const T own = below[r * (kTile + 1) + column], other = above[column * (kTile + 1) + r];
      if constexpr (kind == kMirrorDown || kind == kMoveDown) A(i, j) = other;
      if constexpr (kind == kAverage) A(i, j) = (own + other) / 2;
    }
    const Index p = tj * kTile + r, q = ti * kTile + column;
    if (p < n && q < n && q > p) {
      const T own = above[r * (kTile + 1) + column], other = below[column * (kTile + 1) + r];
      if constexpr (kind == kMirrorUp) A(p, q) = other;
      if constexpr (kind == kMoveDown || kind == kClearUpper) A(p, q) = 0;
      if constexpr (kind == kAverage) A(p, q) = (own + other) / 2;
    }
  }
}

// W := L^-1 for every diagonal block of order `size` <= 64 of every item; the rest of W is not touched.
// grid = (blocks, items); 64 threads: thread j solves for column j, w_j = L^-1 e_j, row by row:
//     w_ij = ([i == j] - sum_{j <= k < i} l_ik w_kj) / l_ii
// Memory of a block: L and W, 64 x 65 each (padded: thread j walks down column j). A last block that is cut off by n is completed by the identity.
constexpr int kLeaf = 64;

template <typename T>
__global__ void invert_diagonal_blocks(const T* L, Index l_item, Index l_row, Index l_col, T* W, Index w_item,
                                       Index w_row, Index w_block, Index n) {
  T* const factor = shared_memory<T>();
  T* const inverse = factor + kLeaf * (kLeaf + 1);
  const Index start = static_cast<Index>(blockIdx.x) * kLeaf;
  const int size = static_cast<int>(n - start < kLeaf ? n - start : kLeaf), j = threadIdx.x;
  const Matrix<const T> source{L + blockIdx.y * l_item + start * (l_row + l_col), l_row, l_col};
  const Matrix<T> target{W + blockIdx.y * w_item + blockIdx.x * w_block, w_row, 1};
  for (int i = 0; i < size; ++i)
    if (j <= i) factor[i * (kLeaf + 1) + j] = source(i, j);
  __syncthreads();
  if (j < size) {
    for (int i = 0; i < j; ++i) inverse[i * (kLeaf + 1) + j] = 0;
    for (int i = j; i < size; ++i) {
      T rest = i == j ? T(1) : T(0);
      for (int k = j; k < i; ++k) rest -= factor[i * (kLeaf + 1) + k] * inverse[k * (kLeaf + 1) + j];
      inverse[i * (kLeaf + 1) + j] = rest / factor[i * (kLeaf + 1) + i];
    }
  }
  __syncthreads();
  for (int i = 0; i < kLeaf; ++i) {
    const T inside = i < size && j < size ? inverse[i * (kLeaf + 1) + j] : T(i == j);
    if (start + i < n && start + j < n) target(i, j) = inside;
  }
}
