// LU factorisation with partial pivoting of W matrices at a time, one per lane: determinants, inverses and the products of
// the inverse's gradient. Included only by isa_kernels.cpp.
//
// Each lane has its own pivot row, so rows are exchanged by blending: at most W rows below the diagonal take part.

// Results of the elimination for each lane, besides the factors.
template <class T>
struct Elimination {
    LaneMask<T> origin[lane_limit];     // which row of A is now row k
    LaneMask<T> exchanged[lane_limit];  // which row was exchanged with row k in step k
    LaneMask<T> status;              // 0; +k: pivot k (from 1) is zero; -k: it is NaN or infinite
    LaneMask<T> odd;                 // all bits set where the number of exchanges is odd
    Vec<T> mantissa;                 // determinant, without the sign of the exchanges, is mantissa * 2^exponent,
    LaneMask<T> exponent;            // 1 <= |mantissa| < 2
};

// Returns the mantissa of x = mantissa * 2^e, x != 0, with 1 <= |mantissa| < 2, and adds e to `exponent`.
template <class T>
[[gnu::always_inline]] inline Vec<T> split_exponent(Vec<T> x, LaneMask<T>& exponent) {
    using M = LaneMask<T>;
    using Lane = typename Simd<T>::Lane;
    constexpr int digits = std::numeric_limits<T>::digits - 1;
    constexpr Lane bias = std::numeric_limits<T>::max_exponent - 1;
    constexpr Lane field = (Lane(bias) * 2 + 1) << digits, one = Lane(bias) << digits;
    const auto subnormal = absolute<T>(x) < Simd<T>::fill(std::numeric_limits<T>::min());
    x = subnormal ? x * Simd<T>::fill(T(1ull << 60)) : x;
    const M bits = reinterpret_cast<M>(x);
    exponent += ((bits & field) >> digits) - bias + (subnormal & Lane(-60));
    return reinterpret_cast<Vec<T>>((bits & ~field) | one);
}

// Returns 2^e for exponents of normal numbers.
template <class T>
[[gnu::always_inline]] inline Vec<T> make_power_of_two(LaneMask<T> e) {
    constexpr int digits = std::numeric_limits<T>::digits - 1;
    constexpr typename Simd<T>::Lane bias = std::numeric_limits<T>::max_exponent - 1;
    return reinterpret_cast<Vec<T>>((e + bias) << digits);
}

// Lists in `rows` the rows other than k that some lane may take its pivot from, and returns how many there are. With few rows
// left all are listed: blending them in vain takes less time than finding out.
template <class T>
index_t list_pivot_rows(LaneMask<T> row, index_t k, index_t n, index_t (&rows)[Simd<T>::W > blended_rows ? Simd<T>::W : blended_rows]) {
    index_t found = 0;
    if (n - 1 - k <= blended_rows) {
        for (; found < n - 1 - k; ++found) rows[found] = k + 1 + found;
        return found;
    }
    for (int l = 0; l < Simd<T>::W; ++l) {
        const index_t r = row[l];
        bool known = r == k;
        for (index_t f = 0; f < found; ++f) known |= rows[f] == r;
        if (!known) rows[found++] = r;
    }
    return found;
}

