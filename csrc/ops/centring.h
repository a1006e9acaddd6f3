// Observations less their means, in a unit of their size: a power of two at or below the largest entry, so that moments neither
// overflow nor vanish, and dividing is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "base/triangle.h"

namespace lapgrad {

// Returns the power of two at or below `largest`; 1 for zero, NaN for NaN.
template <class T>
T find_unit(T largest) {
    constexpr int limit = sizeof(T) == 4 ? 120 : 1000;  // reciprocals are finite
    if (largest == T(0)) return T(1);
    if (std::isnan(largest)) return largest;
    int exponent = limit + 1;
    if (!std::isinf(largest)) std::frexp(largest, &exponent);
    return std::ldexp(T(1), std::min(std::max(exponent - 1, -limit), limit));
}

// Returns how many rows of X are computed as one: short rows that are next to each other would leave most of a vector empty.
template <class T>
index_t count_joined_rows(View<const T> X) {
    const bool are_adjacent = X.col_stride == 1 && X.row_stride == X.cols && X.cols > 0;
    return are_adjacent ? std::max<index_t>(1, std::min(X.rows, plan::long_row / X.cols)) : 1;
}

// sums[j] := the sum of column j, of runs of rows whose sums are added: rounding errors grow with the length of a run and the number of
// runs, and not with the number of rows.
template <class T>
void sum_columns(View<const T> X, double* sums) {
    constexpr index_t run = 64;
    const index_t joined = count_joined_rows<T>(X), d = X.cols;
    ShortBuffer<double> memory(joined * d);
    double* const part = memory.get();
    std::fill(sums, sums + d, 0.0);
    for (index_t begin = 0; begin < X.rows; begin += run * joined) {
        std::fill(part, part + joined * d, 0.0);
        const index_t rows = std::min(X.rows - begin, run * joined), whole = rows / joined, rest = rows % joined;
        if (X.col_stride == 1) {
            isa::kernels<T>().add_rows(X.at(begin, 0), whole, joined * X.row_stride, joined * d, part);
            isa::kernels<T>().add_rows(X.at(begin + whole * joined, 0), rest > 0, 0, rest * d, part);
        } else {
            for (index_t j = 0; j < d; ++j)
                for (index_t i = begin; i < begin + rows; ++i) part[j] += static_cast<double>(X(i, j));
        }
        for (index_t r = 0; r < joined; ++r)
            for (index_t j = 0; j < d; ++j) sums[j] += part[r * d + j];
    }
}

// Passes over rows are made in chunks of this many. It depends on the size of the matrix only, so that sums over chunks do not depend on
// the number of threads.
inline index_t choose_chunk_rows(index_t cols) { return std::max<index_t>(1, plan::parallel_elements / std::max<index_t>(1, cols)); }

inline index_t count_row_chunks(index_t rows, index_t cols) { return (rows + choose_chunk_rows(cols) - 1) / choose_chunk_rows(cols); }

// Calls body(chunk, first, number) for chunks of rows, in parallel if `parallel`.
template <class F>
void for_row_chunks(index_t rows, index_t cols, bool parallel, F body) {
    const index_t size = choose_chunk_rows(cols), chunks = count_row_chunks(rows, cols);
    const auto run = [&](index_t c) { body(c, c * size, std::min(size, rows - c * size)); };
    if (parallel) return parallel::for_each(chunks, run);
    for (index_t c = 0; c < chunks; ++c) run(c);
}

// Calls body(first, number) for blocks of columns, in parallel if `parallel` and the matrix is large enough.
template <class F>
void for_column_blocks(index_t rows, index_t cols, bool parallel, F body) {
    constexpr index_t width = 64;
    if (!parallel || rows * cols < plan::parallel_elements) return body(index_t(0), cols);
    parallel::for_each((cols + width - 1) / width, [&](index_t s) { body(s * width, std::min(width, cols - s * width)); });
}

template <class T>
bool has_nan_entry(View<const T> A) {
    T nothing[8] = {};
    for (index_t i = 0; i < A.rows; ++i) {
        index_t j = 0;
        for (; j + 8 <= A.cols; j += 8)
            for (index_t c = 0; c < 8; ++c) nothing[c] += A(i, j + c) * T(0);
        for (; j < A.cols; ++j) nothing[0] += A(i, j) * T(0);
    }
    for (const T sum : nothing)
        if (sum != sum) return true;
    return false;
}

// The size of the entries of a matrix.
template <class T>
struct Extent {
    T largest = 0;  // absolute value of those that are numbers
    bool has_nan = false;
};

template <class T>
Extent<T> measure_extent(View<const T> A) {
    const T largest = find_largest_entry<T>(A);
    return {largest, !std::isinf(largest) && has_nan_entry<T>(A)};
}

template <class T>
Extent<T> join_extents(const Extent<T>* parts, index_t count) {
    Extent<T> joined;
    for (index_t i = 0; i < count; ++i) {
        joined.largest = std::max(joined.largest, parts[i].largest);
        joined.has_nan |= parts[i].has_nan;
    }
    return joined;
}

// centred := X less its means; returns the extent of the result. `centred` is stored by rows.
template <class T>
Extent<T> subtract_means(View<const T> X, const T* mean, View<T> centred) {
    const index_t n = X.rows, d = X.cols;
    if (X.col_stride != 1) {
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < d; ++j) centred(i, j) = X(i, j) - mean[j];
        return measure_extent<T>(centred);
    }
    const index_t joined = std::min(count_joined_rows<T>(X), count_joined_rows<T>(centred)), whole = n / joined, rest = n % joined;
    ShortBuffer<T> repeated(joined * d);
    for (index_t r = 0; r < joined; ++r) std::copy(mean, mean + d, repeated.get() + r * d);
    Extent<T> parts[2];
    const auto subtract = [&](Extent<T>& part, index_t first, index_t rows, index_t width) {
        isa::kernels<T>().subtract_row(X.at(first, 0), rows, joined * X.row_stride, width, repeated.get(), centred.at(first, 0),
                                       joined * centred.row_stride, &part.largest, &part.has_nan);
    };
    subtract(parts[0], 0, whole, joined * d);
    subtract(parts[1], whole * joined, rest > 0, rest * d);
    return join_extents<T>(parts, 2);
}

