// A = L Q by Householder reflections of rows, as a recursion on products (Elmroth and Gustavson 2000).
//
// The reflectors of a block of rows are stored together (compact WY): H1 H2 ... = I - Y' T Y, where Y has the rows v (unit upper
// trapezoidal) and T is upper triangular. For A = [A1; A2]:
//
//     A1 = L11 Q1, giving Y1, T1
//     A2 := A2 - (A2 Y1' T1) Y1                 [L21, the rest of A2]
//     the rest = L22 Q2, giving Y2, T2
//     T12 = -T1 (Y1 Y2') T2                                                        3 m^2 n flops
//     Q = [I 0] - (T Y_left)' Y, in place of Y                                       m^2 n flops
//
// Y is stored in the memory of A (which becomes Q), with its zeros and ones, so that every step is a plain product. L and T share
// one square matrix, "mixed": L below the diagonal, T on and above it; the diagonal of L is stored separately. So nothing but the
// results is allocated. When only L is wanted, T is computed for panels of rows only: 2 m^2 n flops.
//
// Backward, with r = min(m, n), A = [A1; A2], L = [L1; L2] after r rows (see docs/derivations.md):
//
//     K = gL2' L2,   Z = copyltu(L1' gL1 - gQ Q') + (K - K' above the diagonal)
//     gA1 = L1^-T (gQ + Z Q),   gA2 = gL2 Q                                          4 m^2 n flops for m <= n
#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "base/buffer.h"
#include "base/items.h"
#include "ops/potrf.h"
#include "ops/trmm.h"

