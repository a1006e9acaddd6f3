// The lower triangle of C := alpha A B (+ C). The triangle is cut into tiles: those below the diagonal are products, those on it
// are halved down to a size that the core's own kernel takes, which computes little more than the triangle.
#pragma once

#include "base/items.h"
#include "base/triangle.h"
#include "ops/gemm.h"

namespace lapgrad {

// The content of the strict upper triangle afterwards. `scribble`: undefined, because the caller does not use it yet.
enum class Upper { scribble, clear, mirror };

// Fills the block above the diagonal from its mirror image below, or with zeros, or not at all, as `upper` says.
template <class T>
void finish_upper(View<T> below, View<T> above, Upper upper, bool parallel) {
    if (upper == Upper::mirror) copy<T>(below.readonly().t(), T(1), above, parallel);
    if (upper == Upper::clear)
        for_strips(above.rows, above.cols, parallel, [&](index_t begin, index_t end) {
            set_zero<T>(above.block(begin, 0, end - begin, above.cols));
        });
}

// The lower triangle by the core's own kernel, in pieces of the sum that fit its packed panels; may overwrite the upper triangle.
// At order 256 it is a third faster than halving down to 64 with full products on the diagonal (1 thread).
template <class T>
void gemmt_leaf(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C) {
    const bool by_rows = C.col_stride == 1;
    const index_t piece = sums_in_place<T>(A, B) ? std::max(A.cols, isa::product_limit) : isa::product_limit;
    index_t p = 0;
    do {
        const index_t depth = std::min(piece, A.cols - p);
        const View<const T> strip = A.columns(p, depth), panel = B.block(p, 0, depth, B.cols);
        isa::kernels<T>().product_triangle(alpha, by_rows ? strip : panel.t(), by_rows ? panel : strip.t(),
                                           accumulate || p > 0, by_rows ? C : C.t(), by_rows, scratch<T>());
        p += piece;
    } while (p < A.cols);
}

// Whether B is the transpose of A in the same memory.
template <class T>
bool is_transpose(View<const T> A, View<const T> B) {
    return A.data == B.data && A.row_stride == B.col_stride && A.col_stride == B.row_stride;
}

// The same for each item of a batch.
template <class T>
bool is_transpose(Batch<const T> A, Batch<const T> B) {
    return is_transpose<T>(A[0], B[0]) && (A.count == 1 || A.batch_stride == B.batch_stride);
}

// The lower triangle by recursion, on one thread.
template <class T>
void gemmt_diagonal(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, Upper upper) {
    const index_t n = C.rows, k = A.cols;
    if (n == 1) return gemm<T>(alpha, A, B, accumulate, C);
    if (has_few_sums<T>(A, B)) {
        FewSums<T> sums = {};
        add_few_sums<T>(A, B, sums);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) {
                C(i, j) = alpha * sums[i][j] + (accumulate ? C(i, j) : T(0));
                if (j < i && upper != Upper::scribble) C(j, i) = upper == Upper::mirror ? C(i, j) : T(0);
            }
        return;
    }
    if (n <= isa::product_limit) {
        // Short sums: both triangles take less time than one and its mirror image. The kernel adds up both in the same order.
        const bool is_short = k * index_t(sizeof(T)) <= plan::short_sum_bytes;
        if (is_short && upper == Upper::mirror && !accumulate && is_transpose<T>(A, B) && C.col_stride == 1)
            return isa::kernels<T>().product(alpha, A, B, false, C, scratch<T>());
        gemmt_leaf<T>(alpha, A, B, accumulate, C);
        if (upper == Upper::mirror) mirror_lower<T>(C, false);
        if (upper == Upper::clear) clear_strict_upper<T>(C, false);
        return;
    }
    const index_t first = split_order(n), second = n - first;
    const View<T> C21 = C.block(first, 0, second, first);
    const View<const T> A2 = A.block(first, 0, second, k), B1 = B.block(0, 0, k, first);
    gemmt_diagonal<T>(alpha, A.block(0, 0, first, k), B1, accumulate, C.block(0, 0, first, first), upper);
    gemm<T>(alpha, A2, B1, accumulate, C21);
    finish_upper<T>(C21, C.block(0, first, first, second), upper, false);
    gemmt_diagonal<T>(alpha, A2, B.block(0, first, k, second), accumulate, C.block(first, first, second, second),
                      upper);
}

