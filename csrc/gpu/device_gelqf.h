// LQ factorisations of batches by panels of rows, and the gradient of an LQ factorisation, on a GPU.
#pragma once

#include "gpu/device_triangle.h"

namespace lapgrad::device {

// An instance of factor_panel in src/lapgrad/_kernels/cuda/kernels/gelqf_panel.cu: its handle, the most columns that it takes, and its
// shared memory.
struct PanelKernel {
    void* handle;
    index_t columns;
    std::size_t shared;
};

// The operands of a factorisation by panels, all but L contiguous: rows (items x m x n) holds A and then the reflections V of all
// panels, factors (items x panels x b x b) their triangles T, signs (items x rank) those of L's columns; right (items x b x n) and
// product (items x m x b) are workspace.
template <class T>
struct Panels {
    Batch<T> rows, factors, right, product;
    T* signs;
    index_t height;  // b

    index_t rank() const { return std::min(rows.rows, rows.cols); }

    // X := X (I - V' T V), or with T' for T, for the panel that starts at row `start`, and X without the columns before `start`, where
    // V is zero.
    void reflect(const Queue<T>& queue, const Batch<T>& X, index_t start, bool transpose) const {
        const index_t order = std::min(height, rank() - start), columns = rows.cols - start;
        const Batch<T> V = rows.block(start, start, order, columns), F = factors.block(start, 0, order, order);
        const Batch<T> TV = right.block(0, start, order, columns), XV = product.block(0, 0, X.rows, order);
        queue.gemm(TV, transpose ? F.t() : F, V);
        queue.gemm(XV, X, V.t());
        queue.gemm(X, XV, TV, T(-1), T(1));
    }

    // Factors all panels. Of L only the triangles on the diagonal are written; `kernels` are in the order of their columns.
    void factor(const Queue<T>& queue, const Batch<T>& L, const std::vector<PanelKernel>& kernels, unsigned threads) const {
        const index_t m = rows.rows, n = rows.cols, panels = (rank() + height - 1) / height;
        for (index_t start = 0; start < rank(); start += height) {
            std::size_t number = 0;
            while (number + 1 < kernels.size() && kernels[number].columns < n - start) ++number;
            queue.launch_other(kernels[number].handle, L.count, 1, 1, threads, kernels[number].shared, L.data, L.batch_stride,
                               L.row_stride, L.col_stride, rows.data, factors.data, signs, m, n, rank(), start, panels);
            const index_t below = start + std::min(height, rank() - start);
            if (below < m) reflect(queue, rows.block(below, start, m - below, n - start), start, false);
        }
    }

