// Triangles packed into vectors, and back.
//
// A triangle of order k has k runs. Run r holds the first r + 1 entries of row r + skip of the matrix and starts at entry
// r (r + 1) / 2 of the vector. That is a lower triangle, row by row; an upper triangle, column by column, is a lower one of A'.
// Runs of a row-major matrix are copied directly. Runs of a column-major one are transposed in square tiles.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/triangle.h"

namespace lapgrad {

inline index_t start_of_run(index_t r) { return r * (r + 1) / 2; }

// A packed triangle: a vector whose entries are `step` apart.
template <class T>
struct Packed {
    T* data;
    index_t step;

    View<T> entries(index_t begin, index_t count) const { return {data + begin * step, 1, count, 0, step}; }
};

// target := source. Most runs are short: four entries are copied at a time, and the last four may overlap the ones before.
template <class T>
inline void copy_run(const T* source, index_t count, T* target) {
    if (count > plan::short_run) {
        std::memcpy(target, source, count * sizeof(T));
    } else if (count >= 4) {
        for (index_t j = 0; j + 4 <= count; j += 4) std::memcpy(target + j, source + j, 4 * sizeof(T));
        std::memcpy(target + count - 4, source + count - 4, 4 * sizeof(T));
    } else {
        if (count & 2) std::memcpy(target, source, 2 * sizeof(T));
        if (count & 1) target[count - 1] = source[count - 1];
    }
}

template <class T>
inline void clear_run(T* target, index_t count) {
    if (count > plan::short_run) {
        std::memset(target, 0, count * sizeof(T));
    } else if (count >= 4) {
        for (index_t j = 0; j + 4 <= count; j += 4) std::memset(target + j, 0, 4 * sizeof(T));
        std::memset(target + count - 4, 0, 4 * sizeof(T));
    } else {
        if (count & 2) std::memset(target, 0, 2 * sizeof(T));
        if (count & 1) target[count - 1] = T(0);
    }
}

template <class T>
inline void copy_run(Packed<const T> v, index_t begin, index_t count, T* target) {
    if (v.step == 1) return copy_run<T>(v.data + begin, count, target);
    isa::kernels<T>().copy(v.entries(begin, count), T(1), {target, 1, count, count, 1});
}

// v (contiguous) := the lower triangle of A (n x n), starting with the diagonal `skip` below the main one.
template <class T>
void pack_triangle(View<const T> A, index_t skip, T* v, bool parallel) {
    const index_t order = A.rows - skip;
    const View<const T> triangle = A.block(skip, 0, order, order);
    for_strips(order, order, parallel, [&](index_t begin, index_t end) {
        if (triangle.col_stride == 1) {
            for (index_t r = begin; r < end; ++r) copy_run<T>(triangle.at(r, 0), r + 1, v + start_of_run(r));
            return;
        }
        T tile[strip_rows * strip_rows];
        for (index_t j = 0; j < end; j += strip_rows) {
            const index_t cols = std::min(strip_rows, end - j);
            isa::kernels<T>().copy(triangle.block(begin, j, end - begin, cols), T(1),
                                   {tile, end - begin, cols, strip_rows, 1});
            for (index_t r = begin; r < end; ++r)
                copy_run<T>(tile + (r - begin) * strip_rows, std::min(cols, r + 1 - j), v + start_of_run(r) + j);
        }
    });
}

// A := v in the lower triangle that starts with the diagonal `skip` below the main one, zero elsewhere. A is row-major.
template <class T>
void unpack_rows(Packed<const T> v, index_t skip, View<T> A, bool parallel) {
    for_strips(A.rows, A.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
            const index_t r = i - skip, count = r < 0 ? 0 : r + 1;
            if (count > 0) copy_run<T>(v, start_of_run(r), count, A.at(i, 0));
            clear_run<T>(A.at(i, count), A.cols - count);
        }
    });
}

// The same for A': runs of v are columns of A, which is row-major, starting with the diagonal `skip` above the main one.
template <class T>
void unpack_columns(Packed<const T> v, index_t skip, View<T> A, bool parallel) {
    const index_t order = A.rows - skip;
    for_strips(A.rows, A.cols, parallel, [&](index_t begin, index_t end) {
        // The strip is zero left of column `first`.
        const index_t first = std::min(A.cols, begin + skip);
        for (index_t i = begin; i < end; ++i) clear_run<T>(A.at(i, 0), first);
        T tile[strip_rows * strip_rows];
        for (index_t r = begin; r < order; r += strip_rows) {
            const index_t runs = std::min(strip_rows, order - r);
            for (index_t s = 0; s < runs; ++s) {
                const index_t count = std::min(end, r + s + 1) - begin;  // of run r + s, in rows [begin, end)
                copy_run<T>(v, start_of_run(r + s) + begin, count, tile + s * strip_rows);
                clear_run<T>(tile + s * strip_rows + count, end - begin - count);
            }
            isa::kernels<T>().copy(View<const T>{tile, end - begin, runs, 1, strip_rows}, T(1),
                                   A.block(begin, r + skip, end - begin, runs));
        }
    });
}