template <class T>
void gemmt(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, Upper upper, bool parallel) {
    const index_t n = C.rows, k = A.cols;
    if (n == 0) return;
    if (!parallel) return gemmt_diagonal<T>(alpha, A, B, accumulate, C, upper);
    const index_t tile = plan::triangle_tile(n, parallel::threads());
    const index_t tiles = (n + tile - 1) / tile;
    // Tiles below the diagonal come first: they cost twice as much, and short tasks at the end balance the threads.
    const index_t below = tiles * (tiles - 1) / 2;
    parallel::for_each(below + tiles, [&](index_t task) {
        index_t ti = 1;
        while (task < below && ti * (ti + 1) / 2 <= task) ++ti;
        const index_t tj = task < below ? task - ti * (ti - 1) / 2 : task - below;
        ti = task < below ? ti : tj;
        const index_t i = ti * tile, j = tj * tile, rows = std::min(tile, n - i), cols = std::min(tile, n - j);
        const View<const T> strip = A.block(i, 0, rows, k), panel = B.block(0, j, k, cols);
        const View<T> target = C.block(i, j, rows, cols);
        if (ti == tj) return gemmt_diagonal<T>(alpha, strip, panel, accumulate, target, upper);
        gemm<T>(alpha, strip, panel, accumulate, target);
        finish_upper<T>(target, C.block(j, i, cols, rows), upper, false);
    });
}

// The lower triangle of C := alpha A B; the upper one is mirrored if symmetric, else zero.
template <class T>
void gemmt_batch(T alpha, Batch<const T> A, Batch<const T> B, Batch<T> C, bool symmetric) {
    const index_t n = C.rows, k = A.cols;
    if (n == 0) return;
    if (k > 0 && fits_product_lanes<T>(C.count, n, n, k, A, B, C)) {
        for_lane_ranges<T>(C.count, n * n * k, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_product(alpha, A, B, C, symmetric, begin, end, thread_scratch());
        });
        return;
    }
    if (C.count == 1 && std::max(n, k) <= isa::leaf)  // No BLAS is called: its threads need no limit.
        return gemmt<T>(alpha, A[0], B[0], false, C[0], symmetric ? Upper::mirror : Upper::clear, false);
    const contention::LongLoop keep(double(n) * double(n) * double(k) >= 2 * plan::long_multiplications);
    for_items(C.count, plan::measure_columns(n, k), [&](index_t b, bool parallel) {
        gemmt<T>(alpha, A[b], B[b], false, C[b], symmetric ? Upper::mirror : Upper::clear, parallel);
    });
}

// The lower triangle of C := alpha (A B + D E); the upper one is mirrored if symmetric, else zero.
template <class T>
void gemmt_sum_batch(T alpha, Batch<const T> A, Batch<const T> B, Batch<const T> D, Batch<const T> E, Batch<T> C,
                     bool symmetric) {
    const index_t n = C.rows, k = A.cols;
    if (n == 0) return;
    // C := alpha (P + P') of the one product P = A B.
    const bool is_twice = symmetric && k > 0 && is_transpose<T>(A, E) && is_transpose<T>(B, D);
    if (is_twice && fits_product_lanes<T>(C.count, n, n, k, A, B, C)) {
        for_lane_ranges<T>(C.count, n * n * k, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gemm(n == 1 ? 2 * alpha : alpha, A, false, B, T(0), C.readonly(), C, begin, end, thread_scratch());
            for (index_t b = begin; b < end && n > 1; ++b) {
                const View<T> P = C[b];
                for (index_t i = 0; i < n; ++i)
                    for (index_t j = 0; j <= i; ++j) P(i, j) = P(j, i) = P(i, j) + P(j, i);
            }
        });
        return;
    }
    if (k > 0 && fits_product_lanes<T>(C.count, n, n, k, A, B, D, E, C)) {
        for_lane_ranges<T>(C.count, 2 * n * n * k, [&](index_t begin, index_t end) {
            const auto& kernels = isa::kernels<T>();
            kernels.lane_gemm(alpha, A, false, B, T(0), C.readonly(), C, begin, end, thread_scratch());
            kernels.lane_gemm(alpha, D, false, E, T(1), C.readonly(), C, begin, end, thread_scratch());
            for (index_t b = begin; b < end; ++b) symmetric ? mirror_lower<T>(C[b], false) : clear_strict_upper<T>(C[b], false);
        });
        return;
    }
    for_items(C.count, plan::measure_columns(n, k), [&](index_t b, bool parallel) {
        gemmt<T>(alpha, A[b], B[b], false, C[b], Upper::scribble, parallel);
        gemmt<T>(alpha, D[b], E[b], k > 0, C[b], symmetric ? Upper::mirror : Upper::clear, parallel);
    });
}

}  // namespace lapgrad
