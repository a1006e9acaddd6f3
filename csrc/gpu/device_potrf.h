// The gradient of a Cholesky factorisation on a GPU: the recursive reverse sweep (docs/derivations.md), with
// H = (G + G') / 2 stored in place of G, so that the last block written is the gradient itself. For L and G split in four,
//
//     H22 := sweep(L22, G22)
//     H21 := (G21 - 2 H22 L21) L11^-1 / 2
//     G11 := G11 - 2 tril(H21' L21),  H11 := sweep(L11, G11)
//
// For a diagonal block whose inverse W is known, H = W' copyltu(L' G) W / 2.
#pragma once

#include "gpu/device_triangle.h"

namespace lapgrad::device {

// G := H for a diagonal block with the inverse W. The lower triangle of L' G does not depend on the upper triangle of G, because L
// is lower triangular.
template <class T>
void sweep_block(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& L, const Batch<T>& G, const Batch<T>& W) {
    const index_t n = L.rows, mark = arena.mark();
    const Batch<T> middle{arena.take(L.count * n * n), L.count, n * n, n, n, n, 1};
    const Batch<T> product{arena.take(L.count * n * n), L.count, n * n, n, n, n, 1};
    arena.release(mark);
    if (queue == nullptr) return;
    queue->gemm(middle, L.t(), G);
    queue->reshape(kMirrorUp, middle);
    queue->gemm(product, middle, W);
    queue->gemm(G, W.t(), product, T(0.5));
    queue->reshape(kMirrorUp, G);
}

// Replaces G, whose lower triangle is read, by the symmetric H.
template <class T>
void sweep(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& L, const Batch<T>& G,
           const InvertedBlocks<T>& inverted, index_t cut) {
    const index_t n = L.rows, size = inverted.size;
    if (n <= size) return sweep_block(queue, arena, L, G, inverted.W);
    const index_t half = size * ((n + size - 1) / size / 2), rest = n - half;
    const Batch<T> L11 = L.block(0, 0, half, half), L21 = L.block(half, 0, rest, half);
    const Batch<T> G11 = G.block(0, 0, half, half), H21 = G.block(half, 0, rest, half), H22 = G.block(half, half, rest, rest);
    sweep(queue, arena, L.block(half, half, rest, rest), H22, inverted.part(half, rest), cut);
    if (queue != nullptr) queue->gemm(H21, H22, L21, T(-2), T(1));
    solve_right(queue, arena, H21, H21, L11, inverted.part(0, half), true, T(0.5));
    if (queue != nullptr) triangular_product(*queue, G11, H21.t(), L21, true, T(-2), T(1), cut);
    sweep(queue, arena, L11, G11, inverted.part(0, half), cut);
    if (queue != nullptr) queue->copy_transposed(G.block(0, half, half, rest), H21);
}

}  // namespace lapgrad::device
