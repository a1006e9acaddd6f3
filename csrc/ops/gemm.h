// C := alpha A B (+ C): the product that every recursion is made of.
#pragma once

#include "base/blas.h"
#include "base/isa.h"
#include "base/parallel.h"
#include "base/plan.h"
#include "base/scratch.h"

namespace lapgrad {

// Returns the order of the first of the two blocks that a recursion splits order n into: about half, in whole leaves.
inline index_t split_order(index_t n) { return (n / 2 + isa::leaf - 1) / isa::leaf * isa::leaf; }

// Whether at most one side is long. For such products BLAS spends its time on set-up and on strides that share cache sets.
template <class T>
bool is_slim(index_t m, index_t n, index_t k) {
    const index_t middle = std::max(std::min(m, n), std::min(std::max(m, n), k));
    return middle <= plan::own_product<T>();
}

template <class T>
void gemm(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C) {
    const index_t m = C.rows, n = C.cols, k = A.cols;
    if (m == 0 || n == 0 || (k == 0 && accumulate)) return;
    if (!is_slim<T>(m, n, k) && k > 0) return blas::gemm<T>(alpha, A, B, T(accumulate), C);
    if (C.col_stride != 1) return gemm<T>(alpha, B.t(), A.t(), accumulate, C.t());
    // The long side is cut into pieces that fit the packed panels.
    constexpr index_t piece = isa::product_limit;
    for (index_t i = 0; i < m; i += piece)
        for (index_t j = 0; j < n; j += piece) {
            const index_t rows = std::min(piece, m - i), cols = std::min(piece, n - j);
            index_t p = 0;
            do {
                const index_t depth = std::min(piece, k - p);
                isa::kernels<T>().product(alpha, A.block(i, p, rows, depth), B.block(p, j, depth, cols),
                                          accumulate || p > 0, C.block(i, j, rows, cols), scratch<T>());
                p += piece;
            } while (p < k);
        }
}

}  // namespace lapgrad
