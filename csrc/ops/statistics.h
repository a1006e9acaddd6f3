// Principal components, canonical correlations, linear discriminants and least squares of batches: forward only, for calls that need no
// gradient. Each returns false where an item has no solution; the caller then finds out why.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/centring.h"
#include "ops/gelqf.h"
#include "ops/gemmt.h"
#include "ops/gesvd.h"
#include "ops/potrf.h"
#include "ops/products.h"
#include "ops/syevd.h"
#include "ops/trmm.h"

namespace lapgrad {

inline bool are_zero(const std::vector<std::int32_t>& status) {
    for (const std::int32_t code : status)
        if (code) return false;
    return true;
}

// The k directions of largest variance of X (n x d): components (k x d), variance and mean (k and d numbers per item), scores (n x k).
// With d > n, a component whose variance is at most `tol` times the largest is a row of zeros.
template <class T>
bool pca_batch(Batch<const T> X, T tol, Batch<T> components, T* variance, T* mean, Batch<T> scores) {
    const index_t n = X.rows, d = X.cols, k = components.rows, side = std::min(n, d);
    const index_t degrees = std::max<index_t>(n - 1, 1);
    const bool wide = d > n;
    std::atomic<bool> done{true};
    for_parts<T>(X.count, 2 * n * d + 2 * side * side, [&](index_t first, index_t number) {
        const BatchBuffer<T> centred(number, n, d), moments(number, side, side), vectors(number, side, side);
        const Buffer<T> unit = allocate<T>(number), squares = allocate<T>(number * side);
        std::vector<std::int32_t> status(number);
        const Batch<T> part = components.part(first, number);
        centre_batch<T>(X.part(first, number), mean + first * d, centred.all(), unit.get(), T(0), degrees);
        const Batch<const T> data = centred.readonly();
        gemmt_batch<T>(T(1), wide ? data : data.t(), wide ? data.t() : data, moments.all(), true);
        syevd_batch<T>(moments.readonly(), vectors.all(), squares.get(), status.data());
        if (!are_zero(status)) return done.store(false);
        // Eigenvalues ascend: the last rows are wanted, in reverse order.
        const BatchBuffer<T> top(number, k, side);
        for (index_t b = 0; b < number; ++b)
            for (index_t i = 0; i < k; ++i) {
                const T* const row = vectors.all()[b].at(side - 1 - i, 0);
                std::copy(row, row + side, (wide ? top.all() : part)[b].at(i, 0));
            }
        if (wide) gemm_batch<T>(T(1), top.readonly(), data, T(0), data, part);
        for (index_t b = 0; b < number; ++b) {
            const T* const l = squares.get() + b * side;
            const T least = tol * std::max(std::abs(l[0]), std::abs(l[side - 1]));
            for (index_t i = 0; i < k; ++i) {
                const T moment = std::max(l[side - 1 - i], T(0));
                variance[(first + b) * k + i] = moment * (unit[b] * unit[b] / T(degrees));
                if (!wide) continue;
                const T scale = moment > least ? T(1) / std::sqrt(moment) : T(0);
                for (index_t j = 0; j < d; ++j) part[b](i, j) *= scale;
            }
            if (wide) fix_signs<T>(part[b], false);
        }
        const Batch<T> scored = scores.part(first, number);
        gemm_batch<T>(T(1), data, part.readonly().t(), T(0), data, scored);
        for (index_t b = 0; b < number; ++b)
            if (unit[b] != T(1)) copy<T>(scored[b].readonly(), unit[b], scored[b], false);
    });
    return done;
}

// L := the Cholesky factors of centred' centred / degrees + regularisation / unit^2 I.
template <class T>
bool factorise_covariances(Batch<const T> centred, const T* unit, index_t degrees, double regularisation, Batch<T> L) {
    const index_t p = centred.cols;
    const BatchBuffer<T> covariance(centred.count, p, p);
    gemmt_batch<T>(T(1.0 / double(degrees)), centred.t(), centred, covariance.all(), true);
    if (regularisation != 0.0)
        for (index_t b = 0; b < centred.count; ++b)
            for (index_t i = 0; i < p; ++i) covariance.all()[b](i, i) += T(regularisation) / unit[b] / unit[b];
    std::vector<std::int32_t> status(centred.count);
    potrf_batch<T>(covariance.readonly(), L, status.data());
    return are_zero(status);
}

// W := L^-T rows' / unit for the first rows: whitened directions as columns of weights for the observations.
template <class T>
void unwhiten(Batch<const T> L, const T* unit, Batch<const T> rows, Batch<T> W) {
    for (index_t b = 0; b < W.count; ++b) copy<T>(rows[b].t().columns(0, W.cols), T(1), W[b], false);
    trsm_batch<T>(L.t(), false, W.readonly(), W);
    for (index_t b = 0; b < W.count; ++b)
        if (unit[b] != T(1)) copy<T>(W[b].readonly(), T(1) / unit[b], W[b], false);
}

template <class T>
bool decompose_all(Batch<const T> A, Batch<T> U, Batch<T> S, Batch<T> V) {
    std::vector<std::int32_t> status(A.count);
    gesvd_batch<T>(A, U, S, V, status.data());
    for (const std::int32_t code : status)
        if (code != svd_done) return false;
    return true;
}

// The k largest canonical correlations of X (n x p) and Y (n x q), S, and the weights W_x (p x k) and W_y (q x k).
template <class T>
bool cca_batch(Batch<const T> X, Batch<const T> Y, double regularisation, T* S, Batch<T> W_x, Batch<T> W_y) {
    const index_t n = X.rows, p = X.cols, q = Y.cols, side = std::min(p, q), k = W_x.cols;
    const T least = T(std::sqrt(regularisation));
    std::atomic<bool> done{true};
    for_parts<T>(X.count, n * (p + q) + 2 * (p + q) * (p + q), [&](index_t first, index_t number) {
        const BatchBuffer<T> x(number, n, p), y(number, n, q), L_x(number, p, p), L_y(number, q, q), M(number, p, q);
        const Buffer<T> units = allocate<T>(2 * number), means = allocate<T>(number * (p + q));
        T *const unit_x = units.get(), *const unit_y = unit_x + number;
        centre_batch<T>(X.part(first, number), means.get(), x.all(), unit_x, least, 0);
        centre_batch<T>(Y.part(first, number), means.get() + number * p, y.all(), unit_y, least, 0);
        if (!factorise_covariances<T>(x.readonly(), unit_x, n - 1, regularisation, L_x.all()) ||
            !factorise_covariances<T>(y.readonly(), unit_y, n - 1, regularisation, L_y.all()))
            return done.store(false);
        gemm_batch<T>(T(1.0 / double(n - 1)), x.readonly().t(), y.readonly(), T(0), M.readonly(), M.all());
        trsm_batch<T>(L_x.readonly(), true, M.readonly(), M.all());
        trsm_batch<T>(L_y.readonly(), true, M.readonly().t(), M.all().t());
        const BatchBuffer<T> U(number, side, p), V(number, side, q), values(number, 1, side);
        if (!decompose_all<T>(M.readonly(), U.all(), values.all(), V.all())) return done.store(false);
        for (index_t b = 0; b < number; ++b) std::copy_n(values.all()[b].data, k, S + (first + b) * k);
        unwhiten<T>(L_x.readonly(), unit_x, U.readonly(), W_x.part(first, number));
        unwhiten<T>(L_y.readonly(), unit_y, V.readonly(), W_y.part(first, number));
    });
    return done;
}

// Orthonormal rows orthogonal to the square roots of the sizes of c classes, times the root of size / (c - 1): (c - 1) x c. The weighted
// means of the classes add up to zero, so these combinations of them hold all of their scatter.
template <class T>
std::vector<T> make_contrasts(const std::vector<T>& sizes) {
    const index_t c = index_t(sizes.size());
    T total = 0;
    for (const T size : sizes) total += size;
    // Rows of the Householder reflection of the unit vector w: 1 - 2 v v' / |v|^2, v = w + e_0.
    std::vector<T> v(c), contrasts((c - 1) * c);
    T square = 0;
    for (index_t j = 0; j < c; ++j) {
        v[j] = std::sqrt(sizes[j] / total) + T(j == 0);
        square += v[j] * v[j];
    }
    for (index_t i = 1; i < c; ++i)
        for (index_t j = 0; j < c; ++j)
            contrasts[(i - 1) * c + j] = (T(i == j) - T(2) * v[i] * v[j] / square) * std::sqrt(sizes[j] / T(c - 1));
    return contrasts;
}

// The k largest ratios of the variance between c classes to that within, and the weights W (p x k). Labels are from 0 to c - 1, and
// each class has a row.
template <class T>
bool lda_batch(Batch<const T> X, const std::int64_t* labels, index_t c, double regularisation, T* ratios, Batch<T> W) {
    const index_t n = X.rows, p = X.cols, k = W.cols, side = std::min(p, c - 1);
    std::vector<T> sizes(c, T(0));
    for (index_t i = 0; i < n; ++i) sizes[labels[i]] += T(1);
    std::vector<T> contrasts = make_contrasts<T>(sizes);
    const Batch<const T> combinations{contrasts.data(), 1, 0, c - 1, c, c, 1};
    std::atomic<bool> done{true};
    for_parts<T>(X.count, n * p + 2 * p * p + 4 * p * c, [&](index_t first, index_t number) {
        const BatchBuffer<T> means(number, c, p), within(number, n, p), L(number, p, p), between(number, p, c - 1);
        const Buffer<T> unit = allocate<T>(number);
        for (index_t b = 0; b < number; ++b) {
            const View<T> m = means.all()[b], w = within.all()[b];
            const View<const T> x = X[first + b];
            set_zero<T>(m);
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < p; ++j) m(labels[i], j) += x(i, j);
            for (index_t l = 0; l < c; ++l)
                for (index_t j = 0; j < p; ++j) m(l, j) /= sizes[l];
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < p; ++j) w(i, j) = x(i, j) - m(labels[i], j);
            unit[b] = divide_by_unit<T>(w, measure_extent<T>(w), T(std::sqrt(regularisation)), false);
            if (unit[b] != T(1)) copy<T>(m.readonly(), T(1) / unit[b], m, false);
            gemm<T>(T(1), m.readonly().t(), combinations[0].t(), false, between.all()[b]);
        }
        if (!factorise_covariances<T>(within.readonly(), unit.get(), n - c, regularisation, L.all())) return done.store(false);
        trsm_batch<T>(L.readonly(), true, between.readonly(), between.all());
        const BatchBuffer<T> U(number, side, p), V(number, side, c - 1), values(number, 1, side);
        if (!decompose_all<T>(between.readonly(), U.all(), values.all(), V.all())) return done.store(false);
        for (index_t b = 0; b < number; ++b)
            for (index_t i = 0; i < k; ++i) ratios[(first + b) * k + i] = values.all()[b](0, i) * values.all()[b](0, i);
        unwhiten<T>(L.readonly(), unit.get(), U.readonly(), W.part(first, number));
    });
    return done;
}

