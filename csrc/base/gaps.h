// What stands for 1 / gap in the gradients of spectral decompositions, also where the gap between two values closes.
//
// Written once for numbers and for vectors of numbers; always inlined, for the reason that view.h gives.
#pragma once

namespace lapgrad {

// Where values are closer than tol times the largest (the threshold): mask: nothing. lorentz: gap / (gap^2 +
// threshold^2). clamp: gaps are at least the threshold. nan: the formula as it stands.
enum class Degeneracy { mask, lorentz, clamp, nan };

// Entries of sk(gU U') that are only rounding are not divided by small gaps (policy mask). How far such an entry may be off:
// for each of its two rows of gU, of `length` numbers, this many times the largest entry of the row. The norm of a row is at
// most the root of its length times that entry, and scalar products with unit vectors are off by about one eps times the
// norm; the rest is margin for losses whose cotangents are small differences.
template <class T>
[[gnu::always_inline]] inline T rounding_units(double length) {
    constexpr double eps = sizeof(T) == 8 ? 0x1p-52 : 0x1p-23;
    return static_cast<T>(8.0 * (1.0 + __builtin_sqrt(length)) * eps);
}

// The gaps below which that is done, relative to the largest value: eps^(1/4). Wider ones cost a quarter of the digits at most.
template <class T>
constexpr T close_gap = sizeof(T) == 8 ? T(0x1p-13) : T(0.018581361171917516);

// Whether `turn` is only rounding: below `noise`, the sum over its rows, where the gap is below `close`. If the slopes of
// both values differ, by `step`, then a quotient as large as that is expected, and the entry counts unless the difference drowns
// in rounding as well. Nothing is discarded where there is no noise.
template <class V>
[[gnu::always_inline]] inline auto only_rounding(V turn, V noise, V gap, V close, V step) {
    const V drift = gap * step;
    return (gap < close) & (turn < noise) & (-turn < noise) & (drift < noise) & (-drift < noise);
}

// For l_i >= l_j. `scale` is the largest |eigenvalue|, not 0; the threshold is tol * scale, not 0. Lorentz divides by the
// scale first: squares of gaps would overflow, or vanish, long before the gaps do.
template <class V>
[[gnu::always_inline]] inline V inverse_gap(Degeneracy rule, V gap, V threshold, V scale) {
    const V one = V{} + 1;
    switch (rule) {
        case Degeneracy::mask: return gap > threshold ? one / gap : V{};
        case Degeneracy::clamp: return one / (gap > threshold ? gap : threshold);
        case Degeneracy::lorentz: {
            const V relative = gap / scale, least = threshold / scale;
            return relative / (relative * relative + least * least) / scale;
        }
        default: return one / gap;
    }
}

}  // namespace lapgrad
