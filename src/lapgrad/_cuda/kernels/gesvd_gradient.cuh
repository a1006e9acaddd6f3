// The middle of the gradient of a singular value decomposition A = U' diag(S) V, as gesvd_vjp_batch.cu says it: from gU U' and
// gV V' to G, and whether the loss tells apart what A does not determine.
#pragma once
#include "spectral_products.cuh"

template <typename T>
struct Weights {
  const T *s, *slope;             // values and their cotangents
  const T *row_most_u, *row_most_v;  // the largest entry of each row of gU and gV; null where those are
  T allowed, allowed_slope, relative;
  Gaps<T> gaps;
  bool wide, checks;

  // most, most_slope: the largest entries of gU and gV, and of gS.
  __device__ Weights(const T* values, const T* slopes, const T* most_u, const T* most_v, T most, T most_slope, int policy,
                     T tol, bool is_wide)
      : s(values), slope(slopes), row_most_u(most_u), row_most_v(most_v), allowed(uneven_from<T>() * most),
        allowed_slope(uneven_from<T>() * most_slope), gaps(policy, values[0], tol), wide(is_wide), checks(policy != kNan) {
    const T by_vectors = s[0] > T(0) ? allowed / s[0] : T(0);
    relative = allowed_slope > by_vectors ? allowed_slope : by_vectors;
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
    const T si = s[i], sj = s[j], inverse_i = wide ? gaps.inverse(si) : T(0);
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
    G(i, j) = turn_u * above - turn_v * below - (wide ? inverse_i * Y(i, j) : T(0));
    G(j, i) = turn_v * above - turn_u * below - (wide ? gaps.inverse(sj) * Y(j, i) : T(0));
    return ambiguous;
  }
};
