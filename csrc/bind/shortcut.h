// What shortcuts share (bind_shortcuts.cpp, bind_gradients.cpp): operators on ordinary tensors without Python in between.
#pragma once

#include "base/plan.h"
#include "bind/tensor.h"
#include "ops/gemmt.h"
#include "ops/products.h"
#include "ops/trmm.h"

namespace lapgrad::binding {

inline bool have_one_kind(const TensorOperand& A, const TensorOperand& B) {
    return A.item_size == B.item_size && A.is_single == B.is_single && A.count == B.count;
}

// Whether products of a batch are computed by the core; others are left to torch.
inline bool serves_products(int item_size, index_t count, index_t m, index_t n, index_t k) {
    return with_type(item_size, [&](auto type) { return lapgrad::serves_products<decltype(type)>(count, m, n, k); });
}

// Returns the contiguous batch of matrices that was just allocated.
inline Operand make_dense(const NewTensor& tensor, index_t rows, index_t cols) { return {tensor.address, rows * cols, cols, 1}; }

// Returns the transposes of a batch of matrices if `flipped`.
inline Operand flip_if(bool flipped, const Operand& A) {
    return flipped ? Operand{A.address, A.batch_stride, A.col_stride, A.row_stride} : A;
}

// X := t(L)^-1 A, or t(L) A; from the right with `right`. A and X are rows x cols.
template <class T, bool Solve>
void apply_triangle(const Operand& L, bool lower, bool transpose, bool right, const Operand& A, const Operand& X, index_t count,
                    index_t rows, index_t cols) {
    // A t(L)^-1 = (t(L)^-T A')': a right side is a left side with everything transposed.
    const bool flipped = transpose != right;
    const index_t n = right ? cols : rows, m = right ? rows : cols;
    (Solve ? trsm_batch<T> : trmm_batch<T>)(flip_if(flipped, L).as<const T>(count, n, n), lower != flipped,
                                            flip_if(right, A).as<const T>(count, n, m), flip_if(right, X).as<T>(count, n, m));
}

// One triangle of C := alpha A B, n x k and k x n, zeros in the other. The upper triangle of A B is the lower one of B' A'.
template <class T>
void multiply_to_triangle(double alpha, const Operand& A, const Operand& B, const Operand& C, bool lower, index_t count, index_t n,
                          index_t k) {
    const Operand left = lower ? A : flip_if(true, B), right = lower ? B : flip_if(true, A);
    gemmt_batch<T>(T(alpha), left.as<const T>(count, n, k), right.as<const T>(count, k, n), flip_if(!lower, C).as<T>(count, n, n), false);
}

}  // namespace lapgrad::binding
