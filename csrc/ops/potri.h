// The inverse of a positive definite matrix from its Cholesky factor, and the reverse of that map: in place, recursions on
// products.
//
// Let K = L21 L11^-1. The inverse B of L L' is
//
//     B22 = (L22 L22')^-1,   B21 = -B22 K,   B11 = (L11 L11')^-1 + K' B22 K = (L11 L11')^-1 - K' B21        2/3 n^3
//
// The result is symmetric, so the block above the diagonal holds K' until the end. Half of the work is one full product, and no
// term is a difference of larger ones.
//
// With G = gB + gB' the gradient of L is -tril(L^-T Z), where Z = L^-1 G L^-T is symmetric:
//
//     Z11 = L11^-1 G11 L11^-T
//     P   = L21 Z11 / 2,   H = G21 L11^-T - P
//     G22 := G22 - L21 H' - H L21'            (lower triangle)
//     Z21 = L22^-1 (H - P),   Z22 = L22^-1 G22 L22^-T                                                       n^3
//
// and the lower triangle of L^-T Z depends only on the lower triangle of Z:
//
//     X21 = L22^-T Z21,   X11 = tril(L11^-T (Z11 - L21' X21)),   X22 = tril(L22^-T Z22)                     n^3/3
#pragma once

#include <vector>

#include "ops/gemmt.h"
#include "ops/trsm.h"

namespace lapgrad {

// B := (L L')^-1 for one leaf, L in the lower triangle of B; the result is written to both triangles.
template <class T>
void invert_leaf(View<T> B) {
    const index_t n = B.rows;
    T inverse[isa::leaf * isa::leaf];
    const View<T> M{inverse, n, n, isa::leaf, 1};
    set_identity<T>(M);
    isa::kernels<T>().solve(B, M, scratch<T>());
    isa::kernels<T>().product(T(1), M.readonly().t(), M, false, B.col_stride == 1 ? B : B.t(), scratch<T>());
}

// The four blocks that a recursion splits a square matrix into.
template <class T>
struct Quarters {
    View<T> m11, m12, m21, m22;

