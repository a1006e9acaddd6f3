// Observations less their means, in a unit of their size: a power of two at or below the largest entry, so that moments neither
// overflow nor vanish, and dividing is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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

// sums[j] := the sum of column j, of runs of rows whose sums are added: rounding errors grow with the length of a run and the number of
// runs, and not with the number of rows.
template <class T>
void sum_columns(View<const T> X, T* sums) {
    constexpr index_t run = 64;
    std::vector<double> total(X.cols, 0.0), part(X.cols);
    for (index_t begin = 0; begin < X.rows; begin += run) {
        std::fill(part.begin(), part.end(), 0.0);
        for (index_t i = begin; i < std::min(X.rows, begin + run); ++i)
            for (index_t j = 0; j < X.cols; ++j) part[j] += static_cast<double>(X(i, j));
        for (index_t j = 0; j < X.cols; ++j) total[j] += part[j];
    }
    for (index_t j = 0; j < X.cols; ++j) sums[j] = static_cast<T>(total[j]);
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

// Divides an item by its unit, a power of two near its largest entry (or near `least`, if that is larger). Returns the unit.
template <class T>
T divide_by_unit(View<T> item, T least, bool parallel) {
    const T largest = find_largest_entry<T>(item.readonly());
    const bool has_nan = !std::isinf(largest) && has_nan_entry<T>(item.readonly());
    const T unit = find_unit<T>(has_nan ? std::numeric_limits<T>::quiet_NaN() : std::max(largest, least));
    if (unit != T(1)) copy<T>(item.readonly(), T(1) / unit, item, parallel);
    return unit;
}

// mean := the means of X's columns, centred := (X - mean) / unit. If `degrees` is positive, centred is NaN where a variance with this
// divisor overflows. Returns the unit.
template <class T>
T centre_item(View<const T> X, T* mean, View<T> centred, T least, index_t degrees, bool parallel) {
    const index_t n = X.rows, d = X.cols;
    for_column_blocks(n, d, parallel, [&](index_t first, index_t number) {
        sum_columns<T>(X.columns(first, number), mean + first);
        for (index_t j = first; j < first + number; ++j) mean[j] /= T(n);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = first; j < first + number; ++j) centred(i, j) = X(i, j) - mean[j];
    });
    const T unit = divide_by_unit<T>(centred, least, parallel);
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
            sum_columns<T>(G.columns(first, number), shift.data());
            for (index_t j = 0; j < number; ++j) {
                shift[j] *= scale / T(n);
                if (g_mean) shift[j] -= g_mean[b * d + first + j] / T(n);
            }
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < number; ++j) target(i, first + j) = G(i, first + j) * scale - shift[j];
        });
    });
}

}  // namespace lapgrad