namespace lapgrad {

// Whether a block of m rows and n columns has enough work for several threads.
inline bool is_worth_threads(index_t m, index_t n, bool parallel) {
    const double serial = static_cast<double>(plan::serial_order(parallel::threads()));
    return parallel && static_cast<double>(m) * m * n > serial * serial * serial;
}

inline index_t split_rows(index_t m) { return (m / 2 + isa::lq_leaf - 1) / isa::lq_leaf * isa::lq_leaf; }

// A (contiguous rows) := Y; mixed := L below the diagonal, T on and above it; diagonal := that of L. m <= n.
template <class T>
void reduce_lq(View<T> A, View<T> mixed, T* diagonal, bool parallel) {
    const index_t m = A.rows, n = A.cols;
    if (m <= isa::lq_leaf) return isa::kernels<T>().lq_leaf(A, mixed, diagonal);
    const blas::OneThread small(parallel && !is_worth_threads(m, n, parallel));
    parallel = parallel && !small.is_active();
    const index_t first = split_rows(m), second = m - first;
    const View<T> A1 = A.block(0, 0, first, n), A2 = A.block(first, 0, second, n), left = A2.columns(0, first);
    const View<T> T1 = mixed.block(0, 0, first, first), T2 = mixed.block(first, first, second, second);
    const View<T> corner = mixed.block(0, first, first, second);
    reduce_lq<T>(A1, T1, diagonal, parallel);
    // The block of T12 holds (A2 Y1' T1)' until T12 is computed.
    gemm_on_all_threads<T>(1, A1, A2.t(), false, corner, parallel);
    trmm<T>(T1.t(), true, corner, parallel);
    gemm_on_all_threads<T>(-1, corner.t(), A1, true, A2, parallel);
    copy<T>(left.readonly(), T(1), mixed.block(first, 0, second, first), parallel);
    set_zero<T>(left);
    const View<T> rest = A2.columns(first, n - first);
    reduce_lq<T>(rest, T2, diagonal + first, parallel);
    gemm_on_all_threads<T>(-1, A1.columns(first, n - first), rest.t(), false, corner, parallel);
    trmm<T>(T1, false, corner, parallel);
    trmm<T>(T2.t(), true, corner.t(), parallel);
}

// The upper triangle of C := C U for upper triangular C and U; the rest of C is not changed.
template <class T>
void multiply_upper(View<T> C, View<const T> U, bool parallel) {
    const index_t n = C.rows;
    if (n <= isa::leaf) {
        for (index_t i = 0; i < n; ++i)
            for (index_t j = n - 1; j >= i; --j) {
                T sum = 0;
                for (index_t k = i; k <= j; ++k) sum += C(i, k) * U(k, j);
                C(i, j) = sum;
            }
        return;
    }
    const index_t first = split_order(n), second = n - first;
    const View<T> C11 = C.block(0, 0, first, first), C12 = C.block(0, first, first, second),
                  C22 = C.block(first, first, second, second);
    const View<const T> U12 = U.block(0, first, first, second), U22 = U.block(first, first, second, second);
    // C12 := C12 U22 + C11 U12. The second product needs a copy of some columns of U12: the lower triangle of C11 holds other
    // data, so only trmm can read C11.
    trmm<T>(U22.t(), true, C12.t(), parallel);
    constexpr index_t width = plan::copied_columns;
    const auto add_slab = [&](index_t s) {
        const index_t j = s * width, c = std::min(width, second - j);
        const Buffer<T> memory = allocate<T>(first * c);
        const View<T> slab{memory.get(), first, c, c, 1};
        copy<T>(U12.columns(j, c), T(1), slab, false);
        multiply_triangle<T>(C11, false, slab);
        for (index_t i = 0; i < first; ++i)
            for (index_t l = 0; l < c; ++l) C12(i, j + l) += slab(i, l);
    };
    const index_t slabs = (second + width - 1) / width;
    if (parallel)
        parallel::for_each(slabs, add_slab);
    else
        for (index_t s = 0; s < slabs; ++s) add_slab(s);
    multiply_upper<T>(C11, U.block(0, 0, first, first), parallel);
    multiply_upper<T>(C22, U22, parallel);
}

// Y := [S 0] - S (T Y_left)' Y, the rows of Q with the signs S. T is overwritten.
template <class T>
void form_rows(View<T> Y, View<T> mixed, const T* signs, bool parallel) {
    const index_t m = Y.rows, n = Y.cols;
    multiply_upper<T>(mixed, Y.columns(0, m), parallel);
    for (index_t i = 0; i < m; ++i)
        for (index_t j = i; j < m; ++j) mixed(i, j) *= -signs[j];
    // Columns [j, j + width) of Y are zero below row j + width, so the result there is one product of the rows above.
    const index_t width = plan::orthogonal_slice(n);
    const auto form = [&](index_t s) {
        const index_t j = s * width, c = std::min(width, n - j), height = std::min(m, j + c);
        const View<T> slab = Y.columns(j, c), top = slab.block(0, 0, height, c);
        gemm<T>(1, mixed.block(0, height, height, m - height).t(), top, false, slab.block(height, 0, m - height, c));
        multiply_triangle<T>(mixed.block(0, 0, height, height).t(), true, top);
    };
    const index_t slabs = (n + width - 1) / width;
    if (parallel)
        parallel::for_each(slabs, form);
    else
        for (index_t s = 0; s < slabs; ++s) form(s);
    for (index_t i = 0; i < m; ++i) Y(i, i) += signs[i];
}

// signs[j] := -1 if `positive` and diagonal[j] is negative, else 1.
template <class T>
void choose_signs(const T* diagonal, index_t count, bool positive, T* signs) {
    for (index_t j = 0; j < count; ++j) signs[j] = positive && diagonal[j] < T(0) ? T(-1) : T(1);
}

// Clears the upper triangle of L, sets its diagonal, and multiplies its columns by `signs`.
template <class T>
void finish_square(View<T> L, const T* diagonal, const T* signs, bool parallel) {
    for_strips(L.rows, L.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
            for (index_t j = 0; j < i; ++j) L(i, j) *= signs[j];
            L(i, i) = diagonal[i] * signs[i];
            for (index_t j = i + 1; j < L.cols; ++j) L(i, j) = T(0);
        }
    });
}

