// The inverse of a positive definite matrix from its Cholesky factor, and the reverse of that map: in place, recursions on
// products.
//
// Let K = L21 L11^-1. The inverse B of L L' is
//
//     B22 = (L22 L22')^-1,   B21 = -B22 K,   B11 = (L11 L11')^-1 + K' B22 K = (L11 L11')^-1 - K' B21        2/3 n^3
//
// The result is symmetric, so the block above the diagonal is free until the end and holds K'. Half of the work is one
// full product, and no term is a difference of larger ones.
//
// With G = gB + gB' the gradient of L is -tril(L^-T Z), where Z = L^-1 G L^-T is symmetric:
//
//     Z11 = L11^-1 G11 L11^-T
//     P   = L21 Z11 / 2,   H = G21 L11^-T - P
//     G22 := G22 - L21 H' - H L21'            (lower triangle)
//     Z21 = L22^-1 (H - P),   Z22 = L22^-1 G22 L22^-T                                                       n^3
//
// and the lower triangle of L^-T Z asks for no more than the lower triangle of Z:
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

// The four blocks of a matrix.
template <class T>
struct Quarters {
    View<T> m11, m12, m21, m22;

    explicit Quarters(View<T> A)
        : m11(A.block(0, 0, split(A.rows), split(A.rows))),
          m12(A.block(0, split(A.rows), split(A.rows), A.rows - split(A.rows))),
          m21(A.block(split(A.rows), 0, A.rows - split(A.rows), split(A.rows))),
          m22(A.block(split(A.rows), split(A.rows), A.rows - split(A.rows), A.rows - split(A.rows))) {}
};

// C := alpha A B. Products that go to BLAS are shared among the threads there; the own ones here, by rows of C.
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

// The steps before and after the blocks on the diagonal are inverted. `full`: the result is mirrored to the upper triangle;
// else that one is scribbled on.
template <class T>
void before_inversion(const Quarters<T>& B, bool parallel) {
    copy<T>(B.m21.readonly().t(), T(1), B.m12, parallel);
    trsm<T>(B.m11.readonly().t(), false, B.m12, parallel);
}

template <class T>
void after_inversion(const Quarters<T>& B, bool full, bool parallel) {
    gemm_by_rows<T>(-1, B.m22, B.m12.readonly().t(), B.m21, parallel);
    gemmt<T>(-1, B.m12, B.m21, true, B.m11, full ? Upper::mirror : Upper::scribble, parallel);
    if (full) copy<T>(B.m21.readonly().t(), T(1), B.m12, parallel);
}

// L in the lower triangle becomes the lower triangle of (L L')^-1, on one thread.
template <class T>
void invert_alone(View<T> B, bool full) {
    if (B.rows <= isa::leaf) return invert_leaf<T>(B);
    const Quarters<T> quarters(B);
    before_inversion<T>(quarters, false);
    invert_alone<T>(quarters.m11, false);
    invert_alone<T>(quarters.m22, true);
    after_inversion<T>(quarters, full, false);
}

// The same on all threads. The blocks on the diagonal do not depend on each other: the recursion goes down to as many as
// there are threads, and each thread inverts its own.
template <class T>
void halve(View<T> B, index_t parts, std::vector<View<T>>& blocks) {
    if (parts <= 1 || B.rows <= 2 * isa::leaf) return blocks.push_back(B);
    const Quarters<T> quarters(B);
    before_inversion<T>(quarters, true);
    halve<T>(quarters.m11, parts / 2, blocks);
    halve<T>(quarters.m22, parts / 2, blocks);
}

template <class T>
void join(View<T> B, index_t parts, bool full) {
    if (parts <= 1 || B.rows <= 2 * isa::leaf) return;
    const Quarters<T> quarters(B);
    join<T>(quarters.m11, parts / 2, false);
    join<T>(quarters.m22, parts / 2, true);
    after_inversion<T>(quarters, full, true);
}

