// What the singular value decomposition and its kernels per instruction set agree on.
#pragma once

#include "base/gaps.h"
#include "base/view.h"

namespace lapgrad {

// Status of an item. An incomplete one lacks the vectors of its zeros.
enum : std::int32_t { svd_done = 0, svd_not_finite = 1, svd_not_converged = 2, svd_incomplete = 3 };

// Entries of a vector count as equal in size within 1e-6: the rule for signs.
constexpr double svd_same_size = 1.0 - 1e-6;

// A = U' diag(S) V with U.cols <= V.cols, and the cotangents of U, S and V, null where there are none. S and gS have one
// row per item. ambiguous: one byte per item, set to 1 where the loss tells apart what A does not determine.
template <class T>
struct SvdGradient {
    Batch<const T> U, S, V, gU, gS, gV;
    Batch<T> gA;
    Degeneracy policy;
    T tol;
    std::uint8_t* ambiguous;
};

}  // namespace lapgrad