// Q (r x n), L (m x r) := factors of A (m x n), r = min(m, n). Q and L have contiguous rows.
template <class T>
void factor_lq(View<const T> A, View<T> Q, View<T> L, bool positive, bool parallel) {
    const index_t r = Q.rows, n = Q.cols, below = A.rows - r;
    const Buffer<T> vectors = allocate<T>(2 * r);
    T *const diagonal = vectors.get(), *const signs = diagonal + r;
    const View<T> square = L.block(0, 0, r, r);
    copy<T>(A.block(0, 0, r, n), T(1), Q, parallel);
    reduce_lq<T>(Q, square, diagonal, parallel);
    choose_signs<T>(diagonal, r, positive, signs);
    form_rows<T>(Q, square, signs, parallel);
    finish_square<T>(square, diagonal, signs, parallel);
    if (below > 0) gemm<T>(1, A.block(r, 0, below, n), Q.t(), false, L.block(r, 0, below, r));
}

// L := the factor L of A, without Q. `work` (m x n, contiguous rows) holds A and is overwritten; it may be L itself if m >= n.
template <class T>
void factor_l(View<T> work, View<T> L, bool positive, bool parallel) {
    const index_t m = work.rows, n = work.cols, r = L.cols;
    const index_t panel = std::min(r, std::max(plan::current.lq_panel, isa::lq_leaf));
    const bool in_place = work.data == L.data;
    const Buffer<T> memory = allocate<T>(panel * (panel + m) + r);
    T* const diagonal = memory.get() + panel * (panel + m);
    for (index_t i = 0; i < r; i += panel) {
        const index_t p = std::min(panel, r - i), below = m - i - p;
        const View<T> rows = work.block(i, i, p, n - i), rest = work.block(i + p, i, below, n - i);
        const View<T> mixed{memory.get(), p, p, p, 1}, product{memory.get() + panel * panel, p, below, below, 1};
        reduce_lq<T>(rows, mixed, diagonal + i, parallel);
        if (below > 0) {
            gemm_on_all_threads<T>(1, rows, rest.t(), false, product, parallel);
            trmm<T>(mixed.t(), true, product, parallel);
            gemm_on_all_threads<T>(-1, product.t(), rows, true, rest, parallel);
        }
        if (!in_place) copy<T>(work.block(i, 0, p, i), T(1), L.block(i, 0, p, i), parallel);
        for (index_t a = 0; a < p; ++a) {
            for (index_t b = 0; b < a; ++b) L(i + a, i + b) = mixed(a, b);
            L(i + a, i + a) = diagonal[i + a];
            for (index_t j = i + a + 1; j < r; ++j) L(i + a, j) = T(0);
        }
    }
    if (!in_place && m > r) copy<T>(work.block(r, 0, m - r, r), T(1), L.block(r, 0, m - r, r), parallel);
    if (!positive) return;
    for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < std::min(i + 1, r); ++j)
            if (diagonal[j] < T(0)) L(i, j) = -L(i, j);
}

// Returns the first row of L with a NaN or an infinity, counted from 1; 0 if there is none.
template <class T>
int find_nonfinite_row(View<const T> L) {
    for (index_t i = 0; i < L.rows; ++i) {
        T sum = 0;  // stays 0 unless an entry is not finite
        for (index_t j = 0; j < L.cols; ++j) sum += L(i, j) * T(0);
        if (!(sum == T(0))) return static_cast<int>(std::min<index_t>(i + 1, std::numeric_limits<int>::max()));
    }
    return 0;
}