    // Q, which holds the identity with the signs, := the orthogonal factor, from the last panel back.
    void form(const Queue<T>& queue, const Batch<T>& Q) const {
        for (index_t start = (rank() - 1) / height * height; start >= 0; start -= height)
            reflect(queue, Q.block(start, start, rank() - start, Q.cols - start), start, true);
    }
};

// A := B for a row-major A and a B in either storage order.
template <class T>
void copy_any_order(const Queue<T>& queue, const Batch<T>& A, const Batch<T>& B) {
    if (B.col_stride == 1)
        queue.copy(A, B);
    else
        queue.copy_transposed(A, B.t());
}

// The lower triangle of Z := L' G + beta Z for lower triangular L and G; entries above it are undefined. A block of rows of Z
// depends only on the rows of L and G from there on.
template <class T>
void multiply_triangles(const Queue<T>& queue, const Batch<T>& Z, const Batch<T>& L, const Batch<T>& G, T beta,
                          index_t size) {
    const index_t n = L.rows;
    for (index_t start = 0; start < n; start += size) {
        const index_t order = std::min(size, n - start), stop = start + order, below = n - start;
        queue.gemm(Z.block(start, 0, order, stop), L.block(start, start, below, order).t(),
                   G.block(start, 0, below, stop), T(1), beta);
    }
}

// gA := L^-T (gQ + Z Q), one block row after the other from the last. The right-hand side of a block is computed in a buffer, so
// that nothing as large as gA is copied more than once.
template <class T>
void solve_sum(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& gA, const Batch<T>& L,
               const InvertedBlocks<T>& inverted, const Batch<T>& gQ, const Batch<T>& Z, const Batch<T>& Q) {
    const index_t r = L.rows, n = gA.cols, size = inverted.size, space = size * n;
    const Batch<T> held{arena.take(gA.count * space), gA.count, space, size, n, n, 1};
    if (queue == nullptr) return;
    for (index_t start = (r - 1) / size * size; start >= 0; start -= size) {
        const index_t order = std::min(size, r - start), first = start + order, done = r - first;
        const Batch<T> rest = held.block(0, 0, order, n);
        copy_any_order(*queue, rest, gQ.block(start, 0, order, n));
        queue->gemm(rest, Z.block(start, 0, order, r), Q, T(1), T(1));
        if (done > 0)
            queue->gemm(rest, L.block(first, start, done, order).t(), gA.block(first, 0, done, n), T(-1), T(1));
        queue->gemm(gA.block(start, 0, order, n), inverted.W.block(start, start, order, order).t(), rest);
    }
}

// Z := copyltu(Z + L' tril(gL)); copyltu(Z) if gL.data is null. `square` is a workspace for a copy of gL.
template <class T>
void finish_middle(const Queue<T>& queue, const Batch<T>& Z, const Batch<T>& L, const Batch<T>& gL, bool of_q,
                     const Batch<T>& square, index_t size) {
    if (gL.data != nullptr) {
        copy_any_order(queue, square, gL);
        queue.reshape(kClearUpper, square);
        multiply_triangles(queue, Z, L, square, T(of_q), size);
    }
    queue.reshape(kMirrorUp, Z);
}

// The gradient gA := L^-T (gQ + Z Q), Z = copyltu(L' tril(gL) - gQ Q'). gQ.data or gL.data is null where there is no such cotangent. `size` is the order of the inverted blocks, and
// `cut` as in triangular_product. The largest product comes first, so that the device is busy while the host launches the small
// ones.
template <class T>
void gelqf_vjp(const Queue<T>* queue, Arena<T>& arena, const Batch<T>& gA, const Batch<T>& Q, const Batch<T>& L,
               const Batch<T>& gQ, const Batch<T>& gL, index_t size, index_t cut) {
    const index_t r = L.rows, items = L.count;
    const bool of_q = gQ.data != nullptr, of_l = gL.data != nullptr;
    const auto matrix = [&](bool needed) {
        return Batch<T>{needed ? arena.take(items * r * r) : nullptr, items, r * r, r, r, r, 1};
    };
    const Batch<T> Z = matrix(true);
    if (of_q && queue != nullptr) triangular_product(*queue, Z, gQ, Q.t(), true, T(-1), T(0), cut);
    if (r <= size) {
        // One block is the whole inverse W, and gA = W' gQ + (W' Z) Q.
        const InvertedBlocks<T> inverted = invert_blocks(queue, arena, L, size);
        const Batch<T> square = matrix(true);
        if (items > 1 && of_q) {
            // For a batch W' (gQ + Z Q) is faster, which takes one product less and a copy of gQ.
            const Batch<T> sum{arena.take(items * r * gA.cols), items, r * gA.cols, r, gA.cols, gA.cols, 1};
            if (queue == nullptr) return;
            finish_middle(*queue, Z, L, gL, of_q, square, size);
            copy_any_order(*queue, sum, gQ);
            queue->gemm(sum, Z, Q, T(1), T(1));
            return queue->gemm(gA, inverted.W.t(), sum);
        }
        if (queue == nullptr) return;
        if (of_q) queue->gemm(gA, inverted.W.t(), gQ);
        finish_middle(*queue, Z, L, gL, of_q, square, size);
        queue->gemm(square, inverted.W.t(), Z);
        return queue->gemm(gA, square, Q, T(1), T(of_q));
    }
    const index_t mark = arena.mark();
    const Batch<T> square = matrix(of_l);
    arena.release(mark);
    if (queue != nullptr) finish_middle(*queue, Z, L, gL, of_q, square, size);
    const InvertedBlocks<T> inverted = invert_blocks(queue, arena, L, size);
    if (of_q) return solve_sum(queue, arena, gA, L, inverted, gQ, Z, Q);
    // Without gQ, L^-T Z has r columns, fewer than L^-T (Z Q).
    solve_left(queue, arena, Z, Z, L.t(), inverted.t(), false);
    if (queue != nullptr) queue->gemm(gA, Z, Q);
}

}  // namespace lapgrad::device
