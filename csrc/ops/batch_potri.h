// potri, what is made of it, its reverse, and solves with a factor on batches, run as items.h says.
#pragma once

#include "base/items.h"
#include "ops/potri.h"

namespace lapgrad {

// What potri's result is turned into on the way: B := weight[item] * scale * ((L L')^-1 + ratio X X'), X n x k.
template <class T>
struct Update {
    Batch<const T> X;
    const T* weight;  // null: B := (L L')^-1 as it is
    T scale, ratio;
};

// B := (L L')^-1, updated. B may be L's own memory.
template <class T>
void potri_batch(Batch<const T> L, Update<T> update, Batch<T> B) {
    const index_t n = L.rows, k = update.X.cols;
    if (n == 0) return;
    if (fits_lanes<T>(L.count, std::max(n, k), L, B) && (k == 0 || update.X.dense())) {
        for_lane_ranges<T>(L.count, n * n * (2 * n + 3 * k + 12) / 3, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potri(L, update.X, update.weight, update.scale, update.ratio, B, begin, end,
                                         thread_scratch());
        });
        return;
    }
    for_items(L.count, n, [&](index_t b, bool parallel) {
        copy_lower<T>(L[b], T(1), B[b], parallel);
        invert_factored<T>(B[b], !update.weight, parallel);
        if (!update.weight) return;
        const View<const T> X = update.X[b];
        if (k > 0) gemmt<T>(update.ratio, X, X.t(), true, B[b], Upper::scribble, parallel);
        scale_and_mirror<T>(update.weight[b] * update.scale, B[b], parallel);
    });
}

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
    // The order that decides about threads is that of a cube with as much work.
    const index_t order = m >= n ? std::max(n, std::min(m, 2 * n)) : n;
    for_items(A.count, order, [&](index_t b, bool parallel) {
        copy<T>(A[b], T(1), X[b], parallel);
        trsm<T>(L[b], true, X[b], parallel);
        trsm<T>(L[b].t(), false, X[b], parallel);
    });
}

// gL := -2 tril(L^-T Z), Z = L^-1 sym(gB) L^-T.
template <class T>
void potri_vjp_batch(Batch<const T> L, Batch<const T> gB, Batch<T> gL) {
    const index_t n = L.rows;
    if (n == 0) return;
    if (fits_lanes<T>(L.count, n, L, gB, gL)) {
        for_lane_ranges<T>(L.count, n * n * (3 * n + 12), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potri_reverse(L, gB, gL, begin, end, thread_scratch());
        });
        return;
    }
    for_items(L.count, n, [&](index_t b, bool parallel) {
        negated_symmetric_sum<T>(gB[b], gL[b], parallel);
        congruence<T>(L[b], gL[b], parallel);
        solve_lower_part<T>(L[b], gL[b], parallel);
        clear_strict_upper<T>(gL[b], parallel);
    });
}

// C := alpha (A B + D E) on the lower triangle; the upper one mirrored if symmetric, else zero.
template <class T>
void gemmt_sum_batch(T alpha, Batch<const T> A, Batch<const T> B, Batch<const T> D, Batch<const T> E, Batch<T> C,
                     bool symmetric) {
    const index_t n = C.rows, k = A.cols;
    if (n == 0) return;
    for_items(C.count, std::max(n, std::min(k, 2 * n)), [&](index_t b, bool parallel) {
        gemmt<T>(alpha, A[b], B[b], false, C[b], Upper::scribble, parallel);
        gemmt<T>(alpha, D[b], E[b], k > 0, C[b], symmetric ? Upper::mirror : Upper::clear, parallel);
    });
}

}  // namespace lapgrad
