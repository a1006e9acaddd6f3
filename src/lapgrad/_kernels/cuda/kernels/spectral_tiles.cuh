// Code that the steps between the products of spectral gradients share: pairs of mirrored tiles, and passes over the
// rows of cotangents.
//
// A block of kTileThreads threads computes a pair of tiles, so that both are read and written along rows. Where a rule needs the
// largest entry of a whole item, only a block that has found equal values computes it, from the largest entries of the rows.
#pragma once
#include "spectral_products.cuh"

constexpr int kTile = 32, kTileThreads = 256;
constexpr int kTileRow = kTile + 1;  // numbers from one row of a tile to the next: odd, so that columns are read without bank conflicts

// A batch of matrices: address and strides; a null address if it is missing.
template <typename T>
struct Operand {
  const T* data;
  Index item, row, col;

  __device__ Matrix<const T> select(Index number) const { return {data + number * item, row, col}; }
};

// The pair of tiles of a block: rows `down` to down + 31 and columns `across` to across + 31, down <= across, and its mirror image.
struct TilePair {
  Index item;
  int down, across;

  // Blocks are numbered item by item. The matrices are n x n.
  __device__ TilePair(Index block, Index n) {
    const Index tiles = (n + kTile - 1) / kTile, pairs = tiles * (tiles + 1) / 2;
    item = block / pairs;
    find_block(static_cast<int>(block % pairs), across, down);
    down *= kTile;
    across *= kTile;
  }
};

// A pair of mirrored tiles of one matrix in shared memory, with the entries' places in the matrix as indices. Takes 2 x 32 x 33 numbers.
template <typename T>
struct MirroredTiles {
  T *above, *below;  // entries (i, j) with i <= j, and the others
  int down, across;

  __device__ MirroredTiles(T* memory, const TilePair& pair)
      : above(memory), below(memory + kTile * kTileRow), down(pair.down), across(pair.across) {}

  __device__ T& operator()(int i, int j) const {
    return i <= j ? above[(i - down) * kTileRow + j - across] : below[(i - across) * kTileRow + j - down];
  }

  // Reads both tiles from a row-major n x n matrix. The caller waits for the other threads.
  __device__ void load(const T* source, Index n) const {
    const int column = threadIdx.x % kTile;
    for (int r = threadIdx.x / kTile; r < kTile; r += kTileThreads / kTile) {
      if (down + r < n && across + column < n) above[r * kTileRow + column] = source[(down + r) * n + across + column];
      if (across + r < n && down + column < n) below[r * kTileRow + column] = source[(across + r) * n + down + column];
    }
  }

  // Writes both tiles; of a tile on the diagonal `above` has the entries i <= j, and `below` the others.
  __device__ void store(T* target, Index n) const {
    const int column = threadIdx.x % kTile;
    for (int r = threadIdx.x / kTile; r < kTile; r += kTileThreads / kTile) {
      if (down + r <= across + column && across + column < n)
        target[(down + r) * n + across + column] = above[r * kTileRow + column];
      if (across + r > down + column && across + r < n)
        target[(across + r) * n + down + column] = below[r * kTileRow + column];
    }
  }

  // Calls f(i, j) for this thread's entries i <= j. Neighbouring threads have neighbouring j.
  template <typename F>
  __device__ void each(Index n, F f) const {
    const int j = across + static_cast<int>(threadIdx.x) % kTile;
    for (int r = threadIdx.x / kTile; r < kTile; r += kTileThreads / kTile)
      if (down + r <= j && j < n) f(down + r, j);
  }
};

// Returns the largest absolute value of `count` numbers to all threads of the block; 0 for a null pointer.
template <typename T>
__device__ T max_of_item(const T* numbers, Index count, T* scratch, const Team<kTileThreads>& team) {
  T most = 0;
  if (numbers)
    for (Index i = team.rank; i < count; i += kTileThreads) most = absolute(numbers[i]) > most ? absolute(numbers[i]) : most;
  return max_team(most, scratch, team);
}

// Rows that one warp measures where there are many.
constexpr int kWarpRows = 8;

// The rows that a warp of a block of kTileThreads measures: 1, or kWarpRows where there are many.
struct RowShare {
  Index first, end;
  int share;

  __device__ RowShare(Index rows, Index wanted) : share(static_cast<int>(wanted)) {
    first = (static_cast<Index>(blockIdx.x) * (kTileThreads / 32) + threadIdx.x / 32) * share;
    end = first + share < rows ? first + share : rows;
  }
};

// target[i] := the largest absolute value of row i, for the rows of a warp, in a batch of matrices with `height` rows each. Lanes read
// along rows, or eight rows at a time where neighbours in a column are neighbours in memory.
template <typename T>
__device__ void measure_rows(T* target, const Operand<T>& A, const RowShare& own, Index height, Index columns, int lane) {
  const Index first = own.first, end = own.end;
  if (own.share != kWarpRows || A.col == 1 || A.row != 1) {
    for (Index row = first; row < end; ++row) {
      const Matrix<const T> of_item = A.select(row / height);
      T most = 0;
      for (Index c = lane; c < columns; c += 32) {
        const T size = absolute(of_item(row % height, c));
        most = size > most ? size : most;
      }
      most = max_lanes(most);
      if (lane == 0) target[row] = most;
    }
    return;
  }
  const Index row = first + lane % kWarpRows;
  const bool present = row < end;
  const Matrix<const T> of_item = A.select((present ? row : first) / height);
  T most = 0;
  for (Index c = lane / kWarpRows; present && c < columns; c += 32 / kWarpRows) {
    const T size = absolute(of_item(row % height, c));
    most = size > most ? size : most;
  }
  for (int distance = kWarpRows; distance < 32; distance *= 2) {
    const T other = __shfl_xor_sync(kAllLanes, most, distance);
    most = other > most ? other : most;
  }
  if (present && lane < kWarpRows) target[row] = most;
}

// target := diag(slope) W, row by row, where gradients reach the values alone; W has `columns` columns. Sets of equal neighbours
// among the values, `height` of them for each item, whose slopes differ are reported with code 1 if `checks`. Eight warps per block.
template <typename T>
__device__ void scale_by_slopes(T* target, const Operand<T>& W, const T* values, const T* slope, double tol, bool checks,
                                Index* failure, Index rows, Index height, Index columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index row = static_cast<Index>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const Index item = row / height, i = row % height;
  const Matrix<const T> source = W.select(item);
  const T factor = slope[row];
  for (Index c = lane; c < columns; c += 32) target[row * columns + c] = factor * source(i, c);
  if (!checks || i == 0) return;
  const T first = absolute(values[item * height]), last = absolute(values[item * height + height - 1]);
  const Gaps<T> gaps(kMask, first > last ? first : last, T(tol));
  const T jump = absolute(factor - slope[row - 1]);
  if (!gaps.is_tied(absolute(values[row] - values[row - 1])) || jump == T(0)) return;
  T most = 0;
  for (Index j = lane; j < height; j += 32) {
    const T size = absolute(slope[item * height + j]);
    most = size > most ? size : most;
  }
  most = max_lanes(most);
  if (lane == 0 && jump > unevenness_threshold<T>() * most) report_failure(failure, item, 1);
}