template <class T>
void invert_factored(View<T> B, bool full, bool parallel) {
    if (!parallel || !blas::serial_in_parallel_region) return invert_alone<T>(B, full);
    index_t parts = 1;
    while (parts < parallel::threads()) parts *= 2;
    std::vector<View<T>> blocks;
    halve<T>(B, parts, blocks);
    parallel::for_each(static_cast<index_t>(blocks.size()), [&](index_t i) { invert_alone<T>(blocks[i], true); });
    join<T>(B, parts, full);
}

// A := A - B'.
template <class T>
void subtract_transposed(View<const T> B, View<T> A, bool parallel) {
    if (A.col_stride != 1) return subtract_transposed<T>(B.t(), A.t(), parallel);
    for_strips(A.rows, A.cols, parallel, [&](index_t begin, index_t end) {
        T tile[strip * strip];
        const index_t rows = end - begin;
        for (index_t j = 0; j < A.cols; j += strip) {
            const index_t cols = std::min(strip, A.cols - j);
            const View<T> image{tile, rows, cols, strip, 1}, target = A.block(begin, j, rows, cols);
            copy_block<T>(B.block(j, begin, cols, rows).t(), T(1), image);
            for (index_t i = 0; i < rows; ++i)
                for (index_t c = 0; c < cols; ++c) target(i, c) -= image(i, c);
        }
    });
}

// The lower triangle of S := -(A + A'); within the tiles on the diagonal the upper one, too.
template <class T>
void negated_symmetric_sum(View<const T> A, View<T> S, bool parallel) {
    for_strips(S.rows, S.cols, parallel, [&](index_t begin, index_t end) {
        T tile[2][strip * strip];
        const index_t rows = end - begin;
        for (index_t j = 0; j < end; j += strip) {
            const index_t cols = std::min(strip, S.cols - j);
            const View<T> sum{tile[0], rows, cols, strip, 1}, mirrored{tile[1], rows, cols, strip, 1};
            copy_block<T>(A.block(begin, j, rows, cols), T(-1), sum);
            copy_block<T>(A.block(j, begin, cols, rows).t(), T(1), mirrored);
            for (index_t i = 0; i < rows; ++i)
                for (index_t c = 0; c < cols; ++c) sum(i, c) -= mirrored(i, c);
            copy_block<T>(sum, T(1), S.block(begin, j, rows, cols));
        }
    });
}

// The lower triangle of the symmetric S becomes that of L^-1 S L^-T; the upper one is scribbled on.
template <class T>
void congruence(View<const T> L, View<T> S, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) {
        mirror_lower<T>(S, false);
        solve_triangle<T>(L, true, S);
        solve_triangle<T>(L, true, S.t());
        return;
    }
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.active();
    const Quarters<const T> l(L);
    const Quarters<T> s(S);
    congruence<T>(l.m11, s.m11, parallel);
    mirror_lower<T>(s.m11, parallel);
    trsm<T>(l.m11, true, s.m21.t(), parallel);
    gemm_by_rows<T>(T(0.5), s.m11, l.m21.t(), s.m12, parallel);
    subtract_transposed<T>(s.m12, s.m21, parallel);
    gemmt<T>(-1, l.m21, s.m21.t(), true, s.m22, Upper::scribble, parallel);
    gemmt<T>(-1, s.m21, l.m21.t(), true, s.m22, Upper::scribble, parallel);
    subtract_transposed<T>(s.m12, s.m21, parallel);
    trsm<T>(l.m22, true, s.m21, parallel);
    congruence<T>(l.m22, s.m22, parallel);
}

// The lower triangle of Z becomes that of L^-T Z; the upper one is scribbled on.
template <class T>
void solve_lower_part(View<const T> L, View<T> Z, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) return solve_triangle<T>(L.t(), false, Z);
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.active();
    const Quarters<const T> l(L);
    const Quarters<T> z(Z);
    trsm<T>(l.m22.t(), false, z.m21, parallel);
    gemmt<T>(-1, l.m21.t(), z.m21, true, z.m11, Upper::scribble, parallel);
    solve_lower_part<T>(l.m11, z.m11, parallel);
    solve_lower_part<T>(l.m22, z.m22, parallel);
}

// B := factor * B, from its lower triangle to both.
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

}  // namespace lapgrad
