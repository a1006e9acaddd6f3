// The sum of the logarithms of a diagonal plus a sum of squares: the two terms of a normal density.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/isa.h"
#include "base/parallel.h"
#include "base/plan.h"
#include "base/view.h"

namespace lapgrad {

// Returns sum_i log |a_ii| with one logarithm per run of entries: mantissas are multiplied, exponents are added.
template <class T>
double sum_log_diagonal(View<const T> A) {
    // Mantissas are between 1/sqrt(2) and sqrt(2): entries near 1 have exponent 0, and a product of `run` of them does not overflow.
    constexpr index_t run = plan::log_run;
    constexpr double root_of_half = 0.70710678118654752440;
    double sum = 0;
    for (index_t begin = 0; begin < A.rows; begin += run) {
        double product = 1;
        std::int64_t exponents = 0;
        for (index_t i = begin; i < A.rows && i < begin + run; ++i) {
            int exponent = 0;
            const double mantissa = std::frexp(std::fabs(static_cast<double>(A(i, i))), &exponent);
            const bool small = mantissa < root_of_half;
            product *= small ? 2 * mantissa : mantissa;
            exponents += exponent - small;
        }
        sum += std::log(product) + static_cast<double>(exponents) * 0.69314718055994530942;
    }
    return sum;
}

template <class T>
double sum_squares(View<const T> A) {
    if (A.col_stride != 1 && A.row_stride == 1) return sum_squares<T>(A.t());
    double sum = 0;
    for (index_t i = 0; i < A.rows; ++i) {
        constexpr int chains = 4;
        double row[chains] = {};
        for (index_t j = 0; j < A.cols; ++j) row[j % chains] += static_cast<double>(A(i, j)) * A(i, j);
        sum += (row[0] + row[1]) + (row[2] + row[3]);
    }
    return sum;
}

// out[item] := constant + logs * sum_i log |l_ii| + squares * |W|^2.
template <class T>
void sumlogdiag_batch(Batch<const T> L, Batch<const T> W, double constant, double logs, double squares, T* out) {
    const index_t work = 4 * L.rows + 32 + L.rows * W.cols;
    parallel::for_ranges(L.count, plan::parallel_operations / work + 1, [&](index_t begin, index_t end) {
        constexpr index_t piece = 64;
        double sums[piece] = {};
        for (index_t first = begin; first < end; first += piece) {
            const index_t last = std::min(end, first + piece);
            isa::kernels<T>().lane_sum_logs(L, sums, first, last);
            for (index_t b = first; b < last; ++b)
                if (std::isnan(sums[b - first])) sums[b - first] = sum_log_diagonal<T>(L[b]);
            for (double& sum : sums) sum = constant + logs * sum;
            for (index_t b = first; b < last && W.cols > 0; ++b) sums[b - first] += squares * sum_squares<T>(W[b]);
            for (index_t b = first; b < last; ++b) out[b] = static_cast<T>(sums[b - first]);
        }
    });
}

}  // namespace lapgrad
