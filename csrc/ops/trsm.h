// X := L^-1 X with a triangular L, in place, by recursion on products:
//
//     [L11     ]-1 [X1]      X1 := L11^-1 X1
//     [L21  L22]   [X2]      X2 := L22^-1 (X2 - L21 X1)          (an upper triangle: the other way round)
//
// Columns of X are independent: with several threads each takes a slice and runs the whole recursion on it.
#pragma once

#include "base/buffer.h"
#include "base/items.h"
#include "base/triangle.h"
#include "ops/gemm.h"

namespace lapgrad {

// A row-major copy of one triangle of a block of order <= leaf, with zeros in the other one. `unit`: ones on the diagonal.
template <class T>
struct LeafTriangle {
    alignas(64) T entries[isa::leaf * isa::leaf];
    View<T> view;

    LeafTriangle(View<const T> L, bool lower, bool unit) : view{entries, L.rows, L.rows, isa::leaf, 1} {
        for (index_t i = 0; i < L.rows; ++i) {
            for (index_t j = 0; j < L.rows; ++j) view(i, j) = (lower ? j <= i : j >= i) ? L(i, j) : T(0);
            if (unit) view(i, i) = T(1);
        }
    }
};

// X := L^-1 X on one thread. With `unit` the diagonal of L is taken as ones, whatever is stored there.
template <class T>
void solve_triangle(View<const T> L, bool lower, View<T> X, bool unit = false) {
    const index_t n = L.rows;
    if (n <= isa::leaf) {
        if (unit) return solve_triangle<T>(LeafTriangle<T>(L, lower, true).view, lower, X);
        if (lower)
            isa::kernels<T>().solve(L, X, scratch<T>());
        else
            isa::kernels<T>().solve(L.reversed(), X.reversed_rows(), scratch<T>());
        return;
    }
    const index_t first = split_order(n), second = n - first, m = X.cols;
    const View<T> X1 = X.block(0, 0, first, m), X2 = X.block(first, 0, second, m);
    const View<const T> L11 = L.block(0, 0, first, first), L22 = L.block(first, first, second, second);
    if (lower) {
        solve_triangle<T>(L11, true, X1, unit);
        gemm<T>(-1, L.block(first, 0, second, first), X1, true, X2);
        solve_triangle<T>(L22, true, X2, unit);
    } else {
        solve_triangle<T>(L22, false, X2, unit);
        gemm<T>(-1, L.block(0, first, first, second), X2, true, X1);
        solve_triangle<T>(L11, false, X1, unit);
    }
}

// Calls body(slice) for slices of X's columns: one per thread, if they are wide enough, else X as a whole. While other programs use
// the cores there are several per thread: one that waits for its core then keeps a small part of the work waiting, not half of it.
template <class T, class F>
void for_column_slices(View<T> X, bool parallel, F body) {
    const int team = parallel ? parallel::threads() : 1;
    const index_t per_thread = team > 1 && contention::is_retreating() ? plan::contended_slices : 1;
    const index_t slices = std::min<index_t>(team * per_thread, X.cols / plan::current.slice_columns);
    if (slices <= 1) return body(X);
    const index_t width = (X.cols + slices - 1) / slices;
    parallel::for_each((X.cols + width - 1) / width, [&](index_t s) {
        body(X.columns(s * width, std::min(width, X.cols - s * width)));
    });
}

// X := L^-1 X by the BLAS library for an X of few columns, which are copied next to each other.
template <class T>
void solve_narrow(View<const T> L, bool lower, View<T> X, bool unit) {
    if (X.cols == 1 || !X.row_major()) return blas::trsm<T>(L, lower, X, unit);
    const Buffer<T> columns = allocate<T>(X.rows * X.cols);
    const View<T> copied{columns.get(), X.rows, X.cols, 1, X.rows};
    for (index_t i = 0; i < X.rows; ++i)
        for (index_t j = 0; j < X.cols; ++j) copied(i, j) = X(i, j);
    blas::trsm<T>(L, lower, copied, unit);
    for (index_t i = 0; i < X.rows; ++i)
        for (index_t j = 0; j < X.cols; ++j) X(i, j) = copied(i, j);
}

template <class T>
void trsm(View<const T> L, bool lower, View<T> X, bool parallel, bool unit = false) {
    if (L.rows == 0 || X.cols == 0) return;
    if (plan::uses_narrow_trsm<T>(L.rows, X.cols)) return solve_narrow<T>(L, lower, X, unit);
    if (plan::uses_vendor_trsm<T>(L.rows)) return blas::trsm<T>(L, lower, X, unit);
    for_column_slices<T>(X, parallel, [&](View<T> slice) { solve_triangle<T>(L, lower, slice, unit); });
}

// Returns the first zero on a diagonal as item * order + index; -1 if there is none.
template <class T>
index_t find_zero_diagonal(Batch<const T> L) {
    const index_t items = L.batch_stride == 0 && L.count > 0 ? 1 : L.count;
    for (index_t b = 0; b < items; ++b)
        for (index_t i = 0; i < L.rows; ++i)
            if (L[b](i, i) == T(0)) return b * L.rows + i;
    return -1;
}

// Whether a batch of triangles of order n with m columns is computed with one item per lane.
template <class T, class... Batches>
bool fits_triangle_lanes(index_t count, index_t n, index_t m, const Batches&... batches) {
    return n * m <= isa::lane_limit * isa::lane_limit && n * n * m <= plan::lane_order<T>() * plan::lane_order<T>() * plan::lane_order<T>() &&
           fits_lanes<T>(count, n, batches...);
}

// X := L^-1 A or L A for a batch: `lane_kernel` where one matrix per lane pays, else a copy of A and apply(L, X, parallel) on it.
template <class T, class LaneKernel, class Apply>
void apply_triangles(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> X, index_t serial_order, LaneKernel lane_kernel,
                     Apply apply) {
    const index_t n = L.rows, m = A.cols;
    if (n == 0 || m == 0) return;
    if (fits_triangle_lanes<T>(A.count, n, m, L, A, X)) {
        for_lane_ranges<T>(A.count, n * n * m + 8 * n, [&](index_t begin, index_t end) {
            lane_kernel(L, lower, A, X, begin, end, thread_scratch());
        });
        return;
    }
    if (A.count == 1 && std::max(n, m) <= isa::leaf) {  // No BLAS is called: its threads need no limit, which takes as long as a leaf.
        copy<T>(A[0], T(1), X[0], false);
        return apply(L[0], X[0], false);
    }
    const contention::LongLoop keep(double(n) * double(n) * double(m) >= 2 * plan::long_multiplications);
    for_items(A.count, plan::measure_right_side(n, m), serial_order, [&](index_t b, bool parallel) {
        copy<T>(A[b], T(1), X[b], parallel);
        apply(L[b], X[b], parallel);
    });
}

// X := L^-1 A. X may be A's own memory.
template <class T>
void trsm_batch(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> X) {
    const index_t serial_order = plan::uses_vendor_trsm<T>(L.rows) ? plan::current.vendor_trsm_serial
                                                                   : plan::serial_order(parallel::threads());
    apply_triangles<T>(L, lower, A, X, serial_order, isa::kernels<T>().lane_solve,
                       [&](View<const T> l, View<T> x, bool parallel) { trsm<T>(l, lower, x, parallel); });
}

}  // namespace lapgrad
