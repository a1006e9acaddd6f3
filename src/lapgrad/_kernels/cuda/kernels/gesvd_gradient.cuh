// The middle of the gradient of a singular value decomposition A = U' diag(S) V, as gesvd_vjp_batch.cu says it: from gU U' and
// gV V' to G, and whether the loss tells apart what A does not determine.
#pragma once
#include "spectral_products.cuh"

template <typename T>
struct Weights {
  const T *s, *slope;             // values and their cotangents
  const T *row_most_u, *row_most_v;  // the largest entry of each row of gU and gV; null where those are
  const T* inverse;                  // what stands for 1 / S, of a wide matrix
  T allowed, allowed_slope, relative;
  T units_u, units_v, close;  // see only_rounding
  Gaps<T> gaps;
  bool wide, checks;

  // most, most_slope: the largest entries of gU and gV, and of gS. gV has `width` columns, gU `height`.
  __device__ Weights(const T* values, const T* slopes, const T* most_u, const T* most_v, const T* inverses, T most,
                     T most_slope, int policy, T tol, int height, int width)
      : s(values), slope(slopes), row_most_u(most_u), row_most_v(most_v), inverse(inverses),
        allowed(uneven_from<T>() * most), allowed_slope(uneven_from<T>() * most_slope), units_u(rounding_units<T>(height)),
        units_v(rounding_units<T>(width)), close(close_gap<T>() * values[0]), gaps(policy, values[0], tol),
        wide(height < width && most_v), checks(policy != kNan) {
    const T by_vectors = s[0] > T(0) ? allowed / s[0] : T(0);
    relative = allowed_slope > by_vectors ? allowed_slope : by_vectors;
  }

  // How far the entries of row i of gU U' and gV V' together may be off by rounding.
  __device__ T noise(int i) const {
    return (row_most_u ? units_u * row_most_u[i] : T(0)) + (row_most_v ? units_v * row_most_v[i] : T(0));
  }

  // Sets target[i], which is `inverse`, to what stands for 1 / s[i] in the part of the gradient out of the rows of V, if the matrix
  // is wide: 0 where row i of gV has only rounding there. The team goes from the smallest value up. Lengths tell of most rows
  // that they have more; `marks` has room for a number per row.
  template <typename Right, typename Given, typename Vectors, int threads>
  __device__ void invert_values(T* target, T* marks, const Right& Y, const Given& gV, const Vectors& V, int k, Index n,
                                const Team<threads>& team) const {
    if (!wide) return;
    for (int i = team.rank; i < k; i += threads) {
      target[i] = gaps.inverse(s[i]);
      marks[i] = 0;
      const T most = row_most_v[i];
      if (gaps.policy != kMask || !only_rounding(T(0), units_v * most, s[i], close, slope[i])) continue;
      T all = 0, inside = 0;
      for (Index c = 0; c < n; ++c) all += gV(i, c) / most * (gV(i, c) / most);
      for (int j = 0; j < k; ++j) inside += Y(i, j) / most * (Y(i, j) / most);
      marks[i] = all - inside > uneven_from<T>() * all ? T(0) : T(1);
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

  // How large cotangents of vectors of zeros have to be to count. In a loss that goes through S and the vectors, such as a
  // reconstruction, they are as small as what is left of S: it is relative to that, and to their rows.
  __device__ T of_zeros(const T* row_most, int i, int j) const {
    const T of_rows = uneven_from<T>() * (row_most[i] > row_most[j] ? row_most[i] : row_most[j]);
    const T least = s[i] * relative > of_rows ? s[i] * relative : of_rows;
    return least < allowed ? least : allowed;
  }

  // G(i, j) and G(j, i), i <= j, which hold gU U' before; Y holds gV V'. Returns whether the loss has no derivative.
  template <typename Left, typename Right>
  __device__ bool take(const Left& G, const Right& Y, int i, int j) const {
    const T si = s[i], sj = s[j], inverse_i = wide ? inverse[i] : T(0);
    if (i == j) {
      G(i, i) = slope[i] - (wide ? inverse_i * Y(i, i) : T(0));
      return false;
    }
    const T gap = si - sj, F = gaps.inverse(gap);
    const bool tie = gaps.tied(gap), null = checks && si <= gaps.threshold;
    const T turn_u = row_most_u ? G(i, j) - G(j, i) : T(0), turn_v = row_most_v ? Y(i, j) - Y(j, i) : T(0);
    const T rest = gaps.policy == kNan ? T(0) : gaps.policy == kMask ? (tie ? T(0.5) : T(0)) : T(0.5) * (T(1) - F * gap);
    const T scale = null ? T(0) : T(1) / (si + sj);
    const T above = (F * sj - rest) * scale, below = -(F * si + rest) * scale;
    bool ambiguous = false;
    if (checks && tie) {
      const bool one_side = null && ((row_most_u && absolute(turn_u) > of_zeros(row_most_u, i, j)) ||
                                     (row_most_v && absolute(turn_v) > of_zeros(row_most_v, i, j)));
      const bool turned = null ? one_side : absolute(turn_u + turn_v) > allowed;
      ambiguous = turned || absolute(slope[i] - slope[j]) > allowed_slope;
    }
    T upper = turn_u * above - turn_v * below, lower = turn_v * above - turn_u * below;
    if (gaps.policy == kMask && !null && gap < close) {
      // With u and v for both turns, upper is 1/2 [(u + v) / gap - (u - v) / (si + sj)]: a numerator that is only rounding
      // leaves the other quotient.
      const T both = noise(i) + noise(j);
      const bool unturned = tie || only_rounding(turn_u + turn_v, both, gap, close, slope[i] - slope[j]);
      const bool unparted = only_rounding(turn_u - turn_v, both, si + sj, close, slope[i] + slope[j]);
      if (unturned || unparted) {
        const T turning = unturned ? T(0) : T(0.5) * (turn_u + turn_v) * F;
        const T parting = unparted ? T(0) : T(0.5) * (turn_u - turn_v) * scale;
        upper = turning - parting;
        lower = turning + parting;
      }
    }
    G(i, j) = upper - (wide ? inverse_i * Y(i, j) : T(0));
    G(j, i) = lower - (wide ? inverse[j] * Y(j, i) : T(0));
    return ambiguous;
  }
};
