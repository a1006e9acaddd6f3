// Singular value decompositions A = U' diag(S) V, where the rows of U and V are the singular vectors, and their gradient.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "base/buffer.h"
#include "base/gesvd_types.h"
#include "base/items.h"
#include "base/lapack.h"
#include "base/triangle.h"
#include "ops/gemm.h"

namespace lapgrad {

template <class T>
bool is_finite(View<const T> A) {
    if (A.col_stride != 1) A = A.t();
    for (index_t i = 0; i < A.rows; ++i) {
        T nothing = 0;
        for (index_t j = 0; j < A.cols; ++j) nothing += A(i, j) * T(0);
        if (nothing != T(0)) return false;
    }
    return true;
}

// Makes the leading entry of row i of U positive, and changes the sign of row i of V with it. The leading entry is the first whose
// size is at least svd_same_size times the largest.
template <class T>
void fix_sign(View<T> U, View<T> V, index_t i) {
    T largest = 0;
    for (index_t r = 0; r < U.cols; ++r) largest = std::max(largest, std::abs(U(i, r)));
    largest *= T(svd_same_size);
    for (index_t r = 0; r < U.cols; ++r) {
        if (!(std::abs(U(i, r)) >= largest)) continue;
        if (U(i, r) >= T(0)) return;
        break;
    }
    for (index_t r = 0; r < U.cols; ++r) U(i, r) = -U(i, r);
    for (index_t r = 0; r < V.cols; ++r) V(i, r) = -V(i, r);
}

template <class T>
void fix_signs(View<T> U, View<T> V, bool parallel) {
    for_strips(U.rows, U.cols + V.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) fix_sign<T>(U, V, i);
    });
}

// Calls LAPACK's divide and conquer and returns its info. A row-major m x n matrix is the column-major n x m matrix
// A' = V' diag(S) U: LAPACK's u is V' by columns, which is V by rows; its vt is U by columns, and has to be transposed. If U is as
// large as A, its memory holds the copy of A that LAPACK overwrites. If U.data is null, only values are computed.
template <class T>
blas::blas_int call_gesdd(View<const T> A, View<T> U, T* S, View<T> V, bool parallel) {
    using blas::narrow;
    const index_t k = std::min(A.rows, A.cols);
    const blas::blas_int m = narrow(A.cols), n = narrow(A.rows), small = narrow(k);
    const bool vectors = U.data != nullptr;
    const bool copies_into_U = vectors && U.rows * U.cols >= A.rows * A.cols;
    auto copy_of_A = allocate<T>(copies_into_U ? 0 : A.rows * A.cols), transposed_U = allocate<T>(vectors ? U.rows * U.cols : 0);
    auto integers = allocate<blas::blas_int>(8 * k);
    T* const copied = copies_into_U ? U.data : copy_of_A.get();
    copy<T>(A, T(1), View<T>{copied, A.rows, A.cols, A.cols, 1}, parallel);
    const char* job = vectors ? "S" : "N";
    const blas::blas_int ldu = vectors ? m : 1, ldvt = vectors ? small : 1;
    blas::blas_int info = 0, size = -1;
    T wanted = 0;
    const auto call = [&](T* work) {
        lapack::routines<T>().gesdd(job, &m, &n, copied, &m, S, V.data, &ldu, transposed_U.get(), &ldvt, work, &size,
                                    integers.get(), &info);
    };
    call(&wanted);
    if (info != 0) return info;
    // LAPACK returns the size as a T. A float holds integers up to 2^24 exactly; larger sizes may have been rounded down.
    size = narrow(static_cast<index_t>(wanted * (1 + std::numeric_limits<T>::epsilon())) + 1);
    call(allocate<T>(size).get());
    if (info == 0 && vectors) copy<T>(View<const T>{transposed_U.get(), k, U.cols, 1, k}, T(1), U, parallel);
    return info;
}

// Fills rows [filled, V.rows) so that all rows are orthonormal. Each starts as the unit vector that is farthest from the span of
// the rows before, and is orthogonalised three times.
template <class T>
void complete_rows(View<T> V, index_t filled) {
    for (index_t i = filled; i < V.rows; ++i) {
        index_t best = 0;
        T least = std::numeric_limits<T>::max();
        for (index_t c = 0; c < V.cols; ++c) {
            T square = 0;
            for (index_t j = 0; j < i; ++j) square += V(j, c) * V(j, c);
            if (square < least) {
                least = square;
                best = c;
            }
        }
        for (index_t c = 0; c < V.cols; ++c) V(i, c) = T(c == best);
        for (int pass = 0; pass < 3; ++pass) {
            for (index_t j = 0; j < i; ++j) {
                T along = 0;
                for (index_t c = 0; c < V.cols; ++c) along += V(i, c) * V(j, c);
                for (index_t c = 0; c < V.cols; ++c) V(i, c) -= along * V(j, c);
            }
            T square = 0;
            for (index_t c = 0; c < V.cols; ++c) square += V(i, c) * V(i, c);
            const T inverse = T(1) / std::sqrt(square);
            for (index_t c = 0; c < V.cols; ++c) V(i, c) *= inverse;
        }
    }
}

