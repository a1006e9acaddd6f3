// Cholesky factorisation with diagonal pivoting (LAPACK's pstrf): P' A P = L L', L lower trapezoidal with `rank` columns.
//
//     for j = 0, 1, ...:   p = argmax d,  d the diagonal of what is left of A;   stop if d_p <= tolerance
//                          exchange rows and columns j and p
//                          l_jj = sqrt(d_j),   l_ij = (a_ij - sum_{m<j} l_im l_jm) / l_jj,   d_i := d_i - l_ij^2     (i > j)
//
// A pivot is known only after the column before it, so columns come one at a time. The sums are organised in one of two forms:
//
//     few columns   Entries of A are read where they lie, when their column is wanted: n rank^2 operations, n rank numbers.
//     blocks        A is copied and exchanged. Sums run over the columns of the current block only; after a block
//                   the rest of A is updated by one triangular product:              (n^2 - n rank + rank^2 / 3) rank operations
//
// The columns of the current block are column-major, so that a column is a sum of columns.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "base/buffer.h"
#include "ops/gemmt.h"
#include "ops/potrf.h"

namespace lapgrad {

// c[i] -= sum_m F(i, m) row[m] for i in [begin, end), F column-major. Four columns at a time, so that c is read and
// written a quarter as often.
template <class T>
void subtract_columns(View<const T> F, const T* row, T* c, index_t begin, index_t end) {
    index_t m = 0;
    for (; m + 4 <= F.cols; m += 4) {
        const T *a = F.at(0, m), *b = F.at(0, m + 1), *e = F.at(0, m + 2), *f = F.at(0, m + 3);
        const T ra = row[m], rb = row[m + 1], re = row[m + 2], rf = row[m + 3];
        for (index_t i = begin; i < end; ++i) c[i] -= (a[i] * ra + b[i] * rb) + (e[i] * re + f[i] * rf);
    }
    for (; m < F.cols; ++m) {
        const T* a = F.at(0, m);
        const T factor = row[m];
        for (index_t i = begin; i < end; ++i) c[i] -= a[i] * factor;
    }
}

// Exchanges rows i and j of A.
template <class T>
void exchange_two_rows(View<T> A, index_t i, index_t j) {
    for (index_t m = 0; m < A.cols; ++m) std::swap(A(i, m), A(j, m));
}

// Columns of A, read from its lower triangle where they lie. Nothing is moved: `order` says where rows and columns are.
template <class T>
struct ColumnsInPlace {
    View<const T> A;
    const std::int64_t* order;

    void exchange(index_t, index_t) {}
    void load(index_t j, T* column, index_t begin, index_t end) const {
        const index_t q = order[j];
        for (index_t i = begin; i < end; ++i) column[i] = order[i] > q ? A(order[i], q) : A(q, order[i]);
    }
    void close_block(View<const T>, index_t, T*, bool) {}
};

// Columns of a copy W of A: its lower triangle is exchanged, and updated after each block. Columns of the factor replace it.
template <class T>
struct UpdatedColumns {
    View<T> W;
    index_t first = 0;  // of the current block

