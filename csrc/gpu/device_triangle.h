// Triangles on a GPU: inverses of diagonal blocks, solves and products made of them.
//
// The inverse of a triangle consists of products except for its smallest blocks: with L = [[A, 0], [C, B]],
//     L^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]
// A kernel inverts blocks of order kLeaf. Another kernel doubles their order, up to 2 kLargestMerge; above, two batched products do.
// Each step works on all blocks at once.
#pragma once

#include <algorithm>

#include "gpu/device.h"

namespace lapgrad::device {

// The inverses of the diagonal blocks of order `size` of a lower triangle; `size` is kLeaf times a power of two.
//
// W.block(r, r, s, s) is the inverse of L's block there, for r a multiple of `size`. Other blocks of W must not be used: its rows
// are min(n, size) elements apart and overlap, so that it takes n (size + 1) elements, not n^2.
template <class T>
struct InvertedBlocks {
    Batch<T> W;
    index_t size;

    InvertedBlocks part(index_t start, index_t order) const { return {W.block(start, start, order, order), size}; }
    InvertedBlocks t() const { return {W.t(), size}; }
};

// Returns the quarter at (top, left) of each of the first `pairs` diagonal blocks of order 2 half, as a batch.
template <class T>
Batch<T> view_quarters(const Batch<T>& A, index_t top, index_t left, index_t half, index_t pairs) {
    return {A.data + top * A.row_stride + left * A.col_stride, pairs, 2 * half * (A.row_stride + A.col_stride), half, half,
            A.row_stride, A.col_stride};
}

// Completes W from the inverses of diagonal blocks of order `half` to those of order 2 half, by products. `held` is a workspace.
template <class T>
void merge_by_products(const Queue<T>& queue, const Batch<T>& L, const Batch<T>& W, T* held, index_t half) {
    const index_t n = L.rows, pairs = n / (2 * half), rest = n % (2 * half);
    if (pairs > 0) {
        const Batch<T> product{held, pairs, half * half, half, half, half, 1};
        queue.gemm(product, view_quarters(L, half, 0, half, pairs), view_quarters(W, 0, 0, half, pairs));
        queue.gemm(view_quarters(W, half, 0, half, pairs), view_quarters(W, half, half, half, pairs), product, T(-1));
    }
    if (rest > half) {
        const index_t start = n - rest, middle = start + half, below = n - middle;
        const Batch<T> product{held, 1, 0, below, half, half, 1};
        queue.gemm(product, L.block(middle, start, below, half), W.block(start, start, half, half));
        queue.gemm(W.block(middle, start, below, half), W.block(middle, middle, below, below), product, T(-1));
    }
}

// The same for all items at once, one pair of blocks after the other. `held` is a workspace of half^2 numbers per item.
template <class T>
void merge_items_by_products(const Queue<T>& queue, const Batch<T>& L, const Batch<T>& W, T* held, index_t half) {
    for (index_t start = 0; start + half < L.rows; start += 2 * half) {
        const index_t middle = start + half, below = std::min(half, L.rows - middle);
        const Batch<T> product{held, L.count, half * half, below, half, half, 1};
        queue.gemm(product, L.block(middle, start, below, half), W.block(start, start, half, half));
        queue.gemm(W.block(middle, start, below, half), W.block(middle, middle, below, below), product, T(-1));
    }
}

// Returns the inverted diagonal blocks of L, whose lower triangle is read, in either storage order; with `unit` its diagonal is 1. Without a queue nothing is
// launched and only the workspace is measured; that holds for all functions below that take a pointer to a queue.
template <class T>
InvertedBlocks<T> invert_blocks(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& L, index_t size, bool unit = false) {
    const index_t n = L.rows, row = std::min(n, size), space = n * (row + 1);
    const Batch<T> W{arena.take(L.count * space), L.count, space, n, n, row, 1};
    const index_t mark = arena.mark();
    // Few large items are taken one after another, many small ones together: whichever makes fewer products. For many items products
    // are faster than the kernel at every order.
    constexpr index_t kMany = 64;
    const bool many = L.count >= kMany, together = many || L.count > (n + 4 * kLargestMerge - 1) / (4 * kLargestMerge);
    index_t largest = 0;  // order of the largest blocks that are merged by products
    for (index_t order = many ? kLeaf : 2 * kLargestMerge; order < size && order < n; order *= 2) largest = order;
    T* const held = arena.take(together ? L.count * largest * largest : n * row / 4 + n);
    arena.release(mark);
    if (queue == nullptr) return {W, size};
    queue->clear(W.data, L.count * space);
    queue->invert_leaves(W, L, unit);
    index_t half = kLeaf;
    for (; !many && half <= kLargestMerge && half < size && half < n; half *= 2) queue->merge_inverses(W, L, half);
    for (; half < size && half < n; half *= 2) {
        if (together)
            merge_items_by_products(*queue, L, W, held, half);
        else
            for (index_t item = 0; item < L.count; ++item) merge_by_products(*queue, L.item(item), W.item(item), held, half);
    }
    return {W, size};
}

// X := alpha M^-1 B, where `inverted` has the inverted blocks of M. Block row after block row,
//     X_J = W_JJ (alpha B_J - sum_K M_JK X_K)  over the K that are done.
// B may be X; else it has the storage order of X. `refine`: one step of iterative refinement per block, after which the residual is
// as small as that of a substitution for blocks with a condition number up to 1 / sqrt(eps).
template <class T>
void solve_left(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& X, const Batch<T>& B, const Batch<T>& M,
                const InvertedBlocks<T>& inverted, bool lower, T alpha = 1, bool refine = false) {
    const index_t n = X.rows, size = inverted.size, most = std::min(n, size), blocks = (n + size - 1) / size;
    const index_t space = most * X.cols, mark = arena.mark();
    T* const memory = arena.take(X.count * space);
    arena.release(mark);
    if (queue == nullptr) return;
    const Batch<T> held = X.col_stride == 1 ? Batch<T>{memory, X.count, space, most, X.cols, X.cols, 1}
                                            : Batch<T>{memory, X.count, space, X.cols, most, most, 1}.t();
    for (index_t step = 0; step < blocks; ++step) {
        const index_t start = (lower ? step : blocks - 1 - step) * size, order = std::min(size, n - start);
        const index_t first = lower ? 0 : start + order, done = lower ? start : n - first;
        const Batch<T> block = X.block(start, 0, order, X.cols), rest = held.block(0, 0, order, X.cols);
        const Batch<T> inverse = inverted.W.block(start, start, order, order);
        Batch<T> right = B.block(start, 0, order, X.cols);
        // The right-hand side is copied if it is modified, or is the memory that the product writes to.
        if (done > 0 || refine || right.data == block.data) {
            queue->copy(rest, right);
            right = rest;
        }
        if (done > 0)
            queue->gemm(rest, M.block(start, first, order, done), X.block(first, 0, done, X.cols), T(-1), alpha);
        const T scale = done > 0 ? T(1) : alpha;
        queue->gemm(block, inverse, right, scale);
        if (!refine) continue;
        queue->gemm(rest, M.block(start, start, order, order), block, T(-1), scale);
        queue->gemm(block, inverse, rest, T(1), T(1));
    }
}

// X := alpha B M^-1: the transpose of M^-T B^T.
template <class T>
void solve_right(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& X, const Batch<T>& B, const Batch<T>& M,
                 const InvertedBlocks<T>& inverted, bool lower, T alpha = 1) {
    solve_left(queue, arena, X.t(), B.t(), M.t(), inverted.t(), !lower, alpha);
}

// The named triangle of C := alpha A B + beta C. Diagonal blocks are halved down to order `cut` and then computed in full, so entries
// of the other triangle near the diagonal are undefined.
template <class T>
void triangular_product(const Queue<T>& queue, const Batch<T>& C, const Batch<T>& A, const Batch<T>& B, bool lower,
                        T alpha, T beta, index_t cut) {
    const index_t n = C.rows, inner = A.cols;
    if (n <= cut) return queue.gemm(C, A, B, alpha, beta);
    const index_t half = cut * ((n + cut - 1) / cut / 2), rest = n - half;
    triangular_product(queue, C.block(0, 0, half, half), A.block(0, 0, half, inner), B.block(0, 0, inner, half), lower,
                       alpha, beta, cut);
    triangular_product(queue, C.block(half, half, rest, rest), A.block(half, 0, rest, inner),
                       B.block(0, half, inner, rest), lower, alpha, beta, cut);
    if (lower)
        queue.gemm(C.block(half, 0, rest, half), A.block(half, 0, rest, inner), B.block(0, 0, inner, half), alpha, beta);
    else
        queue.gemm(C.block(0, half, half, rest), A.block(0, 0, half, inner), B.block(0, half, inner, rest), alpha, beta);
}

}  // namespace lapgrad::device