// Divides an item by its unit, a power of two near its largest entry (or near `least`, if that is larger). Returns the unit.
template <class T>
T divide_by_unit(View<T> item, Extent<T> extent, T least, bool parallel) {
    const bool is_undefined = extent.has_nan && !std::isinf(extent.largest);
    const T unit = find_unit<T>(is_undefined ? std::numeric_limits<T>::quiet_NaN() : std::max(extent.largest, least));
    if (unit != T(1)) copy<T>(item.readonly(), T(1) / unit, item, parallel);
    return unit;
}

// mean := the means of X's columns, centred := (X - mean) / unit. If `degrees` is positive, centred is NaN where a variance with this
// divisor overflows. Returns the unit.
template <class T>
T centre_item(View<const T> X, T* mean, View<T> centred, T least, index_t degrees, bool parallel) {
    const index_t n = X.rows, d = X.cols;
    const index_t chunks = count_row_chunks(n, d);
    ShortBuffer<double> memory(chunks * d);
    double* const sums = memory.get();
    std::vector<Extent<T>> extents(chunks);
    for_row_chunks(n, d, parallel, [&](index_t chunk, index_t first, index_t rows) {
        sum_columns<T>(X.block(first, 0, rows, d), sums + chunk * d);
    });
    for (index_t chunk = 1; chunk < chunks; ++chunk)
        for (index_t j = 0; j < d; ++j) sums[j] += sums[chunk * d + j];
    for (index_t j = 0; j < d; ++j) mean[j] = static_cast<T>(sums[j]) / T(n);
    for_row_chunks(n, d, parallel, [&](index_t chunk, index_t first, index_t rows) {
        extents[chunk] = subtract_means<T>(X.block(first, 0, rows, d), mean, centred.block(first, 0, rows, d));
    });
    const T unit = divide_by_unit<T>(centred, join_extents<T>(extents.data(), chunks), least, parallel);
    // Entries are below 2 in their unit.
    if (degrees == 0 || std::isfinite(T(4) * T(n) / T(degrees) * (unit * unit))) return unit;
    bool overflows = false;
    for (index_t j = 0; j < d; ++j) {
        T sum = 0;
        for (index_t i = 0; i < n; ++i) sum += centred(i, j) * centred(i, j);
        overflows |= !std::isfinite(sum / T(degrees) * (unit * unit));
    }
    if (overflows)
        for (index_t i = 0; i < n; ++i) std::fill(centred.at(i, 0), centred.at(i, 0) + d, std::numeric_limits<T>::quiet_NaN());
    return unit;
}

template <class T>
void centre_batch(Batch<const T> X, T* mean, Batch<T> centred, T* unit, T least, index_t degrees) {
    for_passes(X.count, X.rows * X.cols, [&](index_t b, bool parallel) {
        unit[b] = centre_item<T>(X[b], mean + b * X.cols, centred[b], least, degrees, parallel);
    });
}

// gX := G less its means, plus g_mean / n, where G = g_centred / unit. g_mean may be null.
template <class T>
void centre_vjp_batch(Batch<const T> g_centred, const T* g_mean, const T* unit, Batch<T> gX) {
    const index_t n = gX.rows, d = gX.cols;
    for_passes(gX.count, n * d, [&](index_t b, bool parallel) {
        const View<const T> G = g_centred[b];
        const View<T> target = gX[b];
        const T scale = T(1) / unit[b];
        for_column_blocks(n, d, parallel, [&](index_t first, index_t number) {
            std::vector<T> shift(number);
            std::vector<double> sums(number);
            sum_columns<T>(G.columns(first, number), sums.data());
            for (index_t j = 0; j < number; ++j) {
                shift[j] = static_cast<T>(sums[j]) * (scale / T(n));
                if (g_mean) shift[j] -= g_mean[b * d + first + j] / T(n);
            }
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < number; ++j) target(i, first + j) = G(i, first + j) * scale - shift[j];
        });
    });
}

}  // namespace lapgrad