// Decomposes a matrix of one row or one column: its length, and the unit vector along it. The zero vector gets the first unit vector.
template <class T>
void decompose_vector(View<const T> A, View<T> U, T* S, View<T> V) {
    const bool is_column = A.cols == 1;
    const View<const T> a = is_column ? A.t() : A;
    const T largest = find_largest_entry<T>(a);
    // Relative to the largest entry, squares neither overflow nor vanish.
    constexpr index_t chains = 8;
    T sums[chains] = {}, square = 0;
    for (index_t j = 0; j < a.cols && largest > T(0); ++j) sums[j % chains] += (a(0, j) / largest) * (a(0, j) / largest);
    for (const T sum : sums) square += sum;
    const T length = std::sqrt(square);
    *S = largest * length;
    if (!U.data) return;
    const View<T> direction = is_column ? U : V, one = is_column ? V : U;
    one(0, 0) = T(1);
    for (index_t j = 0; j < a.cols; ++j) direction(0, j) = largest > T(0) ? a(0, j) / largest / length : T(j == 0);
}

// Decomposes one item by LAPACK and returns its status. If LAPACK fails, the transpose, for which it takes other steps, is tried. If the
// matrix is nearly square, the tall one of both is tried first, because its copy fits into the result.
template <class T>
std::int32_t gesvd_item(View<const T> A, View<T> U, T* S, View<T> V, bool parallel) {
    if (!is_finite<T>(A)) return svd_not_finite;
    if (std::min(A.rows, A.cols) == 1) {
        decompose_vector<T>(A, U, S, V);
        if (U.data) fix_signs<T>(U, V, false);
        return svd_done;
    }
    const auto plain = [&] { return call_gesdd<T>(A, U, S, V, parallel) == 0; };
    const auto transposed = [&] { return call_gesdd<T>(A.t(), V, S, U, parallel) == 0; };
    // LAPACK takes a half to a third of the time for a long matrix if it is tall in its own, column-major order.
    const bool is_tall = A.rows >= A.cols, is_long = std::max(A.rows, A.cols) >= 2 * std::min(A.rows, A.cols);
    if (!(is_tall != is_long ? plain() || transposed() : transposed() || plain())) return svd_not_converged;
    if (U.data) fix_signs<T>(U, V, parallel);
    return svd_done;
}

// S, U and V of every item of A, status per item. S has one row per item. U and V are row-major; null data for values only.
template <class T>
void gesvd_batch(Batch<const T> A, Batch<T> U, Batch<T> S, Batch<T> V, std::int32_t* status) {
    const index_t k = std::min(A.rows, A.cols);
    std::fill(status, status + A.count, svd_done);
    if (k == 0) return;
    const index_t side = std::max(A.rows, A.cols);
    const auto on_lapack = [&](index_t b, bool parallel) {
        status[b] = gesvd_item<T>(A[b], U[b], S[b].data, V[b], parallel);
    };
    // If lanes are in use at all, Jacobi rotations on lanes are faster than LAPACK at every order that fits; a group of lanes takes as
    // long as up to four items on LAPACK.
    const bool has_group = side <= plan::small_svd_side || A.count >= plan::svd_group_cost;
    const index_t order = side <= isa::lane_limit && has_group && plan::lane_order<T>() > 0 ? 0 : side;
    if (fits_lanes<T>(A.count, order, A)) {
        for_lane_ranges<T>(A.count, 60 * k * k * (side + 12), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gesvd(A, U, S, V, status, begin, end, thread_scratch());
        });
        const bool tall = A.rows > A.cols;
        for (index_t b = 0; b < A.count; ++b) {
            if (status[b] == svd_not_converged) on_lapack(b, false);
            if (status[b] != svd_incomplete) continue;
            index_t filled = 0;
            while (filled < k && S[b](0, filled) > T(0)) ++filled;
            complete_rows<T>(tall ? U[b] : V[b], filled);
            fix_signs<T>(U[b], V[b], false);
            status[b] = svd_done;
        }
        return;
    }
    for_items(A.count, plan::equivalent_order(k, side), on_lapack);
}

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
    for_items(g.U.count, plan::equivalent_order(k, n), [&](index_t b, bool parallel) { gesvd_vjp_item<T>(g, b, parallel); });
}

}  // namespace lapgrad