// The lower triangle of M := that of L' G for lower triangles L and G; their upper triangles are not read. n^3/3 flops. May
// overwrite the upper triangle of M.
template <class T>
void multiply_lower_transposed(View<const T> L, View<const T> G, View<T> M, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) {
        const LeafTriangle<T> left(L, true, false), right(G, true, false);
        return gemmt_leaf<T>(1, left.view.readonly().t(), right.view, false, M);
    }
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    const index_t first = split_order(n), second = n - first;
    const View<const T> L11 = L.block(0, 0, first, first), L21 = L.block(first, 0, second, first),
                        L22 = L.block(first, first, second, second);
    const View<const T> G21 = G.block(first, 0, second, first);
    const View<T> M11 = M.block(0, 0, first, first), M21 = M.block(first, 0, second, first);
    copy<T>(G21, T(1), M21, parallel);
    trmm<T>(L22.t(), false, M21, parallel);
    multiply_lower_transposed<T>(L22, G.block(first, first, second, second), M.block(first, first, second, second),
                                 parallel);
    multiply_lower_transposed<T>(L11, G.block(0, 0, first, first), M11, parallel);
    gemmt<T>(1, L21.t(), G21, true, M11, Upper::scribble, parallel);
}

// The lower triangle of C := alpha A B (+ C) when the side summed over is long and there are many threads: C is halved, and each
// product runs on all threads. (gemmt computes one tile per thread, and such tiles would be slim.) May overwrite the upper
// triangle.
template <class T>
void gemmt_long(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C) {
    const index_t n = C.rows, k = A.cols;
    if (n <= plan::current.smallest_tile) return blas::gemm<T>(alpha, A, B, T(accumulate), C);
    const index_t first = split_order(n), second = n - first;
    const View<const T> A2 = A.block(first, 0, second, k), B1 = B.block(0, 0, k, first);
    gemmt_long<T>(alpha, A.block(0, 0, first, k), B1, accumulate, C.block(0, 0, first, first));
    blas::gemm<T>(alpha, A2, B1, T(accumulate), C.block(first, 0, second, first));
    gemmt_long<T>(alpha, A2, B.block(0, first, k, second), accumulate, C.block(first, first, second, second));
}

// Z := the matrix Z of the backward formula above. gQ.data or gL.data may be null, but not both.
template <class T>
void form_middle(View<const T> Q, View<const T> L, View<const T> gQ, View<const T> gL, View<T> Z, bool parallel) {
    const index_t r = Z.rows, below = L.rows - r;
    if (gL.data) multiply_lower_transposed<T>(L.block(0, 0, r, r), gL.block(0, 0, r, r), Z, parallel);
    const bool long_sum = r > 2 * plan::current.smallest_tile && parallel && !plan::is_few(parallel::threads());
    if (gQ.data && long_sum)
        gemmt_long<T>(-1, gQ, Q.t(), gL.data != nullptr, Z);
    else if (gQ.data)
        gemmt<T>(-1, gQ, Q.t(), gL.data != nullptr, Z, Upper::scribble, parallel);
    mirror_lower<T>(Z, parallel);
    if (below == 0 || !gL.data) return;
    const Buffer<T> memory = allocate<T>(r * r);
    const View<T> K{memory.get(), r, r, r, 1};
    gemm<T>(1, gL.block(r, 0, below, r).t(), L.block(r, 0, below, r), false, K);
    for (index_t i = 0; i < r; ++i)
        for (index_t j = 0; j < i; ++j) Z(j, i) += K(j, i) - K(i, j);
}

