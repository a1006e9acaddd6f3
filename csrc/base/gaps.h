// What replaces 1 / gap in the gradients of spectral decompositions when two values are close to each other.
//
// The functions take numbers or vectors of numbers, and are always inlined for the reason that view.h gives.
#pragma once

namespace lapgrad {

// What replaces 1 / gap where a gap is below the threshold, tol times the largest value. mask: 0. lorentz: gap / (gap^2 +
// threshold^2), at every gap. clamp: 1 / threshold. nan: the plain quotient. The numbers are part of the interface to Python
// and to the CUDA kernels.
enum class Degeneracy { mask = 0, lorentz = 1, clamp = 2, nan = 3 };

// Under the policy mask, entries of sk(gU U') that are only rounding errors are not divided by small gaps. The error of an entry is
// at most the sum over its two rows of gU of this number times the largest entry of the row. A row has `length` numbers, so
// its norm is at most sqrt(length) times the largest one, and a scalar product with a unit vector has an error of about eps
// times the norm. The factor 8 is margin for losses whose cotangents are themselves small differences.
template <class T>
[[gnu::always_inline]] inline T rounding_units(double length) {
    constexpr double eps = sizeof(T) == 8 ? 0x1p-52 : 0x1p-23;
    return static_cast<T>(8.0 * (1.0 + __builtin_sqrt(length)) * eps);
}

// Such entries are discarded at gaps below this times the largest value: eps^(1/4). Division by a wider gap costs at most a quarter
// of the digits.
template <class T>
constexpr T close_gap = sizeof(T) == 8 ? T(0x1p-13) : T(0.018581361171917516);

// Whether an entry `turn` of sk(gU U') is only rounding: smaller than `noise`, its error bound, at a gap below `close`. If the
// cotangents of the two values differ, by `step`, then a quotient of that size is expected; the entry is kept unless gap * step
// is below the noise as well. With a noise of 0 nothing is discarded.
template <class V>
[[gnu::always_inline]] inline auto is_only_rounding(V turn, V noise, V gap, V close, V step) {
    const V drift = gap * step;
    return (gap < close) & (turn < noise) & (-turn < noise) & (drift < noise) & (-drift < noise);
}

// Returns the replacement of 1 / gap for gap >= 0. `scale` is the largest |value| and the threshold is tol * scale; neither is 0.
// Lorentz divides by the scale first, because squares of gaps overflow or underflow long before the gaps do.
template <class V>
[[gnu::always_inline]] inline V invert_gap(Degeneracy rule, V gap, V threshold, V scale) {
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
