// The gradient of an LU factorisation with pivots, P A = L U, whose factors are stored in one matrix:
//
//     gA = P' L^-T (tril(L' gL, -1) + triu(gU U')) U^-T
#pragma once

#include <cstdint>
#include <utility>

#include "base/buffer.h"
#include "base/items.h"
#include "base/triangle.h"
#include "ops/gemm.h"
#include "ops/trsm.h"

namespace lapgrad {

// gA of one matrix. `pivots` are LAPACK's: row k was exchanged with row pivots[k] - 1.
template <class T>
void lu_factor_vjp(View<const T> LU, const std::int32_t* pivots, View<const T> G, View<T> gA, bool parallel) {
    const index_t n = LU.rows;
    const Buffer<T> memory = allocate<T>(5 * n * n);
    const auto take = [&](index_t k) { return View<T>{memory.get() + k * n * n, n, n, n, 1}; };
    const View<T> L = take(0), U = take(1), gL = take(2), gU = take(3), middle = take(4);
    for (index_t i = 0; i < n; ++i) {
        for (index_t j = 0; j < n; ++j) {
            const bool is_below = i > j;
            L(i, j) = is_below ? LU(i, j) : T(i == j);
            U(i, j) = is_below ? T(0) : LU(i, j);
            gL(i, j) = is_below ? G(i, j) : T(0);
            gU(i, j) = is_below ? T(0) : G(i, j);
        }
    }
    gemm<T>(1, L.t(), gL, false, middle);
    gemm<T>(1, gU, U.t(), false, gL);
    for (index_t i = 0; i < n; ++i)
        for (index_t j = i; j < n; ++j) middle(i, j) = gL(i, j);
    trsm<T>(L.t(), false, middle, parallel, true);
    trsm<T>(U, false, middle.t(), parallel);
    for (index_t k = n - 1; k >= 0; --k)
        if (const index_t other = pivots[k] - 1; other != k)
            for (index_t j = 0; j < n; ++j) std::swap(middle(k, j), middle(other, j));
    copy<T>(middle, T(1), gA, parallel);
}

template <class T>
void lu_factor_vjp_batch(Batch<const T> LU, const std::int32_t* pivots, Batch<const T> G, Batch<T> gA) {
    for_items(LU.count, plan::measure_cube(LU.rows), [&](index_t b, bool parallel) {
        lu_factor_vjp<T>(LU[b], pivots + b * LU.rows, G[b], gA[b], parallel);
    });
}

}  // namespace lapgrad
