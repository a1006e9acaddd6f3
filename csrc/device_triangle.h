// Triangles on a GPU: inverses of diagonal blocks, solves and products made of them.
//
// The inverse of a triangle is all gemm but for its smallest blocks: with L = [[A, 0], [C, B]],
//     L^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]
// so blocks of 64 come from a kernel, and each doubling is two products for all blocks at once.
#pragma once

#include <algorithm>

#include "device.h"

namespace lapgrad::device {

// The inverses of the diagonal blocks of order `size` of a lower triangle, 64 times a power of two.
//
// W.block(r, r, s, s) is the inverse of L's block there, for r a multiple of `size`. Nothing else of W may be touched:
// its rows are min(n, size) apart, so that it takes n (size + 1) elements, not n^2.
template <class T>
struct InvertedBlocks {
    Batch<T> W;
    index_t size;

    InvertedBlocks part(index_t start, index_t order) const { return {W.block(start, start, order, order), size}; }
    InvertedBlocks t() const { return {W.t(), size}; }
};

// Every diagonal block of order 2 half: one of its quarters.
template <class T>
Batch<T> quarters(const Batch<T>& A, index_t top, index_t left, index_t half, index_t pairs) {
    return {A.data + top * A.row_stride + left * A.col_stride, pairs, 2 * half * (A.row_stride + A.col_stride), half, half,
            A.row_stride, A.col_stride};
}

template <class T>
void merge(const Queue<T>& queue, const Batch<T>& L, const Batch<T>& W, T* held, index_t half) {
    const index_t n = L.rows, pairs = n / (2 * half), rest = n % (2 * half);
    if (pairs > 0) {
        const Batch<T> product{held, pairs, half * half, half, half, half, 1};
        queue.gemm(product, quarters(L, half, 0, half, pairs), quarters(W, 0, 0, half, pairs));
        queue.gemm(quarters(W, half, 0, half, pairs), quarters(W, half, half, half, pairs), product, T(-1));
    }
    if (rest > half) {
        const index_t start = n - rest, middle = start + half, below = n - middle;
        const Batch<T> product{held, 1, 0, below, half, half, 1};
        queue.gemm(product, L.block(middle, start, below, half), W.block(start, start, half, half));
        queue.gemm(W.block(middle, start, below, half), W.block(middle, middle, below, below), product, T(-1));
    }
}

// Reads the lower triangle of L, whichever way it lies. With no queue, only the memory is counted.
template <class T>
InvertedBlocks<T> invert_blocks(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& L, index_t size) {
    const index_t n = L.rows, row = std::min(n, size), space = n * (row + 1);
    const Batch<T> W{arena.take(L.count * space), L.count, space, n, n, row, 1};
    const index_t mark = arena.mark();
    T* const held = arena.take(n * row / 4 + n);
    arena.release(mark);
    if (queue == nullptr) return {W, size};
    queue->clear(W.data, L.count * space);
    queue->invert_leaves(W, L);
    for (index_t half = kLeaf; half < size && half < n; half *= 2)
        for (index_t item = 0; item < L.count; ++item) merge(*queue, L.item(item), W.item(item), held, half);
    return {W, size};
}

// In which order a solve takes its blocks, and how well it does each.
struct Way {
    // Halves of the matrix, and halves of these: few, large products. Else block after block, each of which asks for
    // all that are done: products with few rows, and less memory moved.
    bool by_halves = false;
    // One step of refinement per block, with which the residual is that of a substitution whatever the condition of
    // the blocks is, up to 1 / sqrt(eps).
    bool refine = false;
};

// X := alpha M^-1 B, with `inverted` of M. B may be X; else it lies as X does, row by row or column by column.
template <class T>
class Solve {
  public:
    Solve(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& X, const Batch<T>& M,
          const InvertedBlocks<T>& inverted, bool lower, Way way)
        : queue_(queue), M_(M), inverted_(inverted), lower_(lower), way_(way) {
        const index_t most = std::min(X.rows, inverted.size), space = most * X.cols, mark = arena.mark();
        T* const memory = arena.take(X.count * space);
        arena.release(mark);
        held_ = X.col_stride == 1 ? Batch<T>{memory, X.count, space, most, X.cols, X.cols, 1}
                                  : Batch<T>{memory, X.count, space, X.cols, most, most, 1}.t();
    }

    void operator()(const Batch<T>& X, const Batch<T>& B, T alpha) const {
        if (queue_ == nullptr) return;
        if (way_.by_halves)
            halves(X, B, 0, alpha);
        else
            one_by_one(X, B, alpha);
    }

  private:
    // X_J = W_JJ (alpha B_J - sum M_JK X_K) over the K that are done.
    void one_by_one(const Batch<T>& X, const Batch<T>& B, T alpha) const {
        const index_t n = X.rows, size = inverted_.size, blocks = (n + size - 1) / size;
        for (index_t step = 0; step < blocks; ++step) {
            const index_t start = (lower_ ? step : blocks - 1 - step) * size, order = std::min(size, n - start);
            const index_t first = lower_ ? 0 : start + order, done = lower_ ? start : n - first;
            Batch<T> right = B.block(start, 0, order, X.cols);
            if (done > 0) {
                const Batch<T> rest = held_.block(0, 0, order, X.cols);
                queue_->copy(rest, right);
                queue_->gemm(rest, M_.block(start, first, order, done), X.block(first, 0, done, X.cols), T(-1), alpha);
                right = rest;
            }
            block(X.block(start, 0, order, X.cols), right, start, done > 0 ? T(1) : alpha);
        }
    }