// A := L \ U with P A = L U. A lane whose pivot is zero or not finite continues with pivot 1. Without `with_lower` rows are
// exchanged only from the diagonal on, so that U is right and L is not.
template <class T, bool with_lower>
void eliminate(const LaneView<T>& A, Elimination<T>& found) {
    using S = Simd<T>;
    using M = LaneMask<T>;
    using Lane = typename S::Lane;
    const index_t n = A.rows;
    const Vec<T> one = S::fill(T(1)), largest = S::fill(std::numeric_limits<T>::max());
    found.status = found.odd = found.exponent = M{};
    found.mantissa = one;
    if (with_lower)
        for (index_t i = 0; i < n; ++i) found.origin[i] = M{} + static_cast<Lane>(i);
    for (index_t k = 0; k < n; ++k) {
        Vec<T> best = absolute<T>(A(k, k));
        M row = M{} + static_cast<Lane>(k);
        for (index_t i = k + 1; i < n; ++i) {
            const Vec<T> x = absolute<T>(A(i, k));
            const auto larger = x > best;
            best = larger ? x : best;
            row = larger ? M{} + static_cast<Lane>(i) : row;
        }
        if (with_lower) found.exchanged[k] = row;
        index_t rows[S::W > blended_rows ? S::W : blended_rows];
        const index_t exchanged = list_pivot_rows<T>(row, k, n, rows);
        for (index_t f = 0; f < exchanged; ++f) {
            const index_t i = rows[f];
            const M chosen = row == static_cast<Lane>(i);
            for (index_t j = with_lower ? 0 : k; j < n; ++j) {
                const Vec<T> upper = A(k, j), lower = A(i, j);
                A(k, j) = chosen ? lower : upper;
                A(i, j) = chosen ? upper : lower;
            }
            if (with_lower) {
                const M upper = found.origin[k], lower = found.origin[i];
                found.origin[k] = chosen ? lower : upper;
                found.origin[i] = chosen ? upper : lower;
            }
            found.odd ^= chosen;
        }
        Vec<T> pivot = A(k, k);
        const auto finite = absolute<T>(pivot) <= largest;
        const auto good = finite & (pivot != Vec<T>{});
        const M order = M{} + static_cast<Lane>(k + 1);
        // A NaN is reported even if a zero pivot came before it.
        const auto news = (good == 0) & ((found.status == 0) | ((found.status > 0) & (finite == 0)));
        found.status = news ? (finite ? order : -order) : found.status;
        pivot = good ? pivot : one;
        found.mantissa = split_exponent<T>(found.mantissa * split_exponent<T>(pivot, found.exponent), found.exponent);
        const Vec<T> inverse = one / pivot;
        // The reciprocal of a subnormal pivot overflows.
        const auto safe = absolute<T>(inverse) <= largest;
        bool all_safe = true;
        for (int l = 0; l < S::W; ++l) all_safe &= safe[l] != 0;
        for (index_t i = k + 1; i < n; ++i) {
            const Vec<T> factor = all_safe ? A(i, k) * inverse : A(i, k) / pivot;
            if (with_lower) A(i, k) = factor;
            index_t j = k + 1;
            for (; j + chains <= n; j += chains) {
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) A(i, j + r) -= factor * A(k, j + r);
            }
            for (; j < n; ++j) A(i, j) -= factor * A(k, j);
        }
    }
}

// Splits 2^exponent into two factors that are normal numbers. Exponents are clamped where the product over- or underflows anyway.
template <class T>
[[gnu::always_inline]] inline void split_power(LaneMask<T> exponent, Vec<T>& first, Vec<T>& second) {
    using Lane = typename Simd<T>::Lane;
    constexpr Lane limit = 2 * (std::numeric_limits<T>::max_exponent - 3);
    exponent = exponent > limit ? LaneMask<T>{} + limit : exponent;
    exponent = exponent < -limit ? LaneMask<T>{} - limit : exponent;
    const LaneMask<T> half = exponent >> 1;
    first = make_power_of_two<T>(half);
    second = make_power_of_two<T>(exponent - half);
}

[[gnu::always_inline]] inline double logarithm(double x) { return __builtin_log(x); }
[[gnu::always_inline]] inline float logarithm(float x) { return __builtin_logf(x); }

// first := det A; or, with `second`, first := its sign and second := log |det A|. A singular A gives 0 and minus infinity.
template <class T>
void lane_determinant(Batch<const T> A, T* first, T* second, std::int32_t* status, index_t begin, index_t end,
                      void* scratch) {
    using S = Simd<T>;
    Vec<T>* buffer = lane_buffer<T>(scratch);
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, buffer);
        Elimination<T> found{};
        eliminate<T, false>(lane_view<T>(buffer, A), found);
        const Vec<T> zero{}, one = S::fill(T(1));
        const auto singular = found.status > 0;
        const Vec<T> mantissa = found.odd ? -found.mantissa : found.mantissa;
        Vec<T> value, logs{};
        if (second) {
            value = singular ? zero : (mantissa < zero ? -one : one);
            // The mantissa is moved to [1/sqrt 2, sqrt 2), so that the logarithm of a determinant close to 1 keeps its digits.
            const Vec<T> size = absolute<T>(mantissa);
            const auto large = size > S::fill(T(1.4142135623730951));
            const Vec<T> centred = large ? T(0.5) * size : size;
            const LaneMask<T> exponent = large ? found.exponent + 1 : found.exponent;
            for (int l = 0; l < S::W; ++l)
                logs[l] = logarithm(T(centred[l])) + T(exponent[l]) * T(0.69314718055994530942);
            logs = singular ? S::fill(-std::numeric_limits<T>::infinity()) : logs;
        } else {
            Vec<T> low, high;
            split_power<T>(found.exponent, low, high);
            value = singular ? zero : mantissa * low * high;
        }
        for (index_t l = 0; l < group.filled; ++l) {
            first[group.begin + l] = value[l];
            if (second) second[group.begin + l] = logs[l];
            status[group.begin + l] = static_cast<std::int32_t>(found.status[l]);
        }
    });
}

