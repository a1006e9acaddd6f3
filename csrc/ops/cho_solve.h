// X := (L L')^-1 A on batches: a solve with L and one with L'.
#pragma once

#include "ops/trsm.h"

namespace lapgrad {

// X := (L L')^-1 A. X may be A's own memory.
template <class T>
void cho_solve_batch(Batch<const T> L, Batch<const T> A, Batch<T> X) {
    const index_t n = L.rows, m = A.cols;
    if (n == 0 || m == 0) return;
    if (fits_lanes<T>(A.count, std::max(n, m), L, A, X)) {
        for_lane_ranges<T>(A.count, 2 * n * n * m + 8 * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_cho_solve(L, A, X, begin, end, thread_scratch());
        });
        return;
    }
    for_items(A.count, plan::equivalent_order(n, m), [&](index_t b, bool parallel) {
        copy<T>(A[b], T(1), X[b], parallel);
        trsm<T>(L[b], true, X[b], parallel);
        trsm<T>(L[b].t(), false, X[b], parallel);
    });
}

}  // namespace lapgrad
