// C := alpha A B (+ C): the product that every recursion is made of.
#pragma once

#include <algorithm>

#include "base/blas.h"
#include "base/buffer.h"
#include "base/isa.h"
#include "base/parallel.h"
#include "base/plan.h"
#include "base/scratch.h"

namespace lapgrad {

// Returns the order of the first of the two blocks that a recursion splits order n into: about half, in whole leaves.
inline index_t split_order(index_t n) { return (n / 2 + isa::leaf - 1) / isa::leaf * isa::leaf; }

// Whether at most one side is long. For such products BLAS spends its time on set-up and on strides that share cache sets.
template <class T>
bool is_slim(index_t m, index_t n, index_t k) {
    const index_t middle = std::max(std::min(m, n), std::min(std::max(m, n), k));
    return middle <= plan::own_product<T>();
}

// Whether a product with two long sides is computed in blocks of the core's own kernel. Products with a vector are left to BLAS, which
// reads the matrix once: packing it first would take 1.7 to 3.4 times as long (orders 200 to 2000).
inline bool uses_own_blocks(index_t m, index_t n, index_t k) { return plan::current.own_blocks && std::min({m, n, k}) > 1; }

// Whether a product has few entries and long sums over numbers that are not next to each other: the product kernel would pack panels that
// are mostly padding.
template <class T>
bool has_few_sums(View<const T> A, View<const T> B) {
    return std::max(A.rows, B.cols) <= plan::few_sums && A.cols >= plan::long_sum && (A.col_stride != 1 || B.row_stride != 1);
}

// Whether a product has few entries that are sums over contiguous rows and columns: the product kernel packs nothing, so that sums longer
// than its panels need not be cut.
template <class T>
bool sums_in_place(View<const T> A, View<const T> B) {
    return std::max(A.rows, B.cols) <= plan::few_sums && A.col_stride == 1 && B.row_stride == 1;
}

template <class T>
using FewSums = T[plan::few_sums][plan::few_sums];

// sums := A B, row of B by row. They begin as zeros.
template <class T>
void add_few_sums(View<const T> A, View<const T> B, FewSums<T>& sums) {
    const index_t m = A.rows, n = B.cols, k = A.cols;
    // Partial sums, so that an addition does not wait for the one before it.
    constexpr index_t chains = 4;
    FewSums<T> parts[chains] = {};
    for (index_t p = 0; p < k; ++p)
        for (index_t i = 0; i < m; ++i)
            for (index_t j = 0; j < n; ++j) parts[p % chains][i][j] += A(i, p) * B(p, j);
    for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < n; ++j) sums[i][j] = (parts[0][i][j] + parts[1][i][j]) + (parts[2][i][j] + parts[3][i][j]);
}

template <class T>
void gemm(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C) {
    const index_t m = C.rows, n = C.cols, k = A.cols;
    if (m == 0 || n == 0 || (k == 0 && accumulate)) return;
    if (has_few_sums<T>(A, B)) {
        FewSums<T> sums = {};
        add_few_sums<T>(A, B, sums);
        for (index_t i = 0; i < m; ++i)
            for (index_t j = 0; j < n; ++j) C(i, j) = alpha * sums[i][j] + (accumulate ? C(i, j) : T(0));
        return;
    }
    const bool slim = is_slim<T>(m, n, k) || k == 0;
    if (!slim && !uses_own_blocks(m, n, k)) return blas::gemm<T>(alpha, A, B, T(accumulate), C);
    if (C.col_stride != 1) return gemm<T>(alpha, B.t(), A.t(), accumulate, C.t());
    if (k > isa::product_limit && sums_in_place<T>(A, B)) return isa::kernels<T>().product(alpha, A, B, accumulate, C, scratch<T>());
    // Long sides are cut into pieces that fit the packed panels. BLAS shares large products among the threads, and so does this; slim ones
    // are shared by the callers.
    constexpr index_t piece = isa::product_limit;
    const int team = !slim && double(m) * double(n) * double(k) >= double(plan::shared_multiplications) ? parallel::threads() : 1;
    const index_t down = (m + piece - 1) / piece;
    index_t width = piece;
    if (team > 1) {
        const index_t wanted = std::max<index_t>(4 * team / down, 1), unit = plan::shared_columns;
        width = std::min(piece / unit * unit, (n / wanted + unit - 1) / unit * unit);
        width = std::max(width, unit);
    }
    const auto compute_block = [&](index_t block) {
        const index_t i = block % down * piece, j = block / down * width;
        const index_t rows = std::min(piece, m - i), cols = std::min(width, n - j);
        index_t p = 0;
        do {
            const index_t depth = std::min(piece, k - p);
            isa::kernels<T>().product(alpha, A.block(i, p, rows, depth), B.block(p, j, depth, cols), accumulate || p > 0,
                                      C.block(i, j, rows, cols), scratch<T>());
            p += piece;
        } while (p < k);
    };
    const index_t blocks = down * ((n + width - 1) / width);
    if (team > 1) return parallel::for_each(blocks, compute_block);
    for (index_t block = 0; block < blocks; ++block) compute_block(block);
}

// gemm on all threads for slim products, which BLAS would not share: the long side is split among the threads. If that is the
// side summed over, each thread computes a partial sum.
template <class T>
void gemm_on_all_threads(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, bool parallel) {
    const index_t m = C.rows, n = C.cols, k = A.cols;
    const int team = parallel ? parallel::threads() : 1;
    if (team == 1 || !is_slim<T>(m, n, k) || m * n * k < plan::parallel_multiplications) return gemm<T>(alpha, A, B, accumulate, C);
    if (m > n && m > k) return gemm_on_all_threads<T>(alpha, B.t(), A.t(), accumulate, C.t(), true);
    const index_t width = (std::max(n, k) / team + plan::width_multiple - 1) / plan::width_multiple * plan::width_multiple;
    if (n >= k) {
        parallel::for_each((n + width - 1) / width, [&](index_t s) {
            const index_t j = s * width, c = std::min(width, n - j);
            gemm<T>(alpha, A, B.columns(j, c), accumulate, C.columns(j, c));
        });
        return;
    }
    const index_t parts = (k + width - 1) / width;
    const Buffer<T> sums = allocate<T>((parts - 1) * m * n);
    const auto part = [&](index_t s) { return View<T>{sums.get() + (s - 1) * m * n, m, n, n, 1}; };
    parallel::for_each(parts, [&](index_t s) {
        const index_t p = s * width, d = std::min(width, k - p);
        gemm<T>(alpha, A.columns(p, d), B.block(p, 0, d, n), s == 0 && accumulate, s == 0 ? C : part(s));
    });
    for (index_t s = 1; s < parts; ++s)
        for (index_t i = 0; i < m; ++i)
            for (index_t j = 0; j < n; ++j) C(i, j) += part(s)(i, j);
}

}  // namespace lapgrad
