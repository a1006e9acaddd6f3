// Types that the singular value decomposition (ops/gesvd.h) shares with its kernels per instruction set (small/lane_gesvd.h).
#pragma once

#include "base/gaps.h"
#include "base/view.h"

namespace lapgrad {

// Status of an item. `incomplete`: vectors that belong to zero singular values have not been computed yet.
enum : std::int32_t { svd_done = 0, svd_not_finite = 1, svd_not_converged = 2, svd_incomplete = 3 };

// The sign of a vector is decided by its first entry whose size is at least this part of the largest one.
constexpr double svd_same_size = 1.0 - 1e-6;

// The operands of the gradient of A = U' diag(S) V with U.cols <= V.cols. gU, gS and gV are the cotangents, with null data where
// there are none. S and gS have one row per item. ambiguous: one byte per item, set to 1 where the loss depends on vectors that
// A does not determine, and so has no derivative.
template <class T>
struct SvdGradient {
    Batch<const T> U, S, V, gU, gS, gV;
    Batch<T> gA;
    Degeneracy policy;
    T tol;
    std::uint8_t* ambiguous;
};

}  // namespace lapgrad
