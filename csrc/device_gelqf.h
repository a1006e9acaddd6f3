// The gradient of an LQ factorisation on a GPU: gA = L^-T (gQ + Z Q), Z = copyltu(L' tril(gL) - gQ Q').
#pragma once

#include "device_triangle.h"

namespace lapgrad::device {

// What is measured, not derived: the order of inverted blocks and the way of the solve, the order down to which a
// triangle of a product is cut, and the number of parts of sums over many columns.
struct GelqfSizes {
    index_t block, cut, parts;
    Way way;
};

// gQ and gL have no data where there is no such gradient; gL has zeros above its diagonal.
template <class T>
void gelqf_vjp(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& gA, const Batch<T>& Q, const Batch<T>& L,
               const Batch<T>& gQ, const Batch<T>& gL, const GelqfSizes& sizes) {
    const index_t r = L.rows, items = L.count;
    const bool of_q = gQ.data != nullptr, of_l = gL.data != nullptr;
    const Batch<T> Z{arena.take(items * r * r), items, r * r, r, r, r, 1};
    if (of_l && queue != nullptr) queue->gemm(Z, L.t(), gL);
    if (of_q && items == 1 && sizes.parts > 1)
        long_product(queue, arena, Z, gQ, Q.t(), T(-1), T(of_l), sizes.parts);
    else if (of_q && queue != nullptr)
        triangular_product(*queue, Z, gQ, Q.t(), true, T(-1), T(of_l), sizes.cut);
    if (queue != nullptr) queue->reshape(kMirrorUp, Z);
    const InvertedBlocks<T> inverted = invert_blocks(queue, arena, L, sizes.block);
    if (r <= sizes.block) {
        // With the whole inverse W at hand, W' gQ + (W' Z) Q: nothing as large as gA is copied.
        const Batch<T> product{arena.take(items * r * r), items, r * r, r, r, r, 1};
        if (queue == nullptr) return;
        queue->gemm(product, inverted.W.t(), Z);
        if (of_q) queue->gemm(gA, inverted.W.t(), gQ);
        queue->gemm(gA, product, Q, T(1), T(of_q));
    } else if (!of_q) {
        // A solve with r right hand sides, in place of as many as gA has.
        solve_left(queue, arena, Z, Z, L.t(), inverted.t(), false, T(1), sizes.way);
        if (queue != nullptr) queue->gemm(gA, Z, Q);
    } else {
        if (queue != nullptr) {
            if (gQ.col_stride == 1)
                queue->copy(gA, gQ);
            else
                queue->copy_transposed(gA, gQ.t());
            queue->gemm(gA, Z, Q, T(1), T(1));
        }
        solve_left(queue, arena, gA, gA, L.t(), inverted.t(), false, T(1), sizes.way);
    }
}

}  // namespace lapgrad::device
