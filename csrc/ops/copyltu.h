// Batches of symmetric matrices from one triangle (copyltu), and of sums A + A'.
#pragma once

#include "ops/packing.h"

namespace lapgrad {

// B := the symmetric matrix with the lower triangle of A. B may be A's own memory.
template <class T>
void copyltu_batch(Batch<const T> A, Batch<T> B) {
    if (A.rows == 1 && B.batch_stride == 1) return copy_entries<T>(A.data, A.batch_stride, A.count, B.data);
    const bool is_short = for_short_items(A.rows, A.count, [&](index_t b, auto order) {
        const View<const T> source = A[b];
        const View<T> target = B[b];
        for (index_t i = 0; i < order; ++i)
            for (index_t j = 0; j <= i; ++j) target(i, j) = target(j, i) = source(i, j);
    });
    if (is_short) return;
    for_passes(A.count, A.rows * A.cols, [&](index_t b, bool parallel) {
        copy_lower<T>(A[b], T(1), B[b], parallel);
        mirror_lower<T>(B[b], parallel);
    });
}

// gA := the gradient for the cotangent gB: the lower triangle of gB + gB', with the diagonal of gB.
template <class T>
void copyltu_vjp_batch(Batch<const T> gB, Batch<T> gA) {
    const index_t n = gA.rows;
    if (n == 1 && gA.batch_stride == 1) return copy_entries<T>(gB.data, gB.batch_stride, gB.count, gA.data);
    const auto compute = [&](index_t b, auto order) {
        const View<const T> G = gB[b];
        const View<T> target = gA[b];
        for (index_t i = 0; i < order; ++i) {
            for (index_t j = 0; j < i; ++j) target(i, j) = G(i, j) + G(j, i);
            target(i, i) = G(i, i);
            for (index_t j = i + 1; j < order; ++j) target(i, j) = T(0);
        }
    };
    if (for_short_items(n, gA.count, compute)) return;
    for_passes(gA.count, n * n, [&](index_t b, bool parallel) {
        if (n <= strip_rows) return compute(b, n);
        const View<const T> G = gB[b];
        const View<T> target = gA[b];
        add_transpose<T>(G, 0, target, parallel);
        clear_strict_upper<T>(target, parallel);
        for (index_t i = 0; i < n; ++i) target(i, i) = G(i, i);
    });
}

// B := B.rows rows of A + A', from row `begin` on.
template <class T>
void add_transpose_batch(Batch<const T> A, index_t begin, Batch<T> B) {
    for_passes(A.count, B.rows * B.cols,
               [&](index_t b, bool parallel) { add_transpose<T>(A[b], begin, B[b], parallel); });
}

}  // namespace lapgrad
