// The gradient of an LQ factorisation on a GPU: gA = L^-T (gQ + Z Q), Z = copyltu(L' tril(gL) - gQ Q').
#pragma once

#include "device_triangle.h"

namespace lapgrad::device {

// A := B, of which the rows or the columns lie in one piece each.
template <class T>
void take(const Queue<T>& queue, const Batch<T>& A, const Batch<T>& B) {
    if (B.col_stride == 1)
        queue.copy(A, B);
    else
        queue.copy_transposed(A, B.t());
}

// gA := L^-T (gQ + Z Q), block row after block row from the last. The right hand side of a block is put together where
// it is multiplied by the inverse from, so that nothing as large as gA is copied more than once.
template <class T>
void solve_sum(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& gA, const Batch<T>& L,
               const InvertedBlocks<T>& inverted, const Batch<T>& gQ, const Batch<T>& Z, const Batch<T>& Q) {
    const index_t r = L.rows, n = gA.cols, size = inverted.size, space = size * n;
    const Batch<T> held{arena.take(gA.count * space), gA.count, space, size, n, n, 1};
    if (queue == nullptr) return;
    for (index_t start = (r - 1) / size * size; start >= 0; start -= size) {
        const index_t order = std::min(size, r - start), first = start + order, done = r - first;
        const Batch<T> rest = held.block(0, 0, order, n);
        take(*queue, rest, gQ.block(start, 0, order, n));
        queue->gemm(rest, Z.block(start, 0, order, r), Q, T(1), T(1));
        if (done > 0)
            queue->gemm(rest, L.block(first, start, done, order).t(), gA.block(first, 0, done, n), T(-1), T(1));
        queue->gemm(gA.block(start, 0, order, n), inverted.W.block(start, start, order, order).t(), rest);
    }
}

// gQ and gL have no data where there is no such gradient; gL has zeros above its diagonal. Blocks of order `block` are
// inverted, a triangle of a product is cut in halves down to `cut`.
template <class T>
void gelqf_vjp(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& gA, const Batch<T>& Q, const Batch<T>& L,
               const Batch<T>& gQ, const Batch<T>& gL, index_t block, index_t cut) {
    const index_t r = L.rows, items = L.count;
    const bool of_q = gQ.data != nullptr, of_l = gL.data != nullptr;
    const Batch<T> Z{arena.take(items * r * r), items, r * r, r, r, r, 1};
    if (of_l && queue != nullptr) queue->gemm(Z, L.t(), gL);
    if (of_q && queue != nullptr) triangular_product(*queue, Z, gQ, Q.t(), true, T(-1), T(of_l), cut);
    if (queue != nullptr) queue->reshape(kMirrorUp, Z);
    const InvertedBlocks<T> inverted = invert_blocks(queue, arena, L, block);
    if (r <= block) {
        // With the whole inverse W at hand, W' gQ + (W' Z) Q: nothing as large as gA is copied.
        const Batch<T> product{arena.take(items * r * r), items, r * r, r, r, r, 1};
        if (queue == nullptr) return;
        queue->gemm(product, inverted.W.t(), Z);
        if (of_q) queue->gemm(gA, inverted.W.t(), gQ);
        queue->gemm(gA, product, Q, T(1), T(of_q));
    } else if (!of_q) {
        // A solve with r right hand sides, in place of as many as gA has.
        solve_left(queue, arena, Z, Z, L.t(), inverted.t(), false);
        if (queue != nullptr) queue->gemm(gA, Z, Q);
    } else {
        solve_sum(queue, arena, gA, L, inverted, gQ, Z, Q);
    }
}

}  // namespace lapgrad::device
