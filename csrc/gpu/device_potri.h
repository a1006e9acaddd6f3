// The inverse from a Cholesky factor on a GPU, in place and recursive. For L, and B = (L L')^-1, split in four,
//
//     V := L21 L11^-1,  S := (L22 L22')^-1
//     B22 = S,  B21 = -S V,  B11 = (L11 L11')^-1 + V' S V
//
// all of which are products of large blocks. (The textbook computes L^-1 and then L^-T L^-1. It has as many flops, but half of
// them in products of few rows with long sums, which leave multiprocessors idle.)
//
// For a diagonal block whose inverse W is known, B = W' W.
#pragma once

#include "gpu/device_triangle.h"

namespace lapgrad::device {

// The lower triangle of B11 := B11 + V' S V, and V := -S V, where B21 holds V. Block columns are computed from the left, because
// each needs the columns of V to its right unchanged.
template <class T>
void apply_complement(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& B11, const Batch<T>& B21, const Batch<T>& S,
                      index_t size) {
    const index_t n = B11.rows, rest = S.rows, mark = arena.mark();
    T* const held = arena.take(B11.count * rest * std::min(size, n));
    arena.release(mark);
    if (queue == nullptr) return;
    for (index_t start = 0; start < n; start += size) {
        const index_t order = std::min(size, n - start);
        const Batch<T> product{held, B11.count, rest * order, rest, order, order, 1};
        const Batch<T> column = B21.block(0, start, rest, order);
        queue->gemm(product, S, column, T(-1));
        queue->gemm(B11.block(start, start, n - start, order), B21.block(0, start, rest, n - start).t(), product, T(-1),
                    T(1));
        queue->copy(column, product);
    }
}

// Replaces L, the lower triangle of B, by that of the inverse; entries above it are undefined.
template <class T>
void invert_from_factor(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& B, const InvertedBlocks<T>& inverted) {
    const index_t n = B.rows, size = inverted.size;
    if (n <= size) {
        if (queue != nullptr) queue->gemm(B, inverted.W.t(), inverted.W);
        return;
    }
    const index_t half = size * ((n + size - 1) / size / 2), rest = n - half;
    const Batch<T> B11 = B.block(0, 0, half, half), B21 = B.block(half, 0, rest, half), S = B.block(half, half, rest, rest);
    solve_right(queue, arena, B21, B21, B11, inverted.part(0, half), true);
    invert_from_factor(queue, arena, S, inverted.part(half, rest));
    if (queue != nullptr) queue->reshape(kMirrorUp, S);
    invert_from_factor(queue, arena, B11, inverted.part(0, half));
    apply_complement(queue, arena, B11, B21, S, size);
}

}  // namespace lapgrad::device
