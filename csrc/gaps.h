// What stands for 1 / gap in the gradients of spectral decompositions, also where the gap between two values closes.
//
// Written once for numbers and for vectors of numbers; always inlined, for the reason that view.h gives.
#pragma once

namespace lapgrad {

// Where values are closer than tol times the largest (the threshold): mask: nothing. lorentz: gap / (gap^2 +
// threshold^2). clamp: gaps are at least the threshold. nan: the formula as it stands.
enum class Degeneracy { mask, lorentz, clamp, nan };

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