    // Rows and columns j < p of the symmetric matrix change places, and so do rows of the blocks that are done.
    void exchange(index_t j, index_t p) {
        const index_t n = W.rows;
        exchange_two_rows<T>(W.columns(0, first), j, p);
        std::swap(W(j, j), W(p, p));
        for (index_t i = j + 1; i < p; ++i) std::swap(W(i, j), W(p, i));
        for (index_t i = p + 1; i < n; ++i) std::swap(W(i, j), W(i, p));
    }
    void load(index_t j, T* column, index_t begin, index_t end) const {
        for (index_t i = begin; i < end; ++i) column[i] = W(i, j);
    }
    // Stores the columns F of the block in W, subtracts F F' from the columns behind them, and copies the diagonal of those to d.
    void close_block(View<const T> F, index_t end, T* d, bool parallel) {
        const index_t rest = W.rows - end, width = F.cols;
        for (index_t i = first; i < end; ++i)
            for (index_t j = first; j <= i; ++j) W(i, j) = F(i, j - first);
        const View<const T> below = F.block(end, 0, rest, width);
        copy<T>(below, T(1), W.block(end, first, rest, width), parallel);
        first = end;
        if (rest == 0) return;
        gemmt<T>(-1, below, below.t(), true, W.block(end, end, rest, rest), Upper::scribble, parallel);
        for (index_t i = end; i < W.rows; ++i) d[i] = W(i, i);
    }
};

// Returns the position of the first largest entry of d from `begin` on, or -1 if one of them is NaN or infinite.
template <class T>
index_t find_pivot(const T* d, index_t begin, index_t n) {
    index_t best = begin;
    bool finite = true;
    for (index_t i = begin; i < n; ++i) {
        finite = finite && std::isfinite(d[i]);
        if (d[i] > d[best]) best = i;
    }
    return finite ? best : -1;
}

// The state of a factorisation: the diagonal d of what is left of A, the order of its rows, and the columns F (n x width,
// column-major) of the current block with one row of them.
template <class T>
struct PivotedState {
    T* d;
    std::int64_t* order;
    View<T> F;
    T* row;
};

// F(i, m) := column j of the factor for i > j, from m columns of the block, and d := d - F(:, m)^2.
template <class T, class Columns>
void append_column(const Columns& columns, const PivotedState<T>& state, index_t j, index_t m, bool parallel) {
    const index_t n = state.F.rows;
    const View<const T> done = state.F.columns(0, m);
    for (index_t i = 0; i < m; ++i) state.row[i] = done(j, i);
    T *const column = state.F.at(0, m), *const d = state.d;
    const T root = std::sqrt(d[j]);
    column[j] = root;
    const auto compute = [&](index_t strip) {
        const index_t begin = j + 1 + strip * plan::pivoted_strip, end = std::min(n, begin + plan::pivoted_strip);
        columns.load(j, column, begin, end);
        subtract_columns<T>(done, state.row, column, begin, end);
        for (index_t i = begin; i < end; ++i) {
            column[i] /= root;
            d[i] -= column[i] * column[i];
        }
    };
    const index_t strips = (n - j - 1 + plan::pivoted_strip - 1) / plan::pivoted_strip;
    if (parallel && (n - j) * (m + 1) >= plan::pivoted_parallel_elements)
        parallel::for_each(strips, compute);
    else
        for (index_t strip = 0; strip < strips; ++strip) compute(strip);
}

// Finds up to `most` pivots and columns of the factor. Returns how many there are, or -k if pivot k (from 1) is NaN or infinite.
template <class T, class Columns>
index_t factor_pivoted(Columns& columns, const PivotedState<T>& state, index_t most, T tolerance, bool parallel) {
    const index_t n = state.F.rows, width = state.F.cols;
    index_t j = 0;
    for (bool found = true; found && j < most;) {
        const index_t first = j, end = std::min(most, first + width);
        for (; j < end; ++j) {
            const index_t p = find_pivot<T>(state.d, j, n);
            if (p < 0) return -(j + 1);
            found = state.d[p] > tolerance;
            if (!found) break;
            if (p != j) {
                std::swap(state.d[j], state.d[p]);
                std::swap(state.order[j], state.order[p]);
                columns.exchange(j, p);
                exchange_two_rows<T>(state.F.columns(0, j - first), j, p);
            }
            append_column<T>(columns, state, j, j - first, parallel);
        }
        columns.close_block(state.F.columns(0, j - first), j, state.d, parallel);
    }
    return j;
}

// Factors one matrix into L (n x most). Returns the rank, or -k if pivot k (from 1) is NaN or infinite.
template <class T>
index_t factor_one_pivoted(View<const T> A, View<T> L, std::int64_t* order, double tolerance, bool parallel) {
    const index_t n = A.rows, most = L.cols;
    const bool in_place = most * plan::few_columns_share <= n;
    const index_t width = in_place ? most : std::min(most, plan::pivoted_block);
    std::iota(order, order + n, std::int64_t(0));
    if (most == 0) return 0;
    // LAPACK's epsilon is the largest relative error of a rounding.
    const T unit = std::numeric_limits<T>::epsilon() / 2;
    if (n == 1) {
        const T pivot = A(0, 0);
        if (!std::isfinite(pivot)) return -1;
        const bool found = pivot > (tolerance < 0 ? std::max(T(0), unit * pivot) : T(tolerance));
        L(0, 0) = found ? std::sqrt(pivot) : T(0);
        return found;
    }
    ShortBuffer<T> work(n * width + n + width);
    T* const diagonal = work.get() + n * width;
    const PivotedState<T> state{diagonal, order, {work.get(), n, width, 1, n}, diagonal + n};
    T largest = 0;
    for (index_t i = 0; i < n; ++i) largest = std::max(largest, state.d[i] = A(i, i));
    const T least = tolerance < 0 ? T(n) * unit * largest : T(tolerance);
    index_t rank = 0;
    if (in_place) {
        ColumnsInPlace<T> columns{A, order};
        rank = factor_pivoted<T>(columns, state, most, least, parallel);
        if (rank > 0) copy<T>(state.F.columns(0, rank), T(1), L.columns(0, rank), parallel);
    } else {
        const Buffer<T> copied = most < n ? allocate<T>(n * n) : nullptr;
        UpdatedColumns<T> columns{most < n ? View<T>{copied.get(), n, n, n, 1} : L};
        copy_lower<T>(A, T(1), columns.W, parallel);
        rank = factor_pivoted<T>(columns, state, most, least, parallel);
        if (most < n && rank > 0) copy<T>(columns.W.columns(0, rank), T(1), L.columns(0, rank), parallel);
    }
    if (rank < 0) return rank;
    clear_strict_upper<T>(L.block(0, 0, rank, rank), parallel);
    set_zero<T>(L.columns(rank, most - rank));
    return rank;
}

// L (n x most), pivots (n per item), ranks := the factors; a negative tolerance stands for n eps max_i a_ii. status[b] is 0, or
// -k if pivot k of item b is NaN or infinite.
template <class T>
void pstrf_batch(Batch<const T> A, Batch<T> L, std::int64_t* pivots, std::int64_t* ranks, double tolerance, std::int32_t* status) {
    const index_t n = A.rows;
    const index_t order = index_t(std::cbrt(double(n) * double(L.cols) * double(L.cols)));
    for_items(A.count, plan::measure_cube(order), [&](index_t b, bool parallel) {
        const index_t found = factor_one_pivoted<T>(A[b], L[b], pivots + b * n, tolerance, parallel);
        status[b] = std::int32_t(std::min<index_t>(found, 0));
        ranks[b] = std::max<index_t>(found, 0);
    });
}

// gA := the gradient for the cotangent gL of a square factor L: that of potrf in pivoted order, put back. Columns from found[item] on are
// zero, and have no gradient.
template <class T>
void pstrf_vjp_batch(Batch<const T> L, Batch<const T> gL, const std::int64_t* pivots, const std::int64_t* found, Batch<T> gA) {
    const index_t n = L.rows;
    for_parts<T>(L.count, 3 * n * n, [&](index_t first, index_t number) {
        const BatchBuffer<T> factor(number, n, n), gradient(number, n, n);
        for (index_t b = 0; b < number; ++b) {
            const View<T> l = factor.all()[b], g = gradient.all()[b];
            copy<T>(L[first + b], T(1), l, number == 1);
            copy<T>(gL[first + b], T(1), g, number == 1);
            for (index_t j = found[first + b]; j < n; ++j) {
                l(j, j) += T(1);  // With a one on its diagonal, a column of zeros does not mix with the others.
                for (index_t i = 0; i < n; ++i) g(i, j) = T(0);
            }
        }
        potrf_vjp_batch<T>(factor.readonly(), gradient.readonly(), gradient.all(), nullptr);
        for (index_t b = 0; b < number; ++b) {
            const std::int64_t* const p = pivots + (first + b) * n;
            const View<T> target = gA[first + b], source = gradient.all()[b];
            for_strips(n, n, number == 1, [&](index_t begin, index_t end) {
                for (index_t i = begin; i < end; ++i)
                    for (index_t j = 0; j < n; ++j) target(p[i], p[j]) = source(i, j);
            });
        }
    });
}

}  // namespace lapgrad
