// The steps between the products of the gradient of a singular value decomposition, for matrices that are too large for
// gesvd_vjp_batch.cu, which has the formulas: from gU U' and Y = gV V' to the middle matrix G.
#include "gesvd_gradient.cuh"
#include "spectral_tiles.cuh"

// Returns, to all lanes of a warp, whether row i of gV has a part outside the span of the rows of V that is more than rounding errors.
// most: the largest entry of the row. Mostly a comparison of lengths shows that it has.
template <typename T>
__device__ bool has_part_outside(const Matrix<const T>& gV, const Matrix<const T>& V, const T* Y, Index i, T most, T noise,
                                 Index k, Index n, int lane) {
  T all = 0, inside = 0;
  for (Index c = lane; c < n; c += 32) all += gV(i, c) / most * (gV(i, c) / most);
  for (Index j = lane; j < k; j += 32) inside += Y[i * k + j] / most * (Y[i * k + j] / most);
  all = sum_lanes(all);
  inside = sum_lanes(inside);
  if (all - inside > unevenness_threshold<T>() * all) return true;
  bool outside = false;
  for (Index c = lane; c < n; c += 32) {
    T rest = gV(i, c);
    for (Index j = 0; j < k; ++j) rest -= Y[i * k + j] * V(j, c);
    outside = outside || !(absolute(rest) < noise);
  }
  return __any_sync(kAllLanes, outside) != 0;
}

// most_u[row], most_v[row] := the largest entries of the rows of gU and gV, where those are not null. For a wide matrix with gV,
// inner := diag(inverse) gV, contiguous, and inverse[row] := what replaces 1 / S there: 0 if the row has only rounding errors outside
// the span of the rows of V. inverse and inner are null otherwise. Eight warps per block, each with `share` rows.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    measure(T* most_u, T* most_v, T* inverse, T* inner, const T* Y, const T* S, const T* gS, const T* gU, Index gu_item,
            Index gu_row, Index gu_col, const T* gV, Index gv_item, Index gv_row, Index gv_col, const T* V, Index v_item,
            Index v_row, Index v_col, Index policy, double tol, Index share, Index rows, Index k, Index n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RowShare own(rows, share);
  if (own.first >= rows) return;
  const Operand<T> of_v{gV, gv_item, gv_row, gv_col};
  if (gU) measure_rows(most_u, Operand<T>{gU, gu_item, gu_row, gu_col}, own, k, k, lane);
  if (gV) measure_rows(most_v, of_v, own, k, n, lane);
  if (!inverse) return;
  __syncwarp();
  for (Index row = own.first; row < own.end; ++row) {
    const Index item = row / k, i = row % k;
    const Gaps<T> gaps(static_cast<int>(policy), S[item * k], T(tol));
    const Matrix<const T> given = of_v.select(item), right = Operand<T>{V, v_item, v_row, v_col}.select(item);
    const T value = S[row], noise = rounding_units<T>(static_cast<double>(n)) * most_v[row];
    const bool suspect = gaps.policy == kMask && is_only_rounding(T(0), noise, value, close_gap<T>() * S[item * k], gS ? gS[row] : T(0));
    const bool counts = !suspect || has_part_outside(given, right, Y + item * k * k, i, most_v[row], noise, k, n, lane);
    const T factor = counts ? gaps.invert(value) : T(0);
    if (lane == 0) inverse[row] = factor;
    for (Index c = lane; c < n; c += 32) inner[row * n + c] = factor * given(i, c);
  }
}

// Replaces G (k x k, contiguous), which holds gU U' unless gU is null (most_u is then null, too), by the middle matrix. Y: gV V',
// contiguous, or null with gV. An item on which the loss depends on vectors that A does not determine is reported with code 1. One
// block per pair of tiles.
// Shared memory: 4 x 32 x 33 + 8 numbers.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    weigh(T* G, const T* Y, const T* most_u, const T* most_v, const T* inverse, const T* S, const T* gS, const T* gV,
          Index gv_item, Index gv_row, Index gv_col, const T* V, Index v_item, Index v_row, Index v_col, Index policy,
          double tol, Index* failure, Index height, Index width) {
  const Team<kTileThreads> team{static_cast<int>(threadIdx.x)};
  const int k = static_cast<int>(height);
  const TilePair pair(blockIdx.x, height);
  T* const memory = shared_memory<T>();
  const MirroredTiles<T> middle(memory, pair), moved(memory + 2 * kTile * kTileRow, pair);
  T* const scratch = memory + 4 * kTile * kTileRow;
  const Index item = pair.item, start = item * height;
  const T* const s = S + start;
  const T* const slope = gS ? gS + start : nullptr;
  const T* const rows_u = most_u ? most_u + start : nullptr;
  const T* const rows_v = most_v ? most_v + start : nullptr;

  if (most_u) middle.load(G + start * height, height);
  if (most_v) moved.load(Y + start * height, height);
  team.wait();
  const Gaps<T> gaps(static_cast<int>(policy), s[0], T(tol));
  bool tied = pair.down == pair.across && s[k - 1] <= gaps.threshold;
  middle.each(height, [&](int i, int j) { tied = tied || (i < j && gaps.is_tied(s[i] - s[j])); });
  T most = 0, most_slope = 0;  // of the item, needed only for the check at equal values and zeros
  if (team.any(tied)) {
    const T of_u = max_of_item(rows_u, height, scratch, team), of_v = max_of_item(rows_v, height, scratch, team);
    most = of_u > of_v ? of_u : of_v;
    most_slope = max_of_item(slope, height, scratch, team);
  }
  const Weights<T> weights(s, slope, rows_u, rows_v, inverse ? inverse + start : nullptr, most, most_slope,
                           static_cast<int>(policy), T(tol), k, static_cast<int>(width));
  bool ambiguous = false;
  middle.each(height, [&](int i, int j) { ambiguous = weights.combine(middle, moved, i, j) || ambiguous; });
  team.wait();
  middle.store(G + start * height, height);
  if (weights.wide && weights.checks && pair.down == pair.across) {
    // A does not determine vectors that belong to zeros, so the part of gV outside the span of the rows of V must be zero.
    const Matrix<const T> given = Operand<T>{gV, gv_item, gv_row, gv_col}.select(item);
    const Matrix<const T> right = Operand<T>{V, v_item, v_row, v_col}.select(item);
    const int last = pair.down + kTile < k ? pair.down + kTile : k;
    for (int i = last - 1; i >= pair.down && s[i] <= gaps.threshold; --i)
      for (Index c = team.rank; c < width; c += kTileThreads) {
        T inside = 0;
        for (int j = 0; j < k; ++j) inside += Y[(start + i) * height + j] * right(j, c);
        ambiguous = ambiguous || absolute(given(i, c) - inside) > weights.threshold_for_zeros(rows_v, i, i);
      }
  }
  if (ambiguous) report_failure(failure, item, 1);
}

// target := diag(gS) V: the gradient where only singular values have cotangents is U' target. Eight warps per block, one per row.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    scale_rows(T* target, const T* V, Index v_item, Index v_row, Index v_col, const T* S, const T* gS, Index policy,
               double tol, Index* failure, Index rows, Index k, Index n) {
  scale_by_slopes(target, Operand<T>{V, v_item, v_row, v_col}, S, gS, tol, policy != kNan, failure, rows, k, n);
}