    // With M = [[M11, 0], [M21, M22]]: X1 from B1, then X2 from B2 - M21 X1. X and B are rows of the whole from `start`.
    void halves(const Batch<T>& X, const Batch<T>& B, index_t start, T alpha) const {
        const index_t n = X.rows, size = inverted_.size;
        if (n <= size) return block(X, B, start, alpha);
        const index_t cut = size * ((n + size - 1) / size / 2);
        const index_t first = lower_ ? 0 : cut, done = lower_ ? cut : n - cut, second = cut - first, left = n - done;
        const Batch<T> X1 = X.block(first, 0, done, X.cols), X2 = X.block(second, 0, left, X.cols);
        const Batch<T> B2 = B.block(second, 0, left, X.cols);
        halves(X1, B.block(first, 0, done, X.cols), start + first, alpha);
        const Batch<T> rest = left <= size ? held_.block(0, 0, left, X.cols) : X2;
        if (rest.data != B2.data) queue_->copy(rest, B2);
        queue_->gemm(rest, M_.block(start + second, start + first, left, done), X1, T(-1), alpha);
        halves(X2, rest, start + second, T(1));
    }

    void block(const Batch<T>& X, Batch<T> right, index_t start, T scale) const {
        const Batch<T> inverse = inverted_.W.block(start, start, X.rows, X.rows);
        if (right.data == X.data || (way_.refine && right.data != held_.data)) {
            const Batch<T> rest = held_.block(0, 0, X.rows, X.cols);
            queue_->copy(rest, right);
            right = rest;
        }
        queue_->gemm(X, inverse, right, scale);
        if (!way_.refine) return;
        queue_->gemm(right, M_.block(start, start, X.rows, X.rows), X, T(-1), scale);
        queue_->gemm(X, inverse, right, T(1), T(1));
    }

    const Queue<T>* queue_;
    Batch<T> M_;
    InvertedBlocks<T> inverted_;
    bool lower_;
    Way way_;
    Batch<T> held_;
};

template <class T>
void solve_left(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& X, const Batch<T>& B, const Batch<T>& M,
                const InvertedBlocks<T>& inverted, bool lower, T alpha = 1, Way way = {}) {
    Solve<T>(queue, arena, X, M, inverted, lower, way)(X, B, alpha);
}

// X := alpha B M^-1: the transpose of M^-T B^T.
template <class T>
void solve_right(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& X, const Batch<T>& B, const Batch<T>& M,
                 const InvertedBlocks<T>& inverted, bool lower, T alpha = 1, Way way = {}) {
    solve_left(queue, arena, X.t(), B.t(), M.t(), inverted.t(), !lower, alpha, way);
}

// C := alpha A B + beta C where C is small beside the sums: they are cut into parts, which are computed side by side
// and then added. One item.
template <class T>
void long_product(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& C, const Batch<T>& A, const Batch<T>& B,
                  T alpha, T beta, index_t parts) {
    const index_t length = parts > 1 ? A.cols / parts : 0, mark = arena.mark();
    T* const memory = length > 0 ? arena.take(parts * C.rows * C.cols) : nullptr;
    arena.release(mark);
    if (queue == nullptr) return;
    if (length == 0) return queue->gemm(C, A, B, alpha, beta);
    const Batch<T> sums{memory, parts, C.rows * C.cols, C.rows, C.cols, C.cols, 1};
    queue->gemm(sums, {A.data, parts, length * A.col_stride, A.rows, length, A.row_stride, A.col_stride},
                {B.data, parts, length * B.row_stride, length, B.cols, B.row_stride, B.col_stride});
    queue->add_parts(C, sums, alpha, beta);
    const index_t summed = parts * length, rest = A.cols - summed;
    if (rest > 0) queue->gemm(C, A.block(0, summed, A.rows, rest), B.block(summed, 0, rest, B.cols), alpha, T(1));
}

// When sums are cut into parts: a product whose result has fewer tiles of this order than there are processors leaves
// some of them idle. No part is shorter than `shortest`.
struct Cutting {
    index_t processors = 1, tile = 1, shortest = 1;

    index_t parts(index_t rows, index_t cols, index_t terms) const {
        const index_t tiles = ((rows + tile - 1) / tile) * ((cols + tile - 1) / tile);
        return std::max<index_t>(1, std::min(processors / std::max<index_t>(tiles, 1), terms / shortest));
    }
};

// The named triangle of C := alpha A B + beta C, cut in halves down to `cut`; beyond it anything.
template <class T>
void triangular_product(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& C, const Batch<T>& A, const Batch<T>& B,
                        bool lower, T alpha, T beta, index_t cut, const Cutting& cutting = {}) {
    const index_t n = C.rows, inner = A.cols;
    const auto multiply = [&](const Batch<T>& part, const Batch<T>& left, const Batch<T>& right) {
        const index_t parts = part.count == 1 ? cutting.parts(part.rows, part.cols, inner) : 1;
        long_product(queue, arena, part, left, right, alpha, beta, parts);
    };
    if (n <= cut) return multiply(C, A, B);
    const index_t half = cut * ((n + cut - 1) / cut / 2), rest = n - half;
    triangular_product(queue, arena, C.block(0, 0, half, half), A.block(0, 0, half, inner), B.block(0, 0, inner, half),
                       lower, alpha, beta, cut, cutting);
    triangular_product(queue, arena, C.block(half, half, rest, rest), A.block(half, 0, rest, inner),
                       B.block(0, half, inner, rest), lower, alpha, beta, cut, cutting);
    if (lower)
        multiply(C.block(half, 0, rest, half), A.block(half, 0, rest, inner), B.block(0, 0, inner, half));
    else
        multiply(C.block(0, half, half, rest), A.block(0, 0, half, inner), B.block(0, half, inner, rest));
}

}  // namespace lapgrad::device