// gA := the gradient of A from the cotangents of Q and L.
template <class T>
void reverse_lq(View<const T> Q, View<const T> L, View<const T> gQ, View<const T> gL, View<T> gA, bool parallel) {
    const index_t r = Q.rows, n = Q.cols, below = L.rows - r;
    const Buffer<T> memory = allocate<T>(r * r);
    const View<T> Z{memory.get(), r, r, r, 1}, top = gA.block(0, 0, r, n), bottom = gA.block(r, 0, below, n);
    const View<const T> L1 = L.block(0, 0, r, r);
    form_middle<T>(Q, L, gQ, gL, Z, parallel);
    const auto finish = [&](View<const T> basis, View<const T> slope, View<T> target, bool threads) {
        if (gQ.data) copy<T>(slope, T(1), target, threads);
        gemm<T>(1, Z, basis, gQ.data != nullptr, target);
        trsm<T>(L1.t(), false, target, threads);
    };
    // With few threads, each does all three steps on its own columns: 5 % faster on 2 threads. With many threads, each of them would
    // pack Z for its own product.
    const index_t team = parallel && blas::serial_in_parallel_region ? parallel::threads() : 1;
    const index_t width = (n + team - 1) / team;
    if (team > 1 && plan::is_few(team) && width >= plan::current.slice_columns)
        parallel::for_each((n + width - 1) / width, [&](index_t s) {
            const index_t j = s * width, c = std::min(width, n - j);
            finish(Q.columns(j, c), gQ.data ? gQ.columns(j, c) : gQ, top.columns(j, c), false);
        });
    else
        finish(Q, gQ, top, parallel);
    if (below == 0) return;
    if (gL.data)
        gemm<T>(1, gL.block(r, 0, below, r), Q, false, bottom);
    else
        set_zero<T>(bottom);
}

// gA := the gradient of A when only L was computed. m <= n: gA = S A, S = L^-T copyltu(L' gL) L^-1, twice the reverse sweep of potrf. m > n: gA = P A1,
// P = [L1^-T Z; gL2] L1^-1.
template <class T>
void reverse_l(View<const T> A, View<const T> L, View<const T> gL, View<T> gA, bool parallel) {
    const index_t m = L.rows, r = L.cols, n = A.cols;
    const Buffer<T> memory = allocate<T>(m * r);
    const View<T> P{memory.get(), m, r, r, 1}, top = P.block(0, 0, r, r);
    const View<const T> L1 = L.block(0, 0, r, r), none{nullptr, 0, 0, 0, 0};
    if (m <= n) {
        copy_lower<T>(gL, T(1), P, parallel);
        reverse_lower<T>(L, P, parallel);
    } else {
        copy<T>(gL, T(1), P, parallel);
        form_middle<T>(none, L, none, gL, top, parallel);
        trsm<T>(L1.t(), false, top, parallel);
        trsm<T>(L1.t(), false, P.t(), parallel);
    }
    gemm<T>(1, P, A.block(0, 0, r, n), false, gA);
}

// Returns the first row of A that depends linearly on the rows before it, up to rounding; -1 if there is none. Row i does if |l_ii|
// is at most `tolerance` times the largest entry of row i of L, or with `relative_to_largest` times the largest |l_jj|.
template <class T>
index_t find_dependent_row(View<const T> L, T tolerance, bool relative_to_largest) {
    T largest = 0;
    if (relative_to_largest)
        for (index_t i = 0; i < L.cols; ++i) largest = std::max(largest, std::abs(L(i, i)));
    for (index_t i = 0; i < L.cols; ++i) {
        T length = largest;
        if (!relative_to_largest)
            for (index_t j = 0; j <= i; ++j) length = std::max(length, std::abs(L(i, j)));
        if (!(std::abs(L(i, i)) > tolerance * length)) return i;
    }
    return -1;
}

// Whether a batch is computed with one matrix per lane: up to as many elements as the largest square matrix on lanes has.
template <class T, class... Batches>
bool fits_lq_lanes(index_t count, index_t rows, index_t cols, const Batches&... batches) {
    const index_t order = plan::lane_order<T>();
    const auto row_major = [](const auto& b) { return !b.data || (b.col_stride == 1 && b.row_stride == b.cols); };
    return count > 1 && rows * cols <= order * order && (row_major(batches) && ...);
}

// Returns the first item for which found(item) is true, -1 if there is none. Items are tested in parallel.
template <class F>
index_t find_first_item(index_t count, index_t elements, F found) {
    std::atomic<index_t> first{count};
    parallel::for_ranges(count, plan::parallel_elements / std::max<index_t>(1, 4 * elements), [&](index_t begin, index_t end) {
        for (index_t b = begin; b < end && b < first; ++b) {
            if (!found(b)) continue;
            for (index_t seen = first; b < seen && !first.compare_exchange_weak(seen, b);) {
            }
        }
    });
    return first < count ? first.load() : -1;
}

