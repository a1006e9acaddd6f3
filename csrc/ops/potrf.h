// Cholesky factorisation and its reverse sweep, both in place and both recursions on products.
//
//     A = [A11    ]     L11 L11' = A11,   L21 = A21 L11^-T,   L22 L22' = A22 - L21 L21'         n^3/3
//         [A21 A22]
//
// The reverse sweep (Murray 2016, arXiv 1602.07527) runs the same steps backwards. Let G be the cotangent of L (lower)
// and S = G + G' the symmetric matrix that it turns into, block by block, in the same memory:
//
//     S22 = reverse(L22, G22)
//     G21 := (G21 - S22 L21) L11^-1
//     G11 := G11 - G21' L21            (lower triangle)
//     S11 = reverse(L11, G11),   S12 = G21'                                                   2/3 n^3
//
// If it starts from gL / 2, S ends as the symmetric gradient of A.
#pragma once

#include <cmath>

#include "base/items.h"
#include "base/lapack.h"
#include "ops/gemmt.h"
#include "ops/trsm.h"

namespace lapgrad {

// Factors A by LAPACK and returns the status that factor_lower would return. LAPACK stops at the first pivot that is not positive
// and leaves it in place, but takes an infinite pivot for a positive one.
template <class T>
int factor_lower_by_vendor(View<T> A) {
    const blas::blas_int n = blas::narrow(A.rows);
    const bool by_rows = A.row_major();
    const blas::blas_int ld = blas::narrow(by_rows ? A.row_stride : A.col_stride);
    blas::blas_int info = 0;
    lapack::routines<T>().potrf(by_rows ? "U" : "L", &n, A.data, &ld, &info);
    const index_t end = info > 0 ? info : A.rows;
    for (index_t k = 0; k < end; ++k)
        if (!std::isfinite(A(k, k))) return -int(k + 1);
    return info;
}

// Replaces the lower triangle of A by its Cholesky factor. Returns 0, +k if leading minor k is not positive, or -k if pivot k is NaN
// or infinite.
template <class T>
int factor_lower(View<T> A, bool parallel) {
    const index_t n = A.rows;
    if (n <= isa::leaf) return isa::kernels<T>().potrf(A, scratch<T>());
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    if (parallel && plan::uses_vendor_potrf<T>(n, parallel::threads())) return factor_lower_by_vendor<T>(A);
    const index_t first = split_order(n), second = n - first;
    const View<T> A11 = A.block(0, 0, first, first), A21 = A.block(first, 0, second, first),
                  A22 = A.block(first, first, second, second);
    if (const int code = factor_lower<T>(A11, parallel)) return code;
    trsm<T>(A11, true, A21.t(), parallel);
    gemmt<T>(-1, A21, A21.t(), true, A22, Upper::scribble, parallel);
    const int code = factor_lower<T>(A22, parallel);
    return code > 0 ? code + int(first) : code < 0 ? code - int(first) : 0;
}

// Replaces G, whose lower triangle is read, by the symmetric S of the reverse sweep.
template <class T>
void reverse_lower(View<const T> L, View<T> G, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) return isa::kernels<T>().potrf_reverse(L, G, scratch<T>());
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    const index_t first = split_order(n), second = n - first;
    const View<const T> L11 = L.block(0, 0, first, first), L21 = L.block(first, 0, second, first),
                        L22 = L.block(first, first, second, second);
    const View<T> G11 = G.block(0, 0, first, first), G21 = G.block(first, 0, second, first),
                  G22 = G.block(first, first, second, second);
    reverse_lower<T>(L22, G22, parallel);
    gemm<T>(-1, G22, L21, true, G21);
    trsm<T>(L11.t(), false, G21.t(), parallel);
    gemmt<T>(-1, G21.t(), L21, true, G11, Upper::scribble, parallel);
    reverse_lower<T>(L11, G11, parallel);
    copy<T>(G21.readonly().t(), T(1), G.block(0, first, first, second), parallel);
}

// L := lower Cholesky factor of A, info per item as from factor_lower. Failed items become the identity.
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
    for_items(A.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        copy_lower<T>(A[b], T(1), L[b], parallel);
        info[b] = factor_lower<T>(L[b], parallel);
        if (info[b])
            set_identity<T>(L[b]);
        else
            clear_strict_upper<T>(L[b], parallel);
    });
}

// gA := symmetric gradient of A from the lower triangles of the factor and of its cotangent. Items whose info is not 0 get
// zeros; info may be null.
template <class T>
void potrf_vjp_batch(Batch<const T> L, Batch<const T> gL, Batch<T> gA, const std::int32_t* info) {
    const index_t n = L.rows;
    if (n == 0) return;
    const auto has_failed = [&](index_t b) { return info && info[b]; };
    if (fits_lanes<T>(L.count, n, L, gL, gA)) {
        for_lane_ranges<T>(L.count, n * n * (2 * n + 12) / 3, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potrf_reverse(L, gL, gA, begin, end, thread_scratch());
        });
        for (index_t b = 0; b < L.count; ++b)
            if (has_failed(b)) set_zero<T>(gA[b]);
        return;
    }
    for_items(L.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        if (has_failed(b)) return set_zero<T>(gA[b]);
        copy_lower<T>(gL[b], T(0.5), gA[b], parallel);
        reverse_lower<T>(L[b], gA[b], parallel);
    });
}

}  // namespace lapgrad
