// The gradients of eigenvalues and of singular values on a GPU, above the small orders: products around kernels that apply the rules
// for close values (src/lapgrad/_kernels/cuda/kernels/syevd_vjp_tiles.cu and gesvd_vjp_tiles.cu, which have the formulas).
#pragma once

#include "gpu/device_triangle.h"

namespace lapgrad::device {

// The kernels in the order in which Python passes their handles.
enum SyevdKernel { kSyevdMeasure, kSyevdWeigh, kSyevdScale, kSyevdMirror };
enum GesvdKernel { kGesvdMeasure, kGesvdWeigh, kGesvdScale };

constexpr index_t kWarps = kThreads / 32;

// The arguments of the rule for close values besides matrices: the values and their cotangents (or null), the policy with its tolerance,
// the cell that failed items are reported to (or null), and how many rows a warp measures.
template <class T>
struct SpectralRule {
    const T *values, *slope;
    index_t policy;
    double tol;
    long long* failure;
    index_t share;
};

inline index_t divide_up(index_t a, index_t b) { return (a + b - 1) / b; }

// Blocks of a launch with one block per pair of mirrored tiles.
inline index_t count_pairs(index_t items, index_t n) {
    const index_t tiles = divide_up(n, kTile);
    return items * (tiles * (tiles + 1) / 2);
}

// Bytes of a block with that many tiles, and a number for each of its warps.
template <class T>
std::size_t count_tile_bytes(index_t tiles) {
    return static_cast<std::size_t>(tiles * kTile * (kTile + 1) + kWarps) * sizeof(T);
}

// gA := U' M U, symmetric, with M = weigh(gU U'), or diag(slope) if gU.data is null. gA is contiguous and holds M in between. `inner`
// is as large as gA, `sizes` has 2 numbers per row. From the order `triangle` on, only a triangle is multiplied, with blocks of
// order `cut`. `send` is called when the last kernel that may report a failed item has been launched: products follow.
template <class T, class Send>
void syevd_vjp(const Queue<T>& queue, const Batch<T>& gA, const Batch<T>& U, const Batch<T>& gU, const SpectralRule<T>& rule,
               T* inner, T* sizes, index_t triangle, index_t cut, const Send& send) {
    const index_t n = gA.rows, rows = gA.count * n, pairs = count_pairs(gA.count, n);
    const Batch<T> W{inner, gA.count, n * n, n, n, n, 1};
    if (gU.data != nullptr) {
        queue.gemm(gA, gU, U.t());
        queue.launch(kSyevdMeasure, divide_up(rows, kWarps * rule.share), 1, 1, kThreads, 0, sizes, sizes + rows, gU.data,
                     gU.batch_stride, gU.row_stride, gU.col_stride, gA.data, rule.share, rows, n);
        queue.launch(kSyevdWeigh, pairs, 1, 1, kThreads, count_tile_bytes<T>(2), gA.data, sizes, sizes + rows, rule.values,
                     rule.slope, rule.policy, rule.tol, rule.failure, n);
        send();
        queue.gemm(W, gA, U);
    } else {
        queue.launch(kSyevdScale, divide_up(rows, kWarps), 1, 1, kThreads, 0, W.data, U.data, U.batch_stride, U.row_stride,
                     U.col_stride, rule.values, rule.slope, rule.tol, rule.failure, rows, n);
        send();
    }
    if (n >= triangle) triangular_product(queue, gA, U.t(), W, true, T(1), T(0), cut);
    else queue.gemm(gA, U.t(), W);
    queue.launch(kSyevdMirror, pairs, 1, 1, kThreads, count_tile_bytes<T>(1), gA.data, n);
}

// gA := U' (G V), for a wide A + U' S^-1 gV, with G = weigh(gU U', gV V'), or diag(slope) if gU.data and gV.data are null. V has at
// least as many columns as U. `middle` is memory for G: it may be that of gA, which may be a transposed view. `inner` is as large
// as gA, and `moved` has k^2 numbers per item; it may be `inner` unless V is wide and gV is there. `sizes` has 3 numbers per row, and `send`
// is as above.
template <class T, class Send>
void gesvd_vjp(const Queue<T>& queue, const Batch<T>& gA, const Batch<T>& U, const Batch<T>& V, const Batch<T>& gU,
               const Batch<T>& gV, const SpectralRule<T>& rule, T* middle, T* inner, T* moved, T* sizes, const Send& send) {
    const index_t k = V.rows, n = V.cols, items = V.count, rows = items * k;
    const Batch<T> W{inner, items, k * n, k, n, n, 1}, G{middle, items, k * k, k, k, k, 1};
    const bool has_u = gU.data != nullptr, has_v = gV.data != nullptr, outside = has_v && k < n;
    if (has_u || has_v) {
        const Batch<T> Y{has_v ? moved : nullptr, items, k * k, k, k, k, 1};
        T* const most_u = has_u ? sizes : nullptr;
        T* const most_v = has_v ? sizes + rows : nullptr;
        T* const inverse = outside ? sizes + 2 * rows : nullptr;
        if (has_u) queue.gemm(G, gU, U.t());
        if (has_v) queue.gemm(Y, gV, V.t());
        queue.launch(kGesvdMeasure, divide_up(rows, kWarps * rule.share), 1, 1, kThreads, 0, most_u, most_v, inverse,
                     outside ? W.data : nullptr, Y.data, rule.values, rule.slope, gU.data, gU.batch_stride, gU.row_stride,
                     gU.col_stride, gV.data, gV.batch_stride, gV.row_stride, gV.col_stride, V.data, V.batch_stride,
                     V.row_stride, V.col_stride, rule.policy, rule.tol, rule.share, rows, k, n);
        queue.launch(kGesvdWeigh, count_pairs(items, k), 1, 1, kThreads, count_tile_bytes<T>(4), G.data, Y.data, most_u,
                     most_v, inverse, rule.values, rule.slope, gV.data, gV.batch_stride, gV.row_stride, gV.col_stride,
                     V.data, V.batch_stride, V.row_stride, V.col_stride, rule.policy, rule.tol, rule.failure, k, n);
        send();
        queue.gemm(W, G, V, T(1), outside ? T(1) : T(0));
    } else {
        queue.launch(kGesvdScale, divide_up(rows, kWarps), 1, 1, kThreads, 0, W.data, V.data, V.batch_stride, V.row_stride,
                     V.col_stride, rule.values, rule.slope, rule.policy, rule.tol, rule.failure, rows, k, n);
        send();
    }
    queue.gemm(gA, U.t(), W);
}

}  // namespace lapgrad::device
