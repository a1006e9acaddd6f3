// Batches of products: C := alpha A B + beta C, and the gradients of A A' and of an inverse.
#pragma once

#include <cmath>

#include "base/buffer.h"
#include "base/items.h"
#include "base/triangle.h"
#include "ops/gemmt.h"

namespace lapgrad {

// The work of the product of an m x k and a k x n matrix.
inline plan::Work measure_product(index_t m, index_t n, index_t k) {
    const double multiplications = double(m) * double(n) * double(k);
    return {index_t(std::cbrt(multiplications)), multiplications};
}

// Whether gemm_batch is as fast as torch: one product of any size, or a batch of small ones.
template <class T>
bool serves_products(index_t count, index_t m, index_t n, index_t k) {
    return count == 1 || (m * n * k <= plan::batched_product && is_slim<T>(m, n, k));
}

// D := alpha A B + beta C for each item. C is not read where beta is 0.
template <class T>
void gemm_batch(T alpha, Batch<const T> A, Batch<const T> B, T beta, Batch<const T> C, Batch<T> D) {
    const index_t m = D.rows, n = D.cols, k = A.cols;
    const bool adds = beta != T(0);
    if (D.count == 1) {
        const bool is_small = m * n * k <= plan::small_product;
        const contention::LongLoop keep(double(m) * double(n) * double(k) >= plan::long_multiplications);
        const int team = is_small ? 1 : parallel::threads();
        const blas::ThreadLimit limit(!is_small && team < parallel::pool_threads() ? team : 0);
        if (adds) copy<T>(C[0], beta, D[0], !is_small);
        if (std::min(m, n) <= plan::narrow_side && is_slim<T>(m, n, k)) return gemm_on_all_threads<T>(alpha, A[0], B[0], adds, D[0], !is_small);
        const bool is_own = is_small || (uses_own_blocks(m, n, k) && !is_slim<T>(m, n, k));
        return is_own ? gemm<T>(alpha, A[0], B[0], adds, D[0]) : blas::gemm<T>(alpha, A[0], B[0], T(adds), D[0]);
    }
    if (fits_product_lanes<T>(D.count, m, n, k, A, B, D) && (!adds || C.dense())) {
        for_lane_ranges<T>(D.count, m * n * k + m * k + k * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gemm(alpha, A, false, B, beta, C, D, begin, end, thread_scratch());
        });
        return;
    }
    for_items(D.count, measure_product(m, n, k), [&](index_t b, bool) {
        if (adds) copy<T>(C[b], beta, D[b], false);
        gemm<T>(alpha, A[b], B[b], adds, D[b]);
    });
}

// gA := (gB + gB') A, the gradient of A A'.
template <class T>
void syrk_vjp_batch(Batch<const T> A, Batch<const T> gB, Batch<T> gA) {
    const index_t n = A.rows, k = A.cols;
    if (n == 0 || k == 0) return;
    if (fits_product_lanes<T>(A.count, n, k, n, A, gB, gA)) {
        for_lane_ranges<T>(A.count, n * n * (k + 2), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gemm(T(1), gB, true, A, T(0), A, gA, begin, end, thread_scratch());
        });
        return;
    }
    for_items(A.count, plan::measure_columns(n, k), [&](index_t b, bool parallel) {
        if (k <= plan::few_sums && !parallel) {
            gemm<T>(T(1), gB[b], A[b], false, gA[b]);
            return gemm<T>(T(1), gB[b].t(), A[b], true, gA[b]);
        }
        // One product with the symmetric gB + gB' instead of two: a buffer for a third of the time.
        const Buffer<T> entries = allocate<T>(n * n);
        const View<T> symmetric{entries.get(), n, n, n, 1};
        add_transpose<T>(gB[b], 0, symmetric, parallel);
        gemm<T>(T(1), symmetric, A[b], false, gA[b]);
    });
}

// gA := -1/2 B (G + G') B for a symmetric B, symmetric to the last bit: the gradient of the inverse B of a symmetric matrix.
template <class T>
void congruence_batch(Batch<const T> B, Batch<const T> G, Batch<T> gA) {
    const index_t n = B.rows;
    for_parts<T>(B.count, 3 * n * n, [&](index_t first, index_t number) {
        const BatchBuffer<T> half(number, n, n);
        syrk_vjp_batch<T>(B.part(first, number), G.part(first, number), half.all());
        gemmt_batch<T>(T(-0.5), B.part(first, number), half.readonly(), gA.part(first, number), true);
    });
}

}  // namespace lapgrad