// X := U^-1 L^-1 X for the factors L (unit lower) and U that F holds.
template <class T>
void substitute_both(const LaneView<T>& F, const LaneView<T>& X) {
    const index_t n = F.rows;
    const Vec<T> one = Simd<T>::fill(T(1));
    const auto row = [&](index_t i, index_t from, index_t to, Vec<T> factor) {
        index_t c = 0;
        for (; c + chains <= X.cols; c += chains) {
            Vec<T> acc[chains];
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) acc[r] = X(i, c + r);
            for (index_t k = from; k < to; ++k) {
                const Vec<T> f = F(i, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] -= f * X(k, c + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) X(i, c + r) = acc[r] * factor;
        }
        for (; c < X.cols; ++c) {
            Vec<T> acc = X(i, c);
            for (index_t k = from; k < to; ++k) acc -= F(i, k) * X(k, c);
            X(i, c) = acc * factor;
        }
    };
    for (index_t i = 1; i < n; ++i) row(i, 0, i, one);
    for (index_t i = n - 1; i >= 0; --i) row(i, i + 1, n, one / F(i, i));
}

// Returns range_scale of each lane's largest entry: a power of two that avoids overflow, 1 for ordinary matrices.
template <class T>
Vec<T> find_range_scales(const Vec<T>* entries, index_t size) {
    using S = Simd<T>;
    Vec<T> largest{};
    for (index_t e = 0; e < size; ++e) largest = absolute<T>(entries[e]) > largest ? absolute<T>(entries[e]) : largest;
    Vec<T> scale{};
    for (int l = 0; l < S::W; ++l) scale[l] = range_scale(T(largest[l]));
    return scale;
}

// B := A^-1; with `weight` (one per item) B := weight A^-1, and with `by_determinant` also times det A. An item whose inverse
// is not finite has status n + 1. A plain inverse that fails is retried once with a scaled A.
template <class T>
void lane_inverse(Batch<const T> A, Batch<T> B, const T* weight, bool by_determinant, std::int32_t* status,
                  index_t begin, index_t end, void* scratch) {
    using S = Simd<T>;
    Vec<T>* factor_buffer = lane_buffer<T>(scratch);
    Vec<T>* result_buffer = factor_buffer + lane_limit * lane_limit;
    const LaneView<T> F = lane_view<T>(factor_buffer, A), X = lane_view<T>(result_buffer, B);
    const index_t n = A.rows, size = n * n;
    for_groups<T>(begin, end, [&](Group<T> group) {
        const Vec<T> one = S::fill(T(1));
        Elimination<T> found;
        const auto invert = [&] {
            eliminate<T, true>(F, found);
            for (index_t i = 0; i < n; ++i) {
                const auto good =
                    (F(i, i) != Vec<T>{}) & (absolute<T>(F(i, i)) <= S::fill(std::numeric_limits<T>::max()));
                F(i, i) = good ? F(i, i) : one;
                for (index_t j = 0; j < n; ++j)
                    X(i, j) = found.origin[i] == static_cast<typename S::Lane>(j) ? one : Vec<T>{};
            }
            substitute_both<T>(F, X);
        };
        const auto mark_overflow = [&](Vec<T> nothing) {
            found.status = (found.status == 0) & (nothing != nothing) ? LaneMask<T>{} + static_cast<typename S::Lane>(n + 1)
                                                                      : found.status;
        };
        gather<T>(A, group, factor_buffer);
        invert();
        if (!weight) {
            Vec<T> nothing{};
            for (index_t e = 0; e < size; ++e) nothing += result_buffer[e] * T(0);  // NaN if an entry is not finite
            mark_overflow(nothing);
            bool failed = false;
            for (index_t l = 0; l < group.filled; ++l) failed |= found.status[l] != 0;
            if (failed) {
                gather<T>(A, group, factor_buffer);
                const Vec<T> scale = find_range_scales<T>(factor_buffer, size);
                for (index_t e = 0; e < size; ++e) factor_buffer[e] *= scale;
                found = Elimination<T>();
                invert();
                nothing = Vec<T>{};
                for (index_t e = 0; e < size; ++e) {
                    result_buffer[e] *= scale;
                    nothing += result_buffer[e] * T(0);
                }
                mark_overflow(nothing);
            }
        } else {
            Vec<T> scale{}, low = one, high = one;
            for (index_t l = 0; l < group.filled; ++l) scale[l] = weight[group.begin + l];
            if (by_determinant) {
                scale *= found.odd ? -found.mantissa : found.mantissa;
                split_power<T>(found.exponent, low, high);
            }
            Vec<T> nothing{};
            for (index_t e = 0; e < size; ++e) {
                nothing += result_buffer[e] * T(0);  // NaN as soon as an entry is infinite or NaN
                result_buffer[e] = result_buffer[e] * low * scale * high;
            }
            if (by_determinant) mark_overflow(nothing);
        }
        scatter<T>(result_buffer, B, group);
        for (index_t l = 0; l < group.filled; ++l) status[group.begin + l] = static_cast<std::int32_t>(found.status[l]);
    });
}

