// C := alpha A B (+ C): the product that every recursion is made of.
#pragma once

#include "blas.h"
#include "isa.h"
#include "parallel.h"
#include "plan.h"
#include "scratch.h"

namespace lapgrad {

// Where a recursion splits: near the middle, and the first part whole leaves.
inline index_t split(index_t n) { return (n / 2 + isa::leaf - 1) / isa::leaf * isa::leaf; }

template <class T>
void gemm(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C) {
    if (C.rows == 0 || C.cols == 0 || (A.cols == 0 && accumulate)) return;
    const index_t largest = std::max(std::max(C.rows, C.cols), A.cols);
    if (largest > plan::own_product<T>() && A.cols > 0) return blas::gemm<T>(alpha, A, B, T(accumulate), C);
    if (C.col_stride == 1)
        isa::kernels<T>().product(alpha, A, B, accumulate, C, scratch<T>());
    else
        isa::kernels<T>().product(alpha, B.t(), A.t(), accumulate, C.t(), scratch<T>());
}

}  // namespace lapgrad
