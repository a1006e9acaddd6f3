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

// X := L^-1 X for the upper triangle of the factors, or the unit lower one.
template <class T>
void solve_factor(View<const T> L, bool lower, View<T> X, bool parallel, bool unit) {
    if (L.rows <= plan::loop_order && X.cols <= plan::loop_order)
        substitute<T>(L, lower, X, unit);
    else
        trsm<T>(L, lower, X, parallel, unit);
}

// X := A^-1 B, or A^-T B, from the factors of A.
template <class T>
void solve_with_factors(View<const T> F, const pivot_t* pivots, View<const T> B, View<T> X, bool transposed, bool parallel) {
    const index_t n = F.rows;
    // Right-hand sides near the ends of the range are scaled, too: sums of products with them overflow before X does.
    const T scale = range_scale<T>(find_largest_entry<T>(view_column_major<const T>(B)));
    copy<T>(B, scale, X, parallel);
    if (transposed) {
        solve_factor<T>(F.t(), true, X, parallel, false);
        solve_factor<T>(F.t(), false, X, parallel, true);
        exchange_rows<T>(X, pivots, n, true, parallel);
    } else {
        exchange_rows<T>(X, pivots, n, false, parallel);
        solve_factor<T>(F, true, X, parallel, true);
        solve_factor<T>(F, false, X, parallel, false);
    }
    const T back = std::scalbn(T(1) / scale, pivots[n]);
    if (back != T(1)) copy<T>(X, back, X, parallel);
}

// The order of a cube with as much work as a solve of n equations with m right-hand sides. for_items compares it with the
// plan's thresholds to choose between one thread and several per item.
inline index_t order_of_work(index_t n, index_t m) { return index_t(std::cbrt(double(n) * double(n) * double(m))); }

// X := A^-1 B, or A^-T B, and F := the factors of A. The status of an item is that of its factorisation; X is not written
// where it is not 0.
template <class T>
void gesv_batch(Batch<const T> A, Batch<const T> B, Batch<T> X, bool transposed, Batch<T> F, pivot_t* pivots,
                 std::int32_t* status) {
    const index_t n = A.rows;
    for_items(A.count, n, [&](index_t b, bool parallel) {
        pivot_t* const exchanges = pivots + b * (n + 1);
        const T scale = range_scale<T>(find_largest_entry<T>(view_column_major<const T>(A[b])));
        copy<T>(A[b], scale, F[b], parallel);
        exchanges[n] = n == 0 ? 0 : std::ilogb(scale);
        status[b] = n <= plan::loop_order ? factor_small<T>(F[b], exchanges) : factor_lu<T>(F[b], exchanges);
        if (status[b] == 0) solve_with_factors<T>(F[b], exchanges, B[b], X[b], transposed, parallel);
    });
}

// X := A^-1 B, or A^-T B, from the factors that gesv_batch has left.
template <class T>
void gesv_factored_batch(Batch<const T> F, const pivot_t* pivots, Batch<const T> B, Batch<T> X, bool transposed) {
    const index_t n = F.rows;
    for_items(B.count, order_of_work(n, B.cols), [&](index_t b, bool parallel) {
        solve_with_factors<T>(F[b], pivots + b * (n + 1), B[b], X[b], transposed, parallel);
    });
}

}  // namespace lapgrad
