// The steps between the products of the gradient of eigenvalues and eigenvectors, for matrices that are too large for
// syevd_vjp_batch.cu, which has the formulas: from P = gU U' to the middle matrix M of gA = U' M U.
#include "spectral_tiles.cuh"

// given[row], moved[row] := the largest entries of the rows of gU and of P, which is contiguous. Eight warps per block, each with
// `share` rows.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    measure(T* given, T* moved, const T* gU, Index g_item, Index g_row, Index g_col, const T* P, Index share,
            Index rows, Index n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RowShare own(rows, share);
  if (own.first >= rows) return;
  measure_rows(given, Operand<T>{gU, g_item, g_row, g_col}, own, n, n, lane);
  measure_rows(moved, Operand<T>{P, n * n, n, 1}, own, n, n, lane);
}

// Replaces P by M. given, moved: see measure. slope may be null. An item on which the loss depends on vectors that the matrix does not
// determine is reported with code 1. One block per pair of tiles.
// Shared memory: 2 x 32 x 33 + 8 numbers.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    weigh(T* P, const T* given, const T* moved, const T* eigenvalues, const T* slope, Index policy, double tol,
          Index* failure, Index n) {
  const Team<kTileThreads> team{static_cast<int>(threadIdx.x)};
  const TilePair pair(blockIdx.x, n);
  T* const memory = shared_memory<T>();
  const MirroredTiles<T> M(memory, pair);
  T* const scratch = memory + 2 * kTile * kTileRow;
  const T* const lambda = eigenvalues + pair.item * n;
  const T* const step = slope ? slope + pair.item * n : nullptr;
  const T* const sizes = given + pair.item * n;
  const T lowest = absolute(lambda[0]), highest = absolute(lambda[n - 1]);
  const Gaps<T> gaps(static_cast<int>(policy), lowest > highest ? lowest : highest, T(tol));
  const T close = close_gap<T>() * gaps.scale, units = rounding_units<T>(static_cast<double>(n));

  M.load(P + pair.item * n * n, n);
  team.wait();
  T skew = 0, jump = 0;
  M.each(n, [&](int i, int j) {
    if (i == j) {
      M(i, i) = step ? step[i] : T(0);
      return;
    }
    const T gap = lambda[j] - lambda[i], difference = M(j, i) - M(i, j);
    const T change = step ? step[j] - step[i] : T(0);
    if (gaps.is_tied(gap)) {
      skew = absolute(difference) > skew ? absolute(difference) : skew;
      jump = absolute(change) > jump ? absolute(change) : jump;
    }
    const bool discarded = gaps.policy == kMask && gap < close &&
                           is_only_rounding(difference, units * (sizes[i] + sizes[j]), gap, close, change);
    M(i, j) = M(j, i) = discarded ? T(0) : T(0.5) * difference * gaps.invert(gap);
  });
  team.wait();
  M.store(P + pair.item * n * n, n);
  if (!team.any(skew > T(0) || jump > T(0))) return;
  const T allowed = unevenness_threshold<T>();
  const T most = max_of_item(moved + pair.item * n, n, scratch, team), most_slope = max_of_item(step, n, scratch, team);
  if (skew > allowed * most || jump > allowed * most_slope) report_failure(failure, pair.item, 1);
}

// target := diag(slope) U: the gradient where only eigenvalues have cotangents is U' target. Eight warps per block, one per row.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    scale_rows(T* target, const T* U, Index u_item, Index u_row, Index u_col, const T* eigenvalues, const T* slope,
               double tol, Index* failure, Index rows, Index n) {
  scale_by_slopes(target, Operand<T>{U, u_item, u_row, u_col}, eigenvalues, slope, tol, true, failure, rows, n, n);
}

// The upper triangle of each item of A (contiguous, n x n) := the transposed lower one: rounding breaks the symmetry of a product. One
// block per pair of tiles.
// Shared memory: 32 x 33 numbers.
template <typename T>
__global__ void __launch_bounds__(kTileThreads) mirror(T* A, Index n) {
  const TilePair pair(blockIdx.x, n);
  T* const tile = shared_memory<T>();
  T* const matrix = A + pair.item * n * n;
  const int column = threadIdx.x % kTile;
  for (int r = threadIdx.x / kTile; r < kTile; r += kTileThreads / kTile)
    if (pair.across + r < n && pair.down + column < n)
      tile[r * kTileRow + column] = matrix[(pair.across + r) * n + pair.down + column];
  __syncthreads();
  for (int r = threadIdx.x / kTile; r < kTile; r += kTileThreads / kTile) {
    const int i = pair.down + r, j = pair.across + column;
    if (i < j && j < n) matrix[i * n + j] = tile[column * kTileRow + r];
  }
}