// C := A B, or C := -A B.
template <class T, bool negative>
void multiply_matrices(const LaneView<T>& A, const LaneView<T>& B, const LaneView<T>& C) {
    for (index_t i = 0; i < C.rows; ++i) {
        index_t j = 0;
        for (; j + chains <= C.cols; j += chains) {
            Vec<T> acc[chains] = {};
            for (index_t p = 0; p < A.cols; ++p) {
                const Vec<T> x = A(i, p);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] = negative ? acc[r] - x * B(p, j + r) : acc[r] + x * B(p, j + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) C(i, j + r) = acc[r];
        }
        for (; j < C.cols; ++j) {
            Vec<T> acc{};
            for (index_t p = 0; p < A.cols; ++p) acc = negative ? acc - A(i, p) * B(p, j) : acc + A(i, p) * B(p, j);
            C(i, j) = acc;
        }
    }
}

// gA := -B' gB B'.
template <class T>
void lane_inverse_vjp(Batch<const T> B, Batch<const T> gB, Batch<T> gA, index_t begin, index_t end, void* scratch) {
    Vec<T>* inverse_buffer = lane_buffer<T>(scratch);
    Vec<T>* cotangent_buffer = inverse_buffer + lane_limit * lane_limit;
    Vec<T>* middle_buffer = cotangent_buffer + lane_limit * lane_limit;
    const LaneView<T> inverse = lane_view<T>(inverse_buffer, B).t(), cotangent = lane_view<T>(cotangent_buffer, gB),
                      middle{middle_buffer, B.rows, B.rows, B.rows, 1}, result = lane_view<T>(cotangent_buffer, gA);
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(B, group, inverse_buffer);
        gather<T>(gB, group, cotangent_buffer);
        multiply_matrices<T, false>(inverse, cotangent, middle);
        multiply_matrices<T, true>(middle, inverse, result);
        scatter<T>(cotangent_buffer, gA, group);
    });
}

// X := L^-1 X for a triangle of the factors; `unit`: its diagonal is taken as ones.
template <class T>
void substitute_triangle(const LaneView<T>& L, bool lower, bool unit, const LaneView<T>& X) {
    const index_t n = L.rows;
    for (index_t step = 0; step < n; ++step) {
        const index_t i = lower ? step : n - 1 - step, from = lower ? 0 : i + 1, to = lower ? i : n;
        index_t c = 0;
        for (; c + chains <= X.cols; c += chains) {
            Vec<T> acc[chains];
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) acc[r] = X(i, c + r);
            for (index_t k = from; k < to; ++k) {
                const Vec<T> l = L(i, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] -= l * X(k, c + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) X(i, c + r) = unit ? acc[r] : acc[r] / L(i, i);
        }
        for (; c < X.cols; ++c) {
            Vec<T> acc = X(i, c);
            for (index_t k = from; k < to; ++k) acc -= L(i, k) * X(k, c);
            X(i, c) = unit ? acc : acc / L(i, i);
        }
    }
}

