// The operators on batches: the steps around the recursion (copy in, clear the other triangle, failed items), run as
// items.h says.
#pragma once

#include "base/items.h"
#include "ops/potrf.h"
#include "ops/trmm.h"

namespace lapgrad {

// L := lower factor of A, info per item. Failed items become the identity.
template <class T>
void potrf_batch(Batch<const T> A, Batch<T> L, std::int32_t* info) {
    const index_t n = A.rows;
    if (n == 0) {
        std::fill(info, info + A.count, 0);
        return;
    }
    if (fits_lanes<T>(A.count, n, A, L)) {
        for_lane_ranges<T>(A.count, n * n * (n + 12) / 3, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potrf(A, L, info, begin, end, thread_scratch());
        });
        for (index_t b = 0; b < A.count; ++b)
            if (info[b]) set_identity<T>(L[b]);
        return;
    }
    for_items(A.count, n, [&](index_t b, bool parallel) {
        copy_lower<T>(A[b], T(1), L[b], parallel);
        info[b] = factor_lower<T>(L[b], parallel);
        if (info[b])
            set_identity<T>(L[b]);
        else
            clear_strict_upper<T>(L[b], parallel);
    });
}

// gA := symmetric gradient of A from the factor and its cotangent, whose lower triangles are read. Items whose info is
// not 0 get zero. info may be null.
template <class T>
void potrf_vjp_batch(Batch<const T> L, Batch<const T> gL, Batch<T> gA, const std::int32_t* info) {
    const index_t n = L.rows;
    if (n == 0) return;
    const auto failed = [&](index_t b) { return info && info[b]; };
    if (fits_lanes<T>(L.count, n, L, gL, gA)) {
        for_lane_ranges<T>(L.count, n * n * (2 * n + 12) / 3, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potrf_reverse(L, gL, gA, begin, end, thread_scratch());
        });
        for (index_t b = 0; b < L.count; ++b)
            if (failed(b)) set_zero<T>(gA[b]);
        return;
    }
    for_items(L.count, n, [&](index_t b, bool parallel) {
        if (failed(b)) return set_zero<T>(gA[b]);
        copy_lower<T>(gL[b], T(0.5), gA[b], parallel);
        reverse_lower<T>(L[b], gA[b], parallel);
    });
}

// The first zero on a diagonal, as item * order + index; -1 if there is none.
template <class T>
index_t find_zero_diagonal(Batch<const T> L) {
    const index_t items = L.batch_stride == 0 && L.count > 0 ? 1 : L.count;
    for (index_t b = 0; b < items; ++b)
        for (index_t i = 0; i < L.rows; ++i)
            if (L[b](i, i) == T(0)) return b * L.rows + i;
    return -1;
}

// X := L^-1 A (Solve) or L A. X may be A's own memory.
template <class T, bool Solve>
void triangle_batch(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> X) {
    const index_t n = L.rows, m = A.cols;
    if (n == 0 || m == 0) return;
    // Products of few rows and columns have kernels that want one layout.
    if (fits_lanes<T>(A.count, std::max(n, m), L, A, X) && (Solve || A.row_stride == X.row_stride)) {
        for_lane_ranges<T>(A.count, n * n * m + 8 * n, [&](index_t begin, index_t end) {
            (Solve ? isa::kernels<T>().lane_solve : isa::kernels<T>().lane_multiply)(L, lower, A, X, begin, end,
                                                                                     thread_scratch());
        });
        return;
    }
    // The order that decides about threads is that of a cube with as much work.
    const index_t order = m >= n ? std::max(n, std::min(m, 2 * n)) : n;
    const index_t serial_order = Solve && plan::vendor_trsm<T>(n) ? plan::current.vendor_trsm_serial
                                                                  : plan::serial_order(parallel::threads());
    for_items(A.count, order, serial_order, [&](index_t b, bool parallel) {
        copy<T>(A[b], T(1), X[b], parallel);
        Solve ? trsm<T>(L[b], lower, X[b], parallel) : trmm<T>(L[b], lower, X[b], parallel);
    });
}

// C := alpha A B on the lower triangle; the upper one mirrored if symmetric, else zero.
template <class T>
void gemmt_batch(T alpha, Batch<const T> A, Batch<const T> B, Batch<T> C, bool symmetric) {
    const index_t n = C.rows, k = A.cols;
    if (n == 0) return;
    if (k > 0 && fits_lanes<T>(C.count, std::max(n, k), A, B, C)) {
        for_lane_ranges<T>(C.count, n * n * k, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_product(alpha, A, B, C, symmetric, begin, end, thread_scratch());
        });
        return;
    }
    for_items(C.count, std::max(n, std::min(k, 2 * n)), [&](index_t b, bool parallel) {
        gemmt<T>(alpha, A[b], B[b], false, C[b], symmetric ? Upper::mirror : Upper::clear, parallel);
    });
}

// body(item, parallel inside it?): a pass over memory, with the threads on the items or on the elements of one.
template <class F>
void for_passes(index_t count, index_t elements, F body) {
    if (elements >= parallel_elements) {
        for (index_t b = 0; b < count; ++b) body(b, true);
        return;
    }
    parallel::for_ranges(count, parallel_elements / std::max<index_t>(1, elements), [&](index_t begin, index_t end) {
        for (index_t b = begin; b < end; ++b) body(b, false);
    });
}

// B := A's lower triangle, mirrored. B may be A's own memory.
template <class T>
void copyltu_batch(Batch<const T> A, Batch<T> B) {
    for_passes(A.count, A.rows * A.cols, [&](index_t b, bool parallel) {
        copy_lower<T>(A[b], T(1), B[b], parallel);
        mirror_lower<T>(B[b], parallel);
    });
}

// B := rows of A + A', from row `begin` on.
template <class T>
void add_transpose_batch(Batch<const T> A, index_t begin, Batch<T> B) {
    for_passes(A.count, B.rows * B.cols,
               [&](index_t b, bool parallel) { add_transpose<T>(A[b], begin, B[b], parallel); });
}

}  // namespace lapgrad