    explicit Quarters(View<T> A)
        : m11(A.block(0, 0, split_order(A.rows), split_order(A.rows))),
          m12(A.block(0, split_order(A.rows), split_order(A.rows), A.rows - split_order(A.rows))),
          m21(A.block(split_order(A.rows), 0, A.rows - split_order(A.rows), split_order(A.rows))),
          m22(A.block(split_order(A.rows), split_order(A.rows), A.rows - split_order(A.rows), A.rows - split_order(A.rows))) {}
};

// C := alpha A B on all threads. BLAS splits its own products; products on the core's kernel are split here, by rows of C.
template <class T>
void gemm_by_rows(T alpha, View<const T> A, View<const T> B, View<T> C, bool parallel) {
    const index_t team = parallel ? parallel::threads() : 1;
    const index_t rows = std::max((C.rows + team - 1) / team, isa::leaf);
    if (rows >= C.rows || !is_slim<T>(C.rows, C.cols, A.cols)) return gemm<T>(alpha, A, B, false, C);
    parallel::for_each((C.rows + rows - 1) / rows, [&](index_t s) {
        const index_t i = s * rows, height = std::min(rows, C.rows - i);
        gemm<T>(alpha, A.block(i, 0, height, A.cols), B, false, C.block(i, 0, height, C.cols));
    });
}

// The steps before the diagonal blocks are inverted: m12 := K'.
template <class T>
void prepare_inversion(const Quarters<T>& B, bool parallel) {
    copy<T>(B.m21.readonly().t(), T(1), B.m12, parallel);
    trsm<T>(B.m11.readonly().t(), false, B.m12, parallel);
}

// The steps after the diagonal blocks are inverted. `full`: the result is mirrored to the upper triangle, which may otherwise hold
// anything.
template <class T>
void finish_inversion(const Quarters<T>& B, bool full, bool parallel) {
    gemm_by_rows<T>(-1, B.m22, B.m12.readonly().t(), B.m21, parallel);
    gemmt<T>(-1, B.m12, B.m21, true, B.m11, full ? Upper::mirror : Upper::scribble, parallel);
    if (full) copy<T>(B.m21.readonly().t(), T(1), B.m12, parallel);
}

// Replaces L, the lower triangle of B, by the lower triangle of (L L')^-1, on one thread. `full`: see finish_inversion.
template <class T>
void invert_serially(View<T> B, bool full) {
    if (B.rows <= isa::leaf) return invert_leaf<T>(B);
    const Quarters<T> quarters(B);
    prepare_inversion<T>(quarters, false);
    invert_serially<T>(quarters.m11, false);
    invert_serially<T>(quarters.m22, true);
    finish_inversion<T>(quarters, full, false);
}

// The first half of the recursion on all threads: splits B into `parts` diagonal blocks, which do not depend on each other, and appends
// them to `blocks`.
template <class T>
void split_blocks(View<T> B, index_t parts, std::vector<View<T>>& blocks) {
    if (parts <= 1 || B.rows <= 2 * isa::leaf) return blocks.push_back(B);
    const Quarters<T> quarters(B);
    prepare_inversion<T>(quarters, true);
    split_blocks<T>(quarters.m11, parts / 2, blocks);
    split_blocks<T>(quarters.m22, parts / 2, blocks);
}

// The second half of the recursion, after the blocks of split_blocks have been inverted.
template <class T>
void join_blocks(View<T> B, index_t parts, bool full) {
    if (parts <= 1 || B.rows <= 2 * isa::leaf) return;
    const Quarters<T> quarters(B);
    join_blocks<T>(quarters.m11, parts / 2, false);
    join_blocks<T>(quarters.m22, parts / 2, true);
    finish_inversion<T>(quarters, full, true);
}

// Replaces L, the lower triangle of B, by that of (L L')^-1: each thread inverts a diagonal block of its own, unless BLAS would
// start threads there.
template <class T>
void invert_factored(View<T> B, bool full, bool parallel) {
    if (!parallel || !blas::serial_in_parallel_region) return invert_serially<T>(B, full);
    index_t parts = 1;
    while (parts < parallel::threads()) parts *= 2;
    std::vector<View<T>> blocks;
    split_blocks<T>(B, parts, blocks);
    parallel::for_each(static_cast<index_t>(blocks.size()), [&](index_t i) { invert_serially<T>(blocks[i], true); });
    join_blocks<T>(B, parts, full);
}

// A := A - B'.
template <class T>
void subtract_transposed(View<const T> B, View<T> A, bool parallel) {
    if (A.col_stride != 1) return subtract_transposed<T>(B.t(), A.t(), parallel);
    for_strips(A.rows, A.cols, parallel, [&](index_t begin, index_t end) {
        T tile[strip_rows * strip_rows];
        const index_t rows = end - begin;
        for (index_t j = 0; j < A.cols; j += strip_rows) {
            const index_t cols = std::min(strip_rows, A.cols - j);
            const View<T> image{tile, rows, cols, strip_rows, 1}, target = A.block(begin, j, rows, cols);
            copy_block<T>(B.block(j, begin, cols, rows).t(), T(1), image);
            for (index_t i = 0; i < rows; ++i)
                for (index_t c = 0; c < cols; ++c) target(i, c) -= image(i, c);
        }
    });
}

// The lower triangle of S := that of -(A + A'). Tiles on the diagonal are written in full.
template <class T>
void negate_symmetric_sum(View<const T> A, View<T> S, bool parallel) {
    for_strips(S.rows, S.cols, parallel, [&](index_t begin, index_t end) {
        T tile[2][strip_rows * strip_rows];
        const index_t rows = end - begin;
        for (index_t j = 0; j < end; j += strip_rows) {
            const index_t cols = std::min(strip_rows, S.cols - j);
            const View<T> sum{tile[0], rows, cols, strip_rows, 1}, mirrored{tile[1], rows, cols, strip_rows, 1};
            copy_block<T>(A.block(begin, j, rows, cols), T(-1), sum);
            copy_block<T>(A.block(j, begin, cols, rows).t(), T(1), mirrored);
            for (index_t i = 0; i < rows; ++i)
                for (index_t c = 0; c < cols; ++c) sum(i, c) -= mirrored(i, c);
            copy_block<T>(sum, T(1), S.block(begin, j, rows, cols));
        }
    });
}

// Replaces the lower triangle of the symmetric S by that of L^-1 S L^-T. The upper triangle may be overwritten.
template <class T>
void apply_congruence(View<const T> L, View<T> S, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) {
        mirror_lower<T>(S, false);
        solve_triangle<T>(L, true, S);
        solve_triangle<T>(L, true, S.t());
        return;
    }
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    const Quarters<const T> l(L);
    const Quarters<T> s(S);
    apply_congruence<T>(l.m11, s.m11, parallel);
    mirror_lower<T>(s.m11, parallel);
    trsm<T>(l.m11, true, s.m21.t(), parallel);
    gemm_by_rows<T>(T(0.5), s.m11, l.m21.t(), s.m12, parallel);
    subtract_transposed<T>(s.m12, s.m21, parallel);
    gemmt<T>(-1, l.m21, s.m21.t(), true, s.m22, Upper::scribble, parallel);
    gemmt<T>(-1, s.m21, l.m21.t(), true, s.m22, Upper::scribble, parallel);
    subtract_transposed<T>(s.m12, s.m21, parallel);
    trsm<T>(l.m22, true, s.m21, parallel);
    apply_congruence<T>(l.m22, s.m22, parallel);
}

