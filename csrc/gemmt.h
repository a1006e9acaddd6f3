// C := alpha A B (+ C) on the lower triangle of C: the triangle is cut into tiles, each a product.
//
// The tiles on the diagonal are computed whole, so the strict upper triangle of C within them is scribbled on: every
// caller either has that half free or clears it afterwards.
#pragma once

#include "gemm.h"

namespace lapgrad {

template <class T>
void gemmt(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, bool parallel) {
    const index_t n = C.rows, k = A.cols;
    if (n == 0) return;
    const index_t tile = plan::triangle_tile(n, parallel ? parallel::threads() : 1);
    const index_t tiles = (n + tile - 1) / tile;
    const auto compute = [&](index_t ti, index_t tj, index_t height) {
        const index_t i = ti * tile, j = tj * tile;
        const index_t rows = std::min(height, n - i), cols = std::min(tile, n - j);
        gemm<T>(alpha, A.block(i, 0, rows, k), B.block(0, j, k, cols), accumulate, C.block(i, j, rows, cols));
    };
    if (!parallel) {
        // Block columns: the tile on the diagonal, then all below it in one product.
        for (index_t t = 0; t < tiles; ++t) {
            compute(t, t, tile);
            if ((t + 1) * tile < n) compute(t + 1, t, n);
        }
        return;
    }
    parallel::for_each(tiles * (tiles + 1) / 2, [&](index_t task) {
        index_t ti = 0;
        while ((ti + 1) * (ti + 2) / 2 <= task) ++ti;
        compute(ti, task - ti * (ti + 1) / 2, tile);
    });
}

}  // namespace lapgrad
