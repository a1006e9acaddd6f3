// X := L X with a triangular L, in place, by recursion on products:
//
//     [L11     ] [X1]      X2 := L22 X2 + L21 X1
//     [L21  L22] [X2]      X1 := L11 X1                          (an upper triangle: the other way round)
#pragma once

#include "ops/trsm.h"

namespace lapgrad {

// X := L X on one thread.
template <class T>
void multiply_triangle(View<const T> L, bool lower, View<T> X) {
    const index_t n = L.rows;
    if (n <= isa::leaf) {
        if (lower)
            isa::kernels<T>().multiply(L, X, scratch<T>());
        else
            isa::kernels<T>().multiply(L.reversed(), X.reversed_rows(), scratch<T>());
        return;
    }
    const index_t first = split_order(n), second = n - first, m = X.cols;
    const View<T> X1 = X.block(0, 0, first, m), X2 = X.block(first, 0, second, m);
    const View<const T> L11 = L.block(0, 0, first, first), L22 = L.block(first, first, second, second);
    if (lower) {
        multiply_triangle<T>(L22, true, X2);
        gemm<T>(1, L.block(first, 0, second, first), X1, true, X2);
        multiply_triangle<T>(L11, true, X1);
    } else {
        multiply_triangle<T>(L11, false, X1);
        gemm<T>(1, L.block(0, first, first, second), X2, true, X1);
        multiply_triangle<T>(L22, false, X2);
    }
}

template <class T>
void trmm(View<const T> L, bool lower, View<T> X, bool parallel) {
    if (L.rows == 0 || X.cols == 0) return;
    for_column_slices<T>(X, parallel, [&](View<T> slice) { multiply_triangle<T>(L, lower, slice); });
}

// X := L A. X may be A's own memory.
template <class T>
void trmm_batch(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> X) {
    apply_triangles<T>(L, lower, A, X, plan::serial_order(parallel::threads()), isa::kernels<T>().lane_multiply,
                       [&](View<const T> l, View<T> x, bool parallel) { trmm<T>(l, lower, x, parallel); });
}

}  // namespace lapgrad