// Replaces the lower triangle of Z by that of L^-T Z. The upper triangle may be overwritten.
template <class T>
void solve_lower_part(View<const T> L, View<T> Z, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) return solve_triangle<T>(L.t(), false, Z);
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    const Quarters<const T> l(L);
    const Quarters<T> z(Z);
    trsm<T>(l.m22.t(), false, z.m21, parallel);
    gemmt<T>(-1, l.m21.t(), z.m21, true, z.m11, Upper::scribble, parallel);
    solve_lower_part<T>(l.m11, z.m11, parallel);
    solve_lower_part<T>(l.m22, z.m22, parallel);
}

// B := factor times the symmetric matrix with the lower triangle of B.
template <class T>
void scale_and_mirror(T factor, View<T> B, bool parallel) {
    const bool row_major = B.col_stride == 1;
    for_strips(B.rows, B.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
            // Row i up to the diagonal, or column i from there on: whichever is contiguous.
            const index_t from = row_major ? 0 : i, to = row_major ? i + 1 : B.rows;
            T* line = row_major ? B.at(i, 0) : B.at(0, i);
            const index_t step = row_major ? B.col_stride : B.row_stride;
            for (index_t j = from; j < to; ++j) line[j * step] *= factor;
        }
    });
    mirror_lower<T>(B, parallel);
}

// What potri_batch computes from the inverse: B := weight[item] * scale * ((L L')^-1 + ratio X X'), X n x k.
template <class T>
struct PotriUpdate {
    Batch<const T> X;
    const T* weight;  // null: B := (L L')^-1 as it is
    T scale, ratio;
};

// B := (L L')^-1, or the update of it. B may be L's own memory.
template <class T>
void potri_batch(Batch<const T> L, PotriUpdate<T> update, Batch<T> B) {
    const index_t n = L.rows, k = update.X.cols;
    if (n == 0) return;
    if (fits_lanes<T>(L.count, std::max(n, k), L, B) && (k == 0 || update.X.dense())) {
        for_lane_ranges<T>(L.count, n * n * (2 * n + 3 * k + 12) / 3, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potri(L, update.X, update.weight, update.scale, update.ratio, B, begin, end,
                                         thread_scratch());
        });
        return;
    }
    for_items(L.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        copy_lower<T>(L[b], T(1), B[b], parallel);
        invert_factored<T>(B[b], !update.weight, parallel);
        if (!update.weight) return;
        const View<const T> X = update.X[b];
        if (k > 0) gemmt<T>(update.ratio, X, X.t(), true, B[b], Upper::scribble, parallel);
        scale_and_mirror<T>(update.weight[b] * update.scale, B[b], parallel);
    });
}

// gL := -2 tril(L^-T Z), Z = L^-1 sym(gB) L^-T.
template <class T>
void potri_vjp_batch(Batch<const T> L, Batch<const T> gB, Batch<T> gL) {
    const index_t n = L.rows;
    if (n == 0) return;
    if (fits_lanes<T>(L.count, n, L, gB, gL)) {
        for_lane_ranges<T>(L.count, n * n * (3 * n + 12), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_potri_reverse(L, gB, gL, begin, end, thread_scratch());
        });
        return;
    }
    for_items(L.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        negate_symmetric_sum<T>(gB[b], gL[b], parallel);
        apply_congruence<T>(L[b], gL[b], parallel);
        solve_lower_part<T>(L[b], gL[b], parallel);
        clear_strict_upper<T>(gL[b], parallel);
    });
}

}  // namespace lapgrad
