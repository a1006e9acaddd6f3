// A power of two that moves matrices away from the ends of the range of their numbers.
//
// Sums of products with entries near the largest number overflow although the result of the whole computation does not. So
// do those with entries near the smallest number where the result has their reciprocals.
#pragma once

#include <limits>

namespace lapgrad {

// 2^-32 if `largest`, the largest entry of a matrix, is within that factor of overflow; 2^32 if its reciprocal is; else 1, also
// for NaN. The factor is above what sums of n products and the growth of pivots amount to, and small enough to keep the
// other entries from underflow.
template <class T>
[[gnu::always_inline]] inline T range_scale(T largest) {
    constexpr T factor = T(4294967296.0);
    constexpr T limit = std::numeric_limits<T>::max() / factor;
    if (largest > limit) return T(1) / factor;
    if (largest < T(1) / limit) return factor;
    return T(1);
}

}  // namespace lapgrad
