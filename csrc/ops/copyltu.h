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

// B := B.rows rows of A + A', from row `begin` on.
template <class T>
void add_transpose_batch(Batch<const T> A, index_t begin, Batch<T> B) {
    for_passes(A.count, B.rows * B.cols,
               [&](index_t b, bool parallel) { add_transpose<T>(A[b], begin, B[b], parallel); });
}

}  // namespace lapgrad