// target[k] := source[k * step] for k < count: a batch of single entries, for which a call per item would take most of the time.
template <class T>
void copy_entries(const T* source, index_t step, index_t count, T* target) {
    // Entries that are not next to each other are in cache lines of their own.
    parallel::for_ranges(count, plan::parallel_elements / (step == 1 ? 1 : 8), [&](index_t begin, index_t end) {
        if (step == 1) return std::copy(source + begin, source + end, target + begin), void();
        for (index_t k = begin; k < end; ++k) target[k] = source[k * step];
    });
}

// Calls body with n as a constant, if n is from N to 8. Returns whether it did: loops over so few entries take longer than the entries.
template <index_t N = 2, class F>
bool with_short_side(index_t n, F body) {
    if constexpr (N > 8)
        return false;
    else
        return n == N ? (body(std::integral_constant<index_t, N>{}), true) : with_short_side<N + 1>(n, body);
}

// Calls body(item, n) for a memory pass over a batch of n x n matrices, with n as a constant, if n is from 1 to 8. Returns whether it did.
template <class F>
bool for_short_items(index_t n, index_t count, F body) {
    return with_short_side<1>(n, [&](auto order) {
        parallel::for_ranges(count, plan::parallel_elements / (order * order), [&](index_t begin, index_t end) {
            for (index_t b = begin; b < end; ++b) body(b, order);
        });
    });
}

// d := the diagonals of A, n numbers per item.
template <class T>
void extractdiag_batch(Batch<const T> A, T* d) {
    const index_t n = A.rows, step = A.row_stride + A.col_stride;
    if (n == 1) return copy_entries<T>(A.data, A.batch_stride, A.count, d);
    const auto extract = [&](auto order, index_t begin, index_t end) {
        for (index_t b = begin; b < end; ++b)
            for (index_t i = 0; i < order; ++i) d[b * order + i] = A.data[b * A.batch_stride + i * step];
    };
    // Each number is in a cache line of its own.
    parallel::for_ranges(A.count, plan::parallel_elements / (8 * n) + 1, [&](index_t begin, index_t end) {
        if (!with_short_side(n, [&](auto order) { extract(order, begin, end); })) extract(n, begin, end);
    });
}

// A := the contiguous n x n matrices with the diagonals d; `distance` is the stride between the diagonals of two items.
template <class T>
void makediag_batch(const T* d, index_t distance, index_t n, index_t count, T* A) {
    if (n == 1) return copy_entries<T>(d, distance, count, A);
    const bool is_short = with_short_side(n, [&](auto order) {
        parallel::for_ranges(count, plan::parallel_elements / (order * order), [&](index_t begin, index_t end) {
            constexpr bool clears = order > 3;  // else zeros are written between the entries
            if (clears) clear_numbers<T>(A + begin * order * order, (end - begin) * order * order);
            for (index_t b = begin; b < end; ++b)
                for (index_t i = 0; i < order; ++i) {
                    T* const row = A + (b * order + i) * order;
                    for (index_t j = 0; j < order && !clears; ++j) row[j] = T(0);
                    row[i] = d[b * distance + i];
                }
        });
    });
    if (is_short) return;
    // One task takes some rows, whichever items they belong to.
    parallel::for_ranges(count * n, plan::parallel_elements / n + 1, [&](index_t begin, index_t end) {
        clear_numbers<T>(A + begin * n, (end - begin) * n);
        for (index_t row = begin, b = begin / n; row < end; ++b) {
            const index_t i = row - b * n, last = std::min(n, i + end - row);
            for (index_t k = i; k < last; ++k) A[(b * n + k) * n + k] = d[b * distance + k];
            row += last - i;
        }
    });
}

template <class T>
void extracttrian_batch(Batch<const T> A, index_t skip, T* v) {
    const index_t length = start_of_run(A.rows - skip);
    if (length == 1) return copy_entries<T>(A.data + skip * A.row_stride, A.batch_stride, A.count, v);
    for_passes(A.count, length, [&](index_t b, bool parallel) { pack_triangle<T>(A[b], skip, v + b * length, parallel); });
}

// A := the matrices with the packed triangles v, zero elsewhere. A has one stride of 1; `distance` is the stride between the
// vectors of two items.
template <class T>
void maketrian_batch(Packed<const T> v, index_t distance, index_t skip, Batch<T> A) {
    if (A.rows == 1 && skip == 0 && A.batch_stride == 1) return copy_entries<T>(v.data, distance, A.count, A.data);
    for_passes(A.count, A.rows * A.cols, [&](index_t b, bool parallel) {
        const Packed<const T> packed{v.data + b * distance, v.step};
        if (A.col_stride == 1)
            unpack_rows<T>(packed, skip, A[b], parallel);
        else
            unpack_columns<T>(packed, skip, A[b].t(), parallel);
    });
}

}  // namespace lapgrad
