// The inverse from a Cholesky factor on a GPU, in place.
//
// Block column after block column from the right, W = L^-1 takes the place of L: with I the rows below block J,
//     W_IJ = -W_II (L_IJ W_JJ)
// then, block row after block row from the top, W' W takes the place of W: rows J of it ask for rows from J on only.
#pragma once

#include "device_triangle.h"

namespace lapgrad::device {

template <class T>
void invert_triangle(const Queue<T>& queue, const Batch<T>& B, const InvertedBlocks<T>& inverted, T* held) {
    const index_t n = B.rows, size = inverted.size;
    for (index_t start = (n - 1) / size * size; start >= 0; start -= size) {
        const index_t order = std::min(size, n - start), stop = start + order, below = n - stop;
        const Batch<T> inverse = inverted.W.block(start, start, order, order);
        const Batch<T> column = B.block(stop, start, below, order), product{held, 1, 0, below, order, order, 1};
        queue.gemm(product, column, inverse);
        queue.trmm(column, B.block(stop, stop, below, below), product, true, false, T(-1));
        queue.copy(B.block(start, start, order, order), inverse);
    }
}

template <class T>
void square_triangle(const Queue<T>& queue, const Batch<T>& B, index_t size, T* held) {
    const index_t n = B.rows;
    for (index_t start = 0; start < n; start += size) {
        const index_t order = std::min(size, n - start), stop = start + order, below = n - start;
        const Batch<T> row{held, 1, 0, order, stop, stop, 1};
        queue.gemm(row, B.block(start, start, below, order).t(), B.block(start, 0, below, stop));
        queue.copy(B.block(start, 0, order, stop), row);
    }
}

// The lower triangle of B, which holds L in it, := (L L')^-1.
template <class T>
void invert_from_factor(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& B, index_t size) {
    const InvertedBlocks<T> inverted = invert_blocks(queue, arena, B, size);
    T* const held = arena.take(B.rows * std::min(B.rows, size));
    if (queue == nullptr) return;
    for (index_t item = 0; item < B.count; ++item) {
        invert_triangle(*queue, B.item(item), InvertedBlocks<T>{inverted.W.item(item), size}, held);
        square_triangle(*queue, B.item(item), size, held);
    }
}

}  // namespace lapgrad::device
