// Solves with a general matrix from P A = L U (LAPACK's getrf): X = A^-1 B, or A^-T B.
//
//     A  = P' L U    gives    A^-1 B = U^-1 L^-1 P B
//     A' = U' L' P   gives    A^-T B = P' L^-T U^-T B
//
// The factors F are column-major, and are kept for the gradient. A matrix with entries near the ends of the range is
// multiplied by a power of two before it is factorised (base/range.h). The exponent of that power is entry n of the pivots.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/lu.h"
#include "ops/trsm.h"

namespace lapgrad {

// X := P X, or P' X: row k changes places with row pivots[k] (from 1), the last exchange first for P'.
template <class T>
void exchange_rows(View<T> X, const pivot_t* pivots, index_t n, bool transposed, bool parallel) {
    for_strips(X.cols, n, parallel, [&](index_t begin, index_t end) {
        for (index_t step = 0; step < n; ++step) {
            const index_t k = transposed ? n - 1 - step : step, other = pivots[k] - 1;
            if (other == k) continue;
            for (index_t j = begin; j < end; ++j) std::swap(X(k, j), X(other, j));
        }
    });
}

// F := L \ U as factor_lu does, for small matrices.
template <class T>
std::int32_t factor_small(View<T> F, pivot_t* pivots) {
    const index_t n = F.rows;
    std::int32_t zero = 0;
    for (index_t k = 0; k < n; ++k) {
        T* const column = F.at(0, k);
        index_t best = k;
        for (index_t i = k + 1; i < n; ++i)
            if (std::abs(column[i]) > std::abs(column[best])) best = i;
        pivots[k] = pivot_t(best + 1);
        if (best != k)
            for (index_t j = 0; j < n; ++j) std::swap(F(k, j), F(best, j));
        const T pivot = column[k];
        if (pivot == T(0)) {
            if (!zero) zero = std::int32_t(k + 1);
            continue;
        }
        for (index_t i = k + 1; i < n; ++i) column[i] /= pivot;
        for (index_t j = k + 1; j < n; ++j) {
            T* const other = F.at(0, j);
            for (index_t i = k + 1; i < n; ++i) other[i] -= column[i] * other[k];
        }
    }
    for (index_t k = 0; k < n; ++k)
        if (!std::isfinite(F(k, k))) return -std::int32_t(k + 1);
    return zero;
}

// X := L^-1 X for a triangle L of a small matrix: as trsm.
template <class T>
void substitute(View<const T> L, bool lower, View<T> X, bool unit) {
    for (index_t step = 0; step < L.rows; ++step) {
        const index_t i = lower ? step : L.rows - 1 - step;
        for (index_t p = lower ? 0 : i + 1; p < (lower ? i : L.rows); ++p) {
            const T factor = L(i, p);
            for (index_t j = 0; j < X.cols; ++j) X(i, j) -= factor * X(p, j);
        }
        if (!unit)
            for (index_t j = 0; j < X.cols; ++j) X(i, j) /= L(i, i);
    }
}

// target := source times a power of two that takes it away from the ends of the range. Returns that power.
template <class T>
T copy_in_range(View<const T> source, View<T> target) {
    T largest = 0;
    for (index_t i = 0; i < source.rows; ++i)
        for (index_t j = 0; j < source.cols; ++j) {
            const T x = target(i, j) = source(i, j);
            largest = std::max(largest, std::abs(x));
        }
    const T scale = range_scale<T>(largest);
    if (scale != T(1))
        for (index_t i = 0; i < target.rows; ++i)
            for (index_t j = 0; j < target.cols; ++j) target(i, j) *= scale;
    return scale;
}

// As solve_with_factors, for small matrices: plain loops.
template <class T>
void solve_small(View<const T> F, const pivot_t* pivots, View<const T> B, View<T> X, bool transposed) {
    const index_t n = F.rows;
    const T scale = copy_in_range<T>(B, X);
    const auto exchange = [&](index_t k) {
        if (const index_t other = pivots[k] - 1; other != k)
            for (index_t j = 0; j < X.cols; ++j) std::swap(X(k, j), X(other, j));
    };
    if (transposed) {
        substitute<T>(F.t(), true, X, false);
        substitute<T>(F.t(), false, X, true);
        for (index_t k = n - 1; k >= 0; --k) exchange(k);
    } else {
        for (index_t k = 0; k < n; ++k) exchange(k);
        substitute<T>(F, true, X, true);
        substitute<T>(F, false, X, false);
    }
    if (scale == T(1) && pivots[n] == 0) return;
    const T back = std::scalbn(T(1) / scale, pivots[n]);
    for (index_t i = 0; i < n; ++i)
        for (index_t j = 0; j < X.cols; ++j) X(i, j) *= back;
}

// X := A^-1 B, or A^-T B, from the factors of A.
template <class T>
void solve_with_factors(View<const T> F, const pivot_t* pivots, View<const T> B, View<T> X, bool transposed, bool parallel) {
    const index_t n = F.rows;
    if (n <= plan::loop_order && X.cols <= plan::loop_order) return solve_small<T>(F, pivots, B, X, transposed);
    // Right-hand sides near the ends of the range are scaled, too: sums of products with them overflow before X does.
    const T scale = range_scale<T>(find_largest_entry<T>(view_column_major<const T>(B)));
    copy<T>(B, scale, X, parallel);
    if (transposed) {
        trsm<T>(F.t(), true, X, parallel, false);
        trsm<T>(F.t(), false, X, parallel, true);
        exchange_rows<T>(X, pivots, n, true, parallel);
    } else {
        exchange_rows<T>(X, pivots, n, false, parallel);
        trsm<T>(F, true, X, parallel, true);
        trsm<T>(F, false, X, parallel, false);
    }
    const T back = std::scalbn(T(1) / scale, pivots[n]);
    if (back != T(1)) copy<T>(X, back, X, parallel);
}

// The work of a solve of n equations with m right-hand sides, from factors.
inline plan::Work measure_solve(index_t n, index_t m) {
    const double multiplications = double(n) * double(n) * double(m);
    return {index_t(std::cbrt(multiplications)), multiplications};
}

// Whether a batch of systems of n equations is solved with one item per lane.
template <class T>
bool fits_solve_lanes(index_t n, Batch<const T> A, Batch<const T> B, Batch<T> X) {
    return B.count > 1 && n > 0 && B.cols > 0 && n * B.cols <= isa::lane_limit * isa::lane_limit && fits_lu_lanes<T>(B.count, n, A, B, X);
}

// X := A^-1 B, or A^-T B, and F := the factors of A. The status of an item is that of its factorisation; X is not written
// where it is not 0.
template <class T>
void gesv_batch(Batch<const T> A, Batch<const T> B, Batch<T> X, bool transposed, Batch<T> F, pivot_t* pivots,
                 std::int32_t* status) {
    const index_t n = A.rows;
    if (fits_solve_lanes<T>(n, A, B, X)) {
        for_lane_ranges<T>(A.count, n * n * (n + 2 * B.cols + 8), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gesv(A, B, X, transposed, F, pivots, status, begin, end, thread_scratch());
        });
        return;
    }
    for_items(A.count, {n, double(n) * double(n) * double(n + B.cols)}, [&](index_t b, bool parallel) {
        pivot_t* const exchanges = pivots + b * (n + 1);
        T scale = 1;
        if (n <= plan::loop_order) {
            scale = n == 0 ? T(1) : copy_in_range<T>(A[b], F[b]);
            status[b] = factor_small<T>(F[b], exchanges);
        } else {
            scale = range_scale<T>(find_largest_entry<T>(view_column_major<const T>(A[b])));
            copy<T>(A[b], scale, F[b], parallel);
            status[b] = factor_lu<T>(F[b], exchanges);
        }
        exchanges[n] = scale == T(1) ? 0 : std::ilogb(scale);
        if (status[b] == 0) solve_with_factors<T>(F[b], exchanges, B[b], X[b], transposed, parallel);
    });
}

// X := A^-1 B, or A^-T B, from the factors that gesv_batch has left.
template <class T>
void gesv_factored_batch(Batch<T> F, pivot_t* pivots, Batch<const T> B, Batch<T> X, bool transposed) {
    const index_t n = F.rows;
    if (fits_solve_lanes<T>(n, F.readonly(), B, X)) {
        Batch<const T> none = F.readonly();
        none.data = nullptr;
        for_lane_ranges<T>(B.count, 2 * n * n * (B.cols + 8), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gesv(none, B, X, transposed, F, pivots, nullptr, begin, end, thread_scratch());
        });
        return;
    }
    for_items(B.count, measure_solve(n, B.cols), [&](index_t b, bool parallel) {
        solve_with_factors<T>(F[b], pivots + b * (n + 1), B[b], X[b], transposed, parallel);
    });
}

}  // namespace lapgrad
