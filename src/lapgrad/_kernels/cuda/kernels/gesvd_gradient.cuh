// The middle matrix G of the gradient of A = U' diag(S) V, computed from gU U' and gV V' (formulas in gesvd_vjp_batch.cu), and the
// check whether the loss depends on vectors that A does not determine.
#pragma once
#include "spectral_products.cuh"

// The values of one item, and the thresholds for its entries.
template <typename T>
struct Weights {
  const T *s, *slope;                // values and their cotangents; slope may be null
  const T *row_most_u, *row_most_v;  // the largest entry of each row of gU and gV; null where those are
  const T* inverse;                  // what replaces 1 / S, for a wide matrix
  T allowed, allowed_slope, relative;
  T units_u, units_v, close;  // see is_only_rounding
  Gaps<T> gaps;
  bool wide, checks;

  // most, most_slope: the largest entries of gU and gV, and of gS. gV has `width` columns, gU `height`.
  __device__ Weights(const T* values, const T* slopes, const T* most_u, const T* most_v, const T* inverses, T most,
                     T most_slope, int policy, T tol, int height, int width)
      : s(values), slope(slopes), row_most_u(most_u), row_most_v(most_v), inverse(inverses),
        allowed(unevenness_threshold<T>() * most), allowed_slope(unevenness_threshold<T>() * most_slope), units_u(rounding_units<T>(height)),
        units_v(rounding_units<T>(width)), close(close_gap<T>() * values[0]), gaps(policy, values[0], tol),
        wide(height < width && most_v), checks(policy != kNan) {
    const T by_vectors = s[0] > T(0) ? allowed / s[0] : T(0);
    relative = allowed_slope > by_vectors ? allowed_slope : by_vectors;
  }

  __device__ T slope_of(int i) const { return slope ? slope[i] : T(0); }

  // Returns the rounding error bound of row i of gU U' and gV V' together.
  __device__ T noise(int i) const {
    return (row_most_u ? units_u * row_most_u[i] : T(0)) + (row_most_v ? units_v * row_most_v[i] : T(0));
  }

  // For a wide matrix, target[i] (the memory of `inverse`) := the replacement of 1 / s[i] for the part of gV outside the span of the
  // rows of V; 0 if row i of gV has only rounding errors there. The team starts with the smallest value. For most rows a comparison
  // of lengths shows that they have more. `marks` is a workspace with a number per row.
  template <typename Right, typename Given, typename Vectors, int threads>
  __device__ void invert_values(T* target, T* marks, const Right& Y, const Given& gV, const Vectors& V, int k, Index n,
                                const Team<threads>& team) const {
    if (!wide) return;
    for (int i = team.rank; i < k; i += threads) {
      target[i] = gaps.invert(s[i]);
      marks[i] = 0;
      const T most = row_most_v[i];
      if (gaps.policy != kMask || !is_only_rounding(T(0), units_v * most, s[i], close, slope_of(i))) continue;
      T all = 0, inside = 0;
      for (Index c = 0; c < n; ++c) all += gV(i, c) / most * (gV(i, c) / most);
      for (int j = 0; j < k; ++j) inside += Y(i, j) / most * (Y(i, j) / most);
      marks[i] = all - inside > unevenness_threshold<T>() * all ? T(0) : T(1);
    }
    team.wait();
    for (int i = k - 1; i >= 0 && team.any_around(s[i] < close); --i) {
      if (!team.any_around(marks[i] != T(0))) continue;
      bool outside = false;
      for (Index c = team.rank; c < n; c += threads) {
        T rest = gV(i, c);
        for (int j = 0; j < k; ++j) rest -= Y(i, j) * V(j, c);
        outside = outside || !(absolute(rest) < units_v * row_most_v[i]);
      }
      outside = team.any(outside);
      if (!outside && marks[i] != T(0) && team.rank == 0) target[i] = 0;
    }
    team.wait();
  }

  // Returns how large an entry of rows i and j of gU or gV, which belong to zeros, has to be so that the loss is said to depend on it.
  // In a loss that uses S and the vectors, such as a reconstruction, these cotangents are proportional to the rounding errors in
  // the zeros; so the threshold is relative to the computed value, and to the largest entry of the rows.
  __device__ T threshold_for_zeros(const T* row_most, int i, int j) const {
    const T of_rows = unevenness_threshold<T>() * (row_most[i] > row_most[j] ? row_most[i] : row_most[j]);
    const T least = s[i] * relative > of_rows ? s[i] * relative : of_rows;
    return least < allowed ? least : allowed;
  }

  // Replaces G(i, j) and G(j, i), i <= j, which hold entries of gU U'; Y holds gV V'. Returns whether the loss has no derivative.
  template <typename Left, typename Right>
  __device__ bool combine(const Left& G, const Right& Y, int i, int j) const {
    const T si = s[i], sj = s[j], inverse_i = wide ? inverse[i] : T(0);
    if (i == j) {
      G(i, i) = slope_of(i) - (wide ? inverse_i * Y(i, i) : T(0));
      return false;
    }
    const T gap = si - sj, F = gaps.invert(gap);
    const bool tie = gaps.is_tied(gap), null = checks && si <= gaps.threshold;
    const T turn_u = row_most_u ? G(i, j) - G(j, i) : T(0), turn_v = row_most_v ? Y(i, j) - Y(j, i) : T(0);
    const T rest = gaps.policy == kNan ? T(0) : gaps.policy == kMask ? (tie ? T(0.5) : T(0)) : T(0.5) * (T(1) - F * gap);
    const T scale = null ? T(0) : T(1) / (si + sj);
    const T above = (F * sj - rest) * scale, below = -(F * si + rest) * scale;
    bool ambiguous = false;
    if (checks && tie) {
      const bool one_side = null && ((row_most_u && absolute(turn_u) > threshold_for_zeros(row_most_u, i, j)) ||
                                     (row_most_v && absolute(turn_v) > threshold_for_zeros(row_most_v, i, j)));
      const bool turned = null ? one_side : absolute(turn_u + turn_v) > allowed;
      ambiguous = turned || absolute(slope_of(i) - slope_of(j)) > allowed_slope;
    }
    T upper = turn_u * above - turn_v * below, lower = turn_v * above - turn_u * below;
    if (gaps.policy == kMask && !null && gap < close) {
      // With u = turn_u and v = turn_v, upper is 1/2 [(u + v) / gap - (u - v) / (si + sj)]. A quotient whose numerator is only
      // rounding is dropped.
      const T both = noise(i) + noise(j);
      const bool drops_difference = tie || is_only_rounding(turn_u + turn_v, both, gap, close, slope_of(i) - slope_of(j));
      const bool drops_sum = is_only_rounding(turn_u - turn_v, both, si + sj, close, slope_of(i) + slope_of(j));
      if (drops_difference || drops_sum) {
        const T by_gap = drops_difference ? T(0) : T(0.5) * (turn_u + turn_v) * F;
        const T by_sum = drops_sum ? T(0) : T(0.5) * (turn_u - turn_v) * scale;
        upper = by_gap - by_sum;
        lower = by_gap + by_sum;
      }
    }
    G(i, j) = upper - (wide ? inverse_i * Y(i, j) : T(0));
    G(j, i) = lower - (wide ? inverse[j] * Y(j, i) : T(0));
    return ambiguous;
  }
};