// X := the least squares solution of A X = B with the smallest norm, and Q, L := the LQ factors of A, or of A' if A is tall. False if a
// row is dependent (see find_dependent_row), or an entry not finite.
template <class T>
bool lstsq_batch(Batch<const T> A, Batch<const T> B, T tolerance, bool relative_to_largest, Batch<T> X, Batch<T> Q, Batch<T> L) {
    const index_t m = A.rows, n = A.cols, columns = B.cols;
    const bool wide = m <= n;
    std::atomic<bool> done{true};
    for_parts<T>(A.count, 2 * m * n + 2 * (m + n) * columns, [&](index_t first, index_t number) {
        const Batch<const T> a = A.part(first, number), b = B.part(first, number);
        const Batch<T> x = X.part(first, number), q = Q.part(first, number), l = L.part(first, number);
        if (wide) {
            if (gelqf_batch<T>(a, q, l, false).first >= 0) return done.store(false);
        } else {
            // Lanes take rows.
            const BatchBuffer<T> rows(number, n, m);
            for (index_t i = 0; i < number; ++i) copy<T>(a[i].t(), T(1), rows.all()[i], number == 1);
            if (gelqf_batch<T>(rows.readonly(), q, l, false).first >= 0) return done.store(false);
        }
        if (find_dependent_row_batch<T>(l.readonly(), tolerance, relative_to_largest).first >= 0) return done.store(false);
        if (wide) {
            const BatchBuffer<T> middle(number, m, columns);
            trsm_batch<T>(l.readonly(), true, b, middle.all());
            gemm_batch<T>(T(1), q.readonly().t(), middle.readonly(), T(0), b, x);
        } else {
            gemm_batch<T>(T(1), q.readonly(), b, T(0), b, x);
            trsm_batch<T>(l.readonly().t(), false, x.readonly(), x);
        }
    });
    return done;
}

}  // namespace lapgrad
