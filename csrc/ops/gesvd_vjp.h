// The gradient of singular value decompositions A = U' diag(S) V (gesvd.h).
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "base/gaps.h"
#include "ops/gemm.h"
#include "ops/gesvd.h"

namespace lapgrad {

// The singular values of one item, and what the policy makes of their reciprocals and gaps.
template <class T>
struct Spectrum {
    View<const T> S;
    Degeneracy policy;
    T largest;
    T small;  // gaps and values up to this count as 0
    T close;  // see close_gap

    Spectrum(View<const T> values, Degeneracy how, T tol)
        : S(values), policy(how), largest(values(0, 0)),
          small(std::max(tol * (values(0, 0) == T(0) ? T(1) : values(0, 0)), std::numeric_limits<T>::min())),
          close(close_gap<T> * values(0, 0)) {}

    bool is_zero(index_t i) const { return S(0, i) <= small; }
    bool has_ties() const {
        for (index_t i = 1; i < S.cols; ++i)
            if (S(0, i - 1) - S(0, i) <= small) return true;
        return false;
    }
    // Whether some gap, or some value, is so small that entries may have to be discarded as rounding.
    bool may_discard() const {
        if (policy != Degeneracy::mask) return false;
        bool some = S(0, S.cols - 1) < close;
        for (index_t i = 1; i < S.cols; ++i) some |= S(0, i - 1) - S(0, i) < close;
        return some;
    }
    // Whether the short formula applies: no gap is replaced by the policy, and the products (S_i - S_j) (S_i + S_j) neither
    // overflow nor underflow.
    bool is_untied_and_moderate() const {
        const bool moderate = largest < std::sqrt(std::numeric_limits<T>::max()) / 4 &&
                              small > std::sqrt(std::numeric_limits<T>::min()) * 4;
        return moderate && (policy == Degeneracy::mask || policy == Degeneracy::nan) && !has_ties();
    }
    // Returns the replacement of 1 / s.
    T invert(T s) const {
        if (policy == Degeneracy::nan) return T(1) / s;
        if (policy == Degeneracy::clamp) return T(1) / std::max(s, small);
        if (policy == Degeneracy::mask) return s > small ? T(1) / s : T(0);
        const T unit = std::max(largest, small), t = s / unit, e = small / unit;
        return t / (t * t + e * e) / unit;
    }
    // above, below := C_ij, C_ji for i < j: C_ij = [F S_j - (1 - F gap) / 2] / (S_i + S_j) with F the replacement of 1 / gap; 0 for
    // two zeros.
    void find_coefficients(index_t i, index_t j, T& above, T& below) const {
        const T si = S(0, i), sj = S(0, j), gap = si - sj;
        if (policy != Degeneracy::nan && si <= small) {
            above = below = T(0);
            return;
        }
        const T scale = T(1) / (si + sj), F = invert(gap);
        T rest = T(0);
        if (policy == Degeneracy::mask)
            rest = gap > small ? T(0) : T(0.5);
        else if (policy != Degeneracy::nan)
            rest = T(0.5) * (T(1) - F * gap);
        above = (F * sj - rest) * scale;
        below = -(F * si + rest) * scale;
    }
};

// How large an entry has to be so that the loss is said to depend on it. In a loss that uses S and the vectors, such as a
// reconstruction, the cotangents of vectors that belong to zeros are proportional to the rounding errors in those zeros; so their
// threshold is relative to the computed value, and to the largest entry of their row.
template <class T>
struct CotangentThresholds {
    const SvdGradient<T>& g;
    index_t item;
    T root_eps, vectors, values, slope;

