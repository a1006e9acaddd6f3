// A power of two that scales matrices away from overflow.
//
// Sums of products of entries near the largest number can overflow although the final result does not. So can the reciprocals of
// entries near the smallest number.
#pragma once

#include <limits>

namespace lapgrad {

// Returns 2^-32 if `largest`, the largest entry of a matrix, is within a factor of 2^32 of overflow, 2^32 if its reciprocal is,
// and else 1, also for NaN. 2^32 is more than sums of n products and the growth of pivots amount to, and small enough that the
// other entries do not underflow.
template <class T>
[[gnu::always_inline]] inline T range_scale(T largest) {
    constexpr T factor = T(4294967296.0);
    constexpr T limit = std::numeric_limits<T>::max() / factor;
    if (largest > limit) return T(1) / factor;
    if (largest < T(1) / limit) return factor;
    return T(1);
}

}  // namespace lapgrad
