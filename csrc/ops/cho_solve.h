// X := (L L')^-1 A on batches: a solve with L and one with L'; and its gradient.
#pragma once

#include "ops/gemmt.h"
#include "ops/trmm.h"

namespace lapgrad {

// X := (L L')^-1 A. X may be A's own memory.
template <class T>
void cho_solve_batch(Batch<const T> L, Batch<const T> A, Batch<T> X) {
    const index_t n = L.rows, m = A.cols;
    if (n == 0 || m == 0) return;
    if (fits_triangle_lanes<T>(A.count, n, m, L, A, X)) {
        for_lane_ranges<T>(A.count, 2 * n * n * m + 8 * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_cho_solve(L, A, X, begin, end, thread_scratch());
        });
        return;
    }
    for_items(A.count, plan::measure_right_side(n, m), [&](index_t b, bool parallel) {
        copy<T>(A[b], T(1), X[b], parallel);
        trsm<T>(L[b], true, X[b], parallel);
        trsm<T>(L[b].t(), false, X[b], parallel);
    });
}

// Gradients of X = (L L')^-1 B for the cotangent gX: with Z = L^-1 gX and W = L' X, gB = L^-T Z and gL = -tri(gB W' + X Z').
template <class T>
void cho_solve_vjp_batch(Batch<const T> L, Batch<const T> X, Batch<const T> gX, Batch<T> gL, Batch<T> gB) {
    const index_t n = X.rows, m = X.cols;
    for_parts<T>(X.count, n * (n + 4 * m), [&](index_t first, index_t number) {
        const Batch<const T> l = L.part(first, number), x = X.part(first, number);
        const Batch<T> gb = gB.part(first, number);
        const BatchBuffer<T> Z(number, n, m), W(number, n, m);
        trsm_batch<T>(l, true, gX.part(first, number), Z.all());
        trsm_batch<T>(l.t(), false, Z.readonly(), gb);
        trmm_batch<T>(l.t(), false, x, W.all());
        gemmt_sum_batch<T>(T(-1), gb.readonly(), W.readonly().t(), x, Z.readonly().t(), gL.part(first, number), false);
    });
}

}  // namespace lapgrad