    CotangentThresholds(const SvdGradient<T>& gradient, index_t b, T largest)
        : g(gradient), item(b), root_eps(std::sqrt(std::numeric_limits<T>::epsilon())) {
        const T most = std::max(g.gU.data ? find_largest_entry<T>(g.gU[b]) : T(0), g.gV.data ? find_largest_entry<T>(g.gV[b]) : T(0));
        vectors = root_eps * most;
        values = g.gS.data ? root_eps * find_largest_entry<T>(g.gS[b]) : T(0);
        slope = std::max(values, largest > T(0) ? vectors / largest : T(0));
    }
    // The threshold for rows i and j of gU or gV, which belong to zeros.
    T for_zeros(const Batch<const T>& cotangent, index_t i, index_t j, T value) const {
        if (!cotangent.data) return vectors;
        const auto most = [rows = cotangent[item]](index_t row) {
            return find_largest_entry<T>(rows.block(row, 0, 1, rows.cols));
        };
        return std::min(vectors, std::max(value * slope, root_eps * std::max(most(i), most(j))));
    }
};

// Whether the loss depends on vectors that A does not determine. X = gU U', Y = gV V'. Vectors of equal singular values may be
// rotated, those of U and V together; vectors of zeros may be rotated separately, and in a wide A also out of the rows of V.
template <class T>
bool is_ambiguous(const SvdGradient<T>& g, index_t b, const Spectrum<T>& spectrum, View<const T> X, View<const T> Y) {
    const index_t k = X.rows, n = g.V.cols;
    const bool left = g.gU.data, right = g.gV.data, values = g.gS.data;
    const bool checks_outside = right && g.U.cols < n && spectrum.is_zero(k - 1);
    if (spectrum.policy == Degeneracy::nan || !(spectrum.has_ties() || checks_outside)) return false;
    const CotangentThresholds<T> thresholds(g, b, spectrum.largest);
    for (index_t i = 0; i < k; ++i)
        for (index_t j = i + 1; j < k && spectrum.S(0, i) - spectrum.S(0, j) <= spectrum.small; ++j) {
            const T u = left ? X(i, j) - X(j, i) : T(0), v = right ? Y(i, j) - Y(j, i) : T(0);
            if (!spectrum.is_zero(i)) {
                if (std::abs(u + v) > thresholds.vectors) return true;
            } else if (std::abs(u) > thresholds.for_zeros(g.gU, i, j, spectrum.S(0, i)) ||
                       std::abs(v) > thresholds.for_zeros(g.gV, i, j, spectrum.S(0, i))) {
                return true;
            }
            if (values && std::abs(g.gS[b](0, i) - g.gS[b](0, j)) > thresholds.values) return true;
        }
    for (index_t i = k - 1; checks_outside && i >= 0 && spectrum.is_zero(i); --i) {
        const T least = thresholds.for_zeros(g.gV, i, i, spectrum.S(0, i));
        for (index_t c = 0; c < n; ++c) {
            T rest = g.gV[b](i, c);
            for (index_t j = 0; j < k; ++j) rest -= Y(i, j) * g.V[b](j, c);
            if (std::abs(rest) > least) return true;
        }
    }
    return false;
}

// Per row of one item: the rounding error bound of gU U' and gV V' together (zero if nothing can be discarded), the cotangent of the
// singular value, and the replacement of 1 / S (zero unless A is wide).
template <class T>
struct RowData {
    bool discards;
    std::vector<T> noise, slope, inverse;

    RowData(const SvdGradient<T>& g, index_t b, const Spectrum<T>& spectrum, View<const T> Y, bool wide, bool parallel)
        : discards(spectrum.may_discard()), noise(Y.rows, T(0)), slope(Y.rows, T(0)), inverse(Y.rows, T(0)) {
        const index_t k = Y.rows;
        std::vector<T> noise_v(k, T(0));
        const T units = rounding_units<T>(double(g.V.cols));
        if (discards && g.gU.data) measure_rows<T>(g.gU[b], rounding_units<T>(double(g.U.cols)), noise.data(), parallel);
        if (discards && g.gV.data) measure_rows<T>(g.gV[b], units, noise_v.data(), parallel);
        for (index_t i = 0; i < k; ++i) {
            noise[i] += noise_v[i];
            if (g.gS.data) slope[i] = g.gS[b](0, i);
            if (wide) inverse[i] = spectrum.invert(spectrum.S(0, i));
        }
        for (index_t i = k - 1; wide && discards && i >= 0 && spectrum.S(0, i) < spectrum.close; --i)
            if (is_in_span(g.gV[b], g.V[b], Y, i, noise_v[i], noise_v[i] / units) &&
                is_only_rounding<T>(T(0), noise_v[i], spectrum.S(0, i), spectrum.close, slope[i]))
                inverse[i] = T(0);
    }