// X := A^-1 X, or A^-T X, from the factors F of a group of items. Row k was exchanged with row pivots[item * (n + 1) + k] (from 1).
template <class T>
void solve_lanes(const LaneView<T>& F, const std::int32_t* pivots, Group<T> group, bool transposed, const LaneView<T>& X) {
    const index_t n = F.rows;
    const auto exchange = [&](index_t k) {
        for (index_t l = 0; l < group.filled; ++l) {
            const index_t other = pivots[(group.begin + l) * (n + 1) + k] - 1;
            if (other == k) continue;
            for (index_t j = 0; j < X.cols; ++j) {
                const T kept = X(k, j)[l];
                X(k, j)[l] = X(other, j)[l];
                X(other, j)[l] = kept;
            }
        }
    };
    if (transposed) {
        substitute_triangle<T>(F.t(), true, false, X);
        substitute_triangle<T>(F.t(), false, true, X);
        for (index_t k = n - 1; k >= 0; --k) exchange(k);
    } else {
        for (index_t k = 0; k < n; ++k) exchange(k);
        substitute_triangle<T>(F, true, true, X);
        substitute_triangle<T>(F, false, false, X);
    }
}

// X := A^-1 B, or A^-T B, from the factors and pivots of gesv.h. With `A.data`, these are computed here, with the status of each item.
template <class T>
void lane_gesv(Batch<const T> A, Batch<const T> B, Batch<T> X, bool transposed, Batch<T> F, std::int32_t* pivots, std::int32_t* status,
               index_t begin, index_t end, void* scratch) {
    Vec<T>* factor_buffer = lane_buffer<T>(scratch);
    Vec<T>* side_buffer = factor_buffer + lane_limit * lane_limit;
    Vec<T>* reordered = side_buffer + lane_limit * lane_limit;
    const index_t n = F.rows;
    const auto scale_numbers = [](Vec<T>* numbers, index_t size, Vec<T> scale) {
        bool is_one = true;
        for (int l = 0; l < Simd<T>::W; ++l) is_one &= scale[l] == T(1);
        for (index_t e = 0; e < size && !is_one; ++e) numbers[e] *= scale;
    };
    for_groups<T>(begin, end, [&](Group<T> group) {
        const Batch<const T> factors = F.readonly();
        const LaneView<T> triangles = lane_view<T>(factor_buffer, A.data ? A : factors);
        if (A.data) {
            gather<T>(A, group, factor_buffer);
            const Vec<T> scale = find_range_scales<T>(factor_buffer, n * n);
            scale_numbers(factor_buffer, n * n, scale);
            Elimination<T> found;
            eliminate<T, true>(triangles, found);
            for (index_t l = 0; l < group.filled; ++l) {
                const index_t item = group.begin + l;
                for (index_t k = 0; k < n; ++k) pivots[item * (n + 1) + k] = static_cast<std::int32_t>(found.exchanged[k][l]) + 1;
                pivots[item * (n + 1) + n] = scale[l] == T(1) ? 0 : __builtin_ilogb(scale[l]);
                status[item] = static_cast<std::int32_t>(found.status[l]);
            }
            scatter<T>(reorder_for<T>(F, A, factor_buffer, reordered), F, group);
        } else {
            gather<T>(factors, group, factor_buffer);
        }
        gather<T>(B, group, side_buffer);
        const index_t size = B.rows * B.cols;
        const Vec<T> scale = find_range_scales<T>(side_buffer, size);
        scale_numbers(side_buffer, size, scale);
        solve_lanes<T>(triangles, pivots, group, transposed, lane_view<T>(side_buffer, B));
        Vec<T> back = Simd<T>::fill(T(1)) / scale;
        for (index_t l = 0; l < group.filled; ++l)
            if (const std::int32_t exponent = pivots[(group.begin + l) * (n + 1) + n]) back[l] = __builtin_scalbn(back[l], exponent);
        scale_numbers(side_buffer, size, back);
        scatter<T>(reorder_for<T>(X, B, side_buffer, reordered), X, group);
    });
}