// Q, L := factors of A; L alone if Q.data is null. Returns the first item with a NaN or an infinity, and its row from 1; {-1, 0}
// if there is none.
template <class T>
std::pair<index_t, int> gelqf_batch(Batch<const T> A, Batch<T> Q, Batch<T> L, bool positive) {
    const index_t m = A.rows, n = A.cols, r = std::min(m, n);
    if (r > 0 && fits_lq_lanes<T>(A.count, m, n, A, Q, L))
        for_lane_ranges<T>(A.count, (Q.data ? 4 : 2) * r * m * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gelqf(A, Q, L, positive, begin, end, thread_scratch());
        });
    else if (r > 0)
        for_items(A.count, plan::measure_columns(std::min(m, n), std::max(m, n)), [&](index_t b, bool parallel) {
            if (Q.data) return factor_lq<T>(A[b], Q[b], L[b], positive, parallel);
            // A tall matrix is reduced in the memory of L, which is as large as A.
            const Buffer<T> memory = allocate<T>(m > n ? 0 : m * n);
            const View<T> work = m > n ? L[b] : View<T>{memory.get(), m, n, n, 1};
            copy<T>(A[b], T(1), work, parallel);
            factor_l<T>(work, L[b], positive, parallel);
        });
    const index_t item = find_first_item(A.count, m * r, [&](index_t b) { return find_nonfinite_row<T>(L[b]) != 0; });
    return {item, item < 0 ? 0 : find_nonfinite_row<T>(L[item])};
}

// Returns the first item that has a dependent row, and that row; {-1, -1} if there is none.
template <class T>
std::pair<index_t, index_t> find_dependent_row_batch(Batch<const T> L, T tolerance, bool relative_to_largest) {
    const index_t items = L.batch_stride == 0 && L.count > 0 ? 1 : L.count;
    const auto row = [&](index_t b) { return find_dependent_row<T>(L[b], tolerance, relative_to_largest); };
    const index_t item = find_first_item(items, L.cols * L.cols, [&](index_t b) { return row(b) >= 0; });
    return {item, item < 0 ? -1 : row(item)};
}

// gA := the gradient of A; gQ.data or gL.data may be null.
template <class T>
void gelqf_vjp_batch(Batch<const T> Q, Batch<const T> L, Batch<const T> gQ, Batch<const T> gL, Batch<T> gA) {
    const index_t m = gA.rows, n = gA.cols;
    if (m == 0 || n == 0) return;
    if (fits_lq_lanes<T>(gA.count, m, n, Q, L, gQ, gL, gA))
        return for_lane_ranges<T>(gA.count, 4 * std::min(m, n) * m * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gelqf_vjp(Q, L, gQ, gL, gA, begin, end, thread_scratch());
        });
    for_items(gA.count, plan::measure_columns(std::min(m, n), std::max(m, n)), [&](index_t b, bool parallel) {
        reverse_lq<T>(Q[b], L[b], gQ.data ? gQ[b] : gQ[0], gL.data ? gL[b] : gL[0], gA[b], parallel);
    });
}

template <class T>
void gelqf_l_vjp_batch(Batch<const T> A, Batch<const T> L, Batch<const T> gL, Batch<T> gA) {
    const index_t m = A.rows, n = A.cols;
    if (m == 0 || n == 0) return;
    if (fits_lq_lanes<T>(A.count, m, n, A, L, gL, gA))
        return for_lane_ranges<T>(A.count, 3 * std::min(m, n) * m * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gelqf_l_vjp(A, L, gL, gA, begin, end, thread_scratch());
        });
    for_items(A.count, plan::measure_columns(std::min(m, n), std::max(m, n)),
              [&](index_t b, bool parallel) { reverse_l<T>(A[b], L[b], gL[b], gA[b], parallel); });
}

}  // namespace lapgrad