    // Whether row i of gV is in the span of the rows of V up to rounding. For most rows a comparison of lengths shows that it is not.
    // The lengths are relative to `most`, the largest entry of the row, so that their squares neither overflow nor underflow.
    static bool is_in_span(View<const T> gV, View<const T> V, View<const T> Y, index_t i, T noise, T most) {
        if (!(most > T(0))) return false;
        T all = 0, inside = 0;
        for (index_t c = 0; c < gV.cols; ++c) all += (gV(i, c) / most) * (gV(i, c) / most);
        for (index_t j = 0; j < Y.cols; ++j) inside += (Y(i, j) / most) * (Y(i, j) / most);
        if (all - inside > std::sqrt(std::numeric_limits<T>::epsilon()) * all) return false;
        std::vector<T> rest(gV.cols);
        for (index_t c = 0; c < gV.cols; ++c) rest[c] = gV(i, c);
        for (index_t j = 0; j < Y.cols; ++j)
            for (index_t c = 0; c < gV.cols; ++c) rest[c] -= Y(i, j) * V(j, c);
        for (const T x : rest)
            if (!(std::abs(x) < noise)) return false;
        return true;
    }
};

// G in the block [begin, end) x [first, last) above the diagonal and in its mirror image, in the memory of X, where no values are
// equal: C_ij = S_j E and C_ji = -S_i E with E = 1 / ((S_i - S_j) (S_i + S_j)). The mirror image is transposed in a buffer.
// With u and v the entries of sk(X) and sk(Y), G_ij = 1/2 [(u + v) / (S_i - S_j) - (u - v) / (S_i + S_j)]. `Discard` leaves out a
// quotient whose numerator is only rounding.
template <class T, bool Left, bool Right, bool Discard>
void combine_untied(const T* S, T close, const RowData<T>& rows, View<T> X, View<const T> Y, index_t begin, index_t end,
                    index_t first, index_t last) {
    T x_below[strip_rows][strip_rows], y_below[strip_rows][strip_rows];
    for (index_t j = first; j < last; ++j)
        for (index_t i = begin; i < end; ++i) {
            if (Left) x_below[i - begin][j - first] = X(j, i);
            if (Right) y_below[i - begin][j - first] = Y(j, i);
        }
    const T *const inverse = rows.inverse.data(), *const noise = rows.noise.data(), *const slope = rows.slope.data();
    for (index_t i = begin; i < end; ++i) {
        T *const x_row = X.at(i, 0), *const below = x_below[i - begin];
        const T* const y_row = Right ? Y.at(i, 0) : nullptr;
        const T si = S[i], inverse_i = inverse[i], noise_i = noise[i], slope_i = slope[i];
        for (index_t j = first; j < last; ++j) {
            const T sj = S[j], gap = si - sj, total = si + sj, E = T(1) / (gap * total);
            const T y = Right ? y_row[j] : T(0), mirrored = Right ? y_below[i - begin][j - first] : T(0);
            const T u = Left ? x_row[j] - below[j - first] : T(0), v = y - mirrored;
            T upper = 0, lower = 0;
            if (Left) {
                upper = u * sj;
                lower = u * si;
            }
            if (Right) {
                upper += v * si;
                lower += v * sj;
            }
            if (Discard) {
                const T both = noise_i + noise[j];
                const bool drops_difference = is_only_rounding<T>(u + v, both, gap, close, slope_i - slope[j]);
                const bool drops_sum = is_only_rounding<T>(u - v, both, total, close, slope_i + slope[j]);
                const T by_gap = drops_difference ? T(0) : T(0.5) * (u + v) * total;
                const T by_sum = drops_sum ? T(0) : T(0.5) * (u - v) * gap;
                upper = drops_difference | drops_sum ? by_gap - by_sum : upper;
                lower = drops_difference | drops_sum ? by_gap + by_sum : lower;
            }
            upper *= E;
            lower *= E;
            if (Right) {
                upper -= inverse_i * y;
                lower -= inverse[j] * mirrored;
            }
            x_row[j] = upper;
            below[j - first] = lower;
        }
    }
    for (index_t j = first; j < last; ++j)
        for (index_t i = begin; i < end; ++i) X(j, i) = x_below[i - begin][j - first];
}

// upper, lower := u C_ij - v C_ji and v C_ij - u C_ji, i < j, under any policy; quotients that are only rounding are dropped.
template <class T>
void combine_pair(const Spectrum<T>& spectrum, const RowData<T>& rows, index_t i, index_t j, T u, T v, T& upper, T& lower) {
    T above, below;
    spectrum.find_coefficients(i, j, above, below);
    upper = u * above - v * below;
    lower = v * above - u * below;
    if (!rows.discards || spectrum.is_zero(i)) return;
    const T si = spectrum.S(0, i), sj = spectrum.S(0, j), both = rows.noise[i] + rows.noise[j];
    const bool tied = si - sj <= spectrum.small;
    const bool drops_difference =
        tied || is_only_rounding<T>(u + v, both, si - sj, spectrum.close, rows.slope[i] - rows.slope[j]);
    const bool drops_sum = is_only_rounding<T>(u - v, both, si + sj, spectrum.close, rows.slope[i] + rows.slope[j]);
    if (!drops_difference && !drops_sum) return;
    const T by_gap = drops_difference ? T(0) : T(0.5) * (u + v) / (si - sj);
    const T by_sum = drops_sum ? T(0) : T(0.5) * (u - v) / (si + sj);
    upper = by_gap - by_sum;
    lower = by_gap + by_sum;
}

// G := diag gS + sk(X) o C - sk(Y) o C' (- S^-1 Y) in the memory of X, one pair of mirrored blocks at a time.
template <class T>
void combine(const Spectrum<T>& spectrum, const RowData<T>& rows, View<T> X, View<const T> Y, bool left, bool right, bool wide,
             bool parallel) {
    const index_t k = X.rows, blocks = (k + strip_rows - 1) / strip_rows;
    const bool plain = spectrum.is_untied_and_moderate();
    const auto untied = [&](auto discard, auto... range) {
        constexpr bool Discard = decltype(discard)::value;
        const auto both = left && right ? combine_untied<T, true, true, Discard>
                          : left        ? combine_untied<T, true, false, Discard>
                                        : combine_untied<T, false, true, Discard>;
        both(spectrum.S.data, spectrum.close, rows, X, Y, range...);
    };
    const auto body = [&](index_t block) {
        const index_t begin = block * strip_rows, end = std::min(k, begin + strip_rows);
        for (index_t first = begin; first < k; first += strip_rows) {
            if (plain && first > begin) {
                // Values descend, so the smallest gap is between the last of one block and the first of the other.
                const index_t last = std::min(k, first + strip_rows);
                const bool near = rows.discards && spectrum.S(0, end - 1) - spectrum.S(0, first) < spectrum.close;
                near ? untied(std::true_type{}, begin, end, first, last) : untied(std::false_type{}, begin, end, first, last);
                continue;
            }
            for (index_t i = begin; i < end; ++i) {
                const T inverse_i = rows.inverse[i];
                for (index_t j = std::max(first, i + 1); j < std::min(k, first + strip_rows); ++j) {
                    const T u = left ? X(i, j) - X(j, i) : T(0), v = right ? Y(i, j) - Y(j, i) : T(0);
                    T upper, lower;
                    combine_pair<T>(spectrum, rows, i, j, u, v, upper, lower);
                    if (wide) {
                        upper -= inverse_i * Y(i, j);
                        lower -= rows.inverse[j] * Y(j, i);
                    }
                    X(i, j) = upper;
                    X(j, i) = lower;
                }
                if (first == begin) {
                    X(i, i) = rows.slope[i];
                    if (wide) X(i, i) -= inverse_i * Y(i, i);
                }
            }
        }
    };
    if (parallel)
        parallel::for_each(blocks, body);
    else
        for (index_t block = 0; block < blocks; ++block) body(block);
}

// gA := U' [(G - S^-1 gV V') V + S^-1 gV] for one item; the terms with S^-1 only for a wide A.
template <class T>
void gesvd_vjp_item(const SvdGradient<T>& g, index_t b, bool parallel) {
    const index_t k = g.U.rows, m = g.U.cols, n = g.V.cols;
    const bool left = g.gU.data, right = g.gV.data, wide = right && m < n;
    const Spectrum<T> spectrum(g.S[b], g.policy, g.tol);
    auto inner_memory = allocate<T>(k * n);
    const View<T> inner{inner_memory.get(), k, n, n, 1}, Y{inner_memory.get(), k, k, k, 1};
    if (!left && !right) {
        for_strips(k, n, parallel, [&](index_t begin, index_t end) {
            for (index_t i = begin; i < end; ++i)
                for (index_t c = 0; c < n; ++c) inner(i, c) = g.gS[b](0, i) * g.V[b](i, c);
        });
        g.ambiguous[b] |= is_ambiguous<T>(g, b, spectrum, Y, Y);
        return gemm<T>(T(1), g.U[b].t(), inner, false, g.gA[b]);
    }
    // A square gradient has as many entries as the k x k matrix X, which is then stored there.
    const bool uses_gA = m == n && g.gA.dense();
    auto square_memory = allocate<T>(uses_gA ? 0 : k * k);
    const View<T> X{uses_gA ? g.gA[b].data : square_memory.get(), k, k, k, 1};
    if (left) gemm<T>(T(1), g.gU[b], g.U[b].t(), false, X);
    if (right) gemm<T>(T(1), g.gV[b], g.V[b].t(), false, Y);
    g.ambiguous[b] |= is_ambiguous<T>(g, b, spectrum, X, Y);
    const RowData<T> rows(g, b, spectrum, Y, wide, parallel);
    combine<T>(spectrum, rows, X, Y, left, right, wide, parallel);
    if (wide)
        for_strips(k, n, parallel, [&](index_t begin, index_t end) {
            for (index_t i = begin; i < end; ++i)
                for (index_t c = 0; c < n; ++c) inner(i, c) = rows.inverse[i] * g.gV[b](i, c);
        });
    gemm<T>(T(1), X, g.V[b], wide, inner);
    gemm<T>(T(1), g.U[b].t(), inner, false, g.gA[b]);
}

// The gradient of every item. U.cols <= V.cols.
template <class T>
void gesvd_vjp_batch(const SvdGradient<T>& g) {
    const index_t k = g.U.rows, m = g.U.cols, n = g.V.cols;
    if (k == 0) return;
    const auto dense = [](const Batch<const T>& batch) { return !batch.data || batch.dense(); };
    if (dense(g.gU) && dense(g.gV) && fits_lanes<T>(g.U.count, n, g.U, g.V, g.gA)) {
        for_lane_ranges<T>(g.U.count, 4 * k * k * (m + n) + 20 * k * k, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gesvd_vjp(g, begin, end, thread_scratch());
        });
        return;
    }
    for_items(g.U.count, plan::measure_columns(k, n), [&](index_t b, bool parallel) { gesvd_vjp_item<T>(g, b, parallel); });
}

}  // namespace lapgrad
