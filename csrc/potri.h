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

#include "gemmt.h"
#include "trsm.h"

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

// L in the lower triangle becomes the lower triangle of (L L')^-1, mirrored to the upper one if `full`; else that one is
// scribbled on.
template <class T>
void invert_factored(View<T> B, bool full, bool parallel) {
    const index_t n = B.rows;
    if (n <= isa::leaf) return invert_leaf<T>(B);
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.active();
    const index_t first = split(n), second = n - first;
    const View<T> B11 = B.block(0, 0, first, first), B21 = B.block(first, 0, second, first),
                  B12 = B.block(0, first, first, second), B22 = B.block(first, first, second, second);
    copy<T>(B21.readonly().t(), T(1), B12, parallel);
    trsm<T>(B11.readonly().t(), false, B12, parallel);
    invert_factored<T>(B11, false, parallel);
    invert_factored<T>(B22, true, parallel);
    gemm<T>(-1, B22, B12.readonly().t(), false, B21);
    gemmt<T>(-1, B12, B21, true, B11, full ? Upper::mirror : Upper::scribble, parallel);
    if (full) copy<T>(B21.readonly().t(), T(1), B12, parallel);
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
    const index_t first = split(n), second = n - first;
    const View<const T> L11 = L.block(0, 0, first, first), L21 = L.block(first, 0, second, first),
                        L22 = L.block(first, first, second, second);
    const View<T> S11 = S.block(0, 0, first, first), S21 = S.block(first, 0, second, first),
                  S12 = S.block(0, first, first, second), S22 = S.block(first, first, second, second);
    congruence<T>(L11, S11, parallel);
    mirror_lower<T>(S11, parallel);
    trsm<T>(L11, true, S21.t(), parallel);
    gemm<T>(T(0.5), S11, L21.t(), false, S12);
    subtract_transposed<T>(S12, S21, parallel);
    gemmt<T>(-1, L21, S21.t(), true, S22, Upper::scribble, parallel);
    gemmt<T>(-1, S21, L21.t(), true, S22, Upper::scribble, parallel);
    subtract_transposed<T>(S12, S21, parallel);
    trsm<T>(L22, true, S21, parallel);
    congruence<T>(L22, S22, parallel);
}

// The lower triangle of Z becomes that of L^-T Z; the upper one is scribbled on.
template <class T>
void solve_lower_part(View<const T> L, View<T> Z, bool parallel) {
    const index_t n = L.rows;
    if (n <= isa::leaf) return solve_triangle<T>(L.t(), false, Z);
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.active();
    const index_t first = split(n), second = n - first;
    const View<const T> L21 = L.block(first, 0, second, first), L22 = L.block(first, first, second, second);
    const View<T> Z21 = Z.block(first, 0, second, first);
    trsm<T>(L22.t(), false, Z21, parallel);
    gemmt<T>(-1, L21.t(), Z21, true, Z.block(0, 0, first, first), Upper::scribble, parallel);
    solve_lower_part<T>(L.block(0, 0, first, first), Z.block(0, 0, first, first), parallel);
    solve_lower_part<T>(L22, Z.block(first, first, second, second), parallel);
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
