// Batches of symmetric matrices from one triangle (copyltu), and of sums A + A'.
#pragma once

#include "base/triangle.h"

namespace lapgrad {

// B := the symmetric matrix with the lower triangle of A. B may be A's own memory.
template <class T>
void copyltu_batch(Batch<const T> A, Batch<T> B) {
    for_passes(A.count, A.rows * A.cols, [&](index_t b, bool parallel) {
        copy_lower<T>(A[b], T(1), B[b], parallel);
        mirror_lower<T>(B[b], parallel);
    });
}

// gA := the gradient for the cotangent gB: the lower triangle of gB + gB', with the diagonal of gB.
template <class T>
void copyltu_vjp_batch(Batch<const T> gB, Batch<T> gA) {
    const index_t n = gA.rows;
    for_passes(gA.count, n * n, [&](index_t b, bool parallel) {
        const View<const T> G = gB[b];
        const View<T> target = gA[b];
        if (n <= strip_rows) {
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < n; ++j) target(i, j) = j < i ? G(i, j) + G(j, i) : j == i ? G(i, i) : T(0);
            return;
        }
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
