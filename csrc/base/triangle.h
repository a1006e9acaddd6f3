// Passes over memory: copies, mirrors and fills of triangles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/isa.h"
#include "base/parallel.h"
#include "base/plan.h"

namespace lapgrad {

using plan::strip_rows;

// Calls body(begin, end) for strips of rows; in parallel if `parallel` and the matrix is large enough.
template <class F>
void for_strips(index_t rows, index_t cols, bool parallel, F body) {
    const index_t strips = (rows + strip_rows - 1) / strip_rows;
    const auto run = [&](index_t s) { body(s * strip_rows, std::min(rows, (s + 1) * strip_rows)); };
    if (parallel && rows * cols >= plan::parallel_elements) {
        const contention::ShortLoop pass;
        parallel::for_each(strips, run);
    } else {
        for (index_t s = 0; s < strips; ++s) run(s);
    }
}

// target[i] := the largest absolute value in row i, times `factor`.
template <class T>
void measure_rows(View<const T> X, T factor, T* target, bool parallel) {
    for_strips(X.rows, X.cols, parallel, [&](index_t begin, index_t end) {
        std::fill(target + begin, target + end, T(0));
        if (X.col_stride == 1 || X.row_stride != 1)
            for (index_t i = begin; i < end; ++i) {
                T most = 0;
                for (index_t k = 0; k < X.cols; ++k) most = std::max(most, std::abs(X(i, k)));
                target[i] = most;
            }
        else
            for (index_t k = 0; k < X.cols; ++k)
                for (index_t i = begin; i < end; ++i) target[i] = std::max(target[i], std::abs(X(i, k)));
        for (index_t i = begin; i < end; ++i) target[i] *= factor;
    });
}

// dst := scale * src, a strip of columns at a time, so that a transposed source is read within the cache.
template <class T>
void copy_block(View<const T> src, T scale, View<T> dst) {
    if (dst.col_stride != 1) return copy_block<T>(src.t(), scale, dst.t());
    if (src.col_stride == 1) return isa::kernels<T>().copy(src, scale, dst);
    for (index_t j = 0; j < dst.cols; j += strip_rows)
        isa::kernels<T>().copy(src.columns(j, std::min(strip_rows, dst.cols - j)), scale,
                               dst.columns(j, std::min(strip_rows, dst.cols - j)));
}

// dst := scale * src. Does nothing if they are the same memory and scale is 1.
template <class T>
void copy(View<const T> src, T scale, View<T> dst, bool parallel) {
    if (src.data == dst.data && scale == T(1)) return;
    if (dst.col_stride != 1) return copy<T>(src.t(), scale, dst.t(), parallel);
    for_strips(dst.rows, dst.cols, parallel, [&](index_t begin, index_t end) {
        copy_block<T>(src.block(begin, 0, end - begin, src.cols), scale, dst.block(begin, 0, end - begin, dst.cols));
    });
}

// The lower triangle of dst := scale * the lower triangle of src. The strict upper triangle is not written, except in blocks on
// the diagonal, where entries of src may be copied as well.
template <class T>
void copy_lower(View<const T> src, T scale, View<T> dst, bool parallel) {
    if (src.data == dst.data && scale == T(1)) return;
    for_strips(dst.rows, dst.cols, parallel, [&](index_t begin, index_t end) {
        copy_block<T>(src.block(begin, 0, end - begin, end), scale, dst.block(begin, 0, end - begin, end));
    });
}

template <class T>
void clear_strict_upper(View<T> A, bool parallel) {
    const bool row_major = A.col_stride == 1;
    for_strips(A.rows, A.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
            // Row i right of the diagonal, or column i above it: whichever is contiguous.
            const index_t from = row_major ? i + 1 : 0, to = row_major ? A.cols : i;
            T* line = row_major ? A.at(i, 0) : A.at(0, i);
            const index_t step = row_major ? A.col_stride : A.row_stride;
            for (index_t j = from; j < to; ++j) line[j * step] = T(0);
        }
    });
}

// The strict upper triangle := the mirrored strict lower one.
template <class T>
void mirror_lower(View<T> A, bool parallel) {
    for_strips(A.rows, A.cols, parallel, [&](index_t begin, index_t end) {
        copy_block<T>(A.block(begin, 0, end - begin, begin).readonly().t(), T(1),
                      A.block(0, begin, begin, end - begin));
        for (index_t i = begin; i < end; ++i)
            for (index_t j = begin; j < i; ++j) A(j, i) = A(i, j);
    });
}

// B := rows [begin, begin + B.rows) of A + A', in blocks, so that A and A' are both read along their rows.
template <class T>
void add_transpose(View<const T> A, index_t begin, View<T> B, bool parallel) {
    for_strips(B.rows, B.cols, parallel, [&](index_t first, index_t last) {
        const index_t rows = last - first;
        T mirrored[strip_rows * strip_rows];
        for (index_t j = 0; j < B.cols; j += strip_rows) {
            const index_t cols = std::min(strip_rows, B.cols - j);
            const View<T> target = B.block(first, j, rows, cols), image{mirrored, rows, cols, cols, 1};
            copy_block<T>(A.block(begin + first, j, rows, cols), T(1), target);
            copy_block<T>(A.block(j, begin + first, cols, rows).t(), T(1), image);
            for (index_t i = 0; i < rows; ++i)
                for (index_t c = 0; c < cols; ++c) target(i, c) += image(i, c);
        }
    });
}

// Returns the largest absolute value of an entry. A NaN does not count.
template <class T>
T find_largest_entry(View<const T> A) {
    if (A.col_stride != 1) A = A.t();
    // Several maxima, so that a comparison does not wait for the one before it.
    constexpr index_t chains = 16;
    T largest[chains] = {};
    for (index_t i = 0; i < A.rows; ++i) {
        const T* const row = A.at(i, 0);
        index_t j = 0;
        for (; j + chains <= A.cols; j += chains)
            for (index_t c = 0; c < chains; ++c) largest[c] = std::max(largest[c], std::abs(row[j + c]));
        for (; j < A.cols; ++j) largest[0] = std::max(largest[0], std::abs(A(i, j)));
    }
    return *std::max_element(largest, largest + chains);
}

template <class T>
void set_identity(View<T> A) {
    for (index_t i = 0; i < A.rows; ++i)
        for (index_t j = 0; j < A.cols; ++j) A(i, j) = T(i == j);
}

template <class T>
void set_zero(View<T> A) {
    for (index_t i = 0; i < A.rows; ++i)
        for (index_t j = 0; j < A.cols; ++j) A(i, j) = T(0);
}

// Clears `count` numbers in small pieces. A large memset bypasses the cache, although pages that the system has just cleared are in it.
template <class T>
void clear_numbers(T* numbers, index_t count) {
    constexpr index_t piece = 1 << 13;
    for (index_t i = 0; i < count; i += piece)
        std::memset(static_cast<void*>(numbers + i), 0, static_cast<std::size_t>(std::min(piece, count - i)) * sizeof(T));
}

// Calls body(item, parallel) for a memory pass over a batch: large items one after the other with all threads on each
// (`parallel`), small ones in parallel.
template <class F>
void for_passes(index_t count, index_t elements, F body) {
    if (elements >= plan::parallel_elements) {
        for (index_t b = 0; b < count; ++b) body(b, true);
        return;
    }
    parallel::for_ranges(count, plan::parallel_elements / std::max<index_t>(1, elements), [&](index_t begin, index_t end) {
        for (index_t b = begin; b < end; ++b) body(b, false);
    });
}

}  // namespace lapgrad
