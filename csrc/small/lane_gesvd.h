// Singular value decompositions of small matrices, one per lane, and their gradient. Included only by isa_kernels.cpp.
//
// One-sided Jacobi: rotations of pairs of rows of W = J A make all rows orthogonal. Then their lengths are the singular
// values, W with rows of length 1 holds the right vectors and J the left ones. Small singular values come out with small
// relative errors, as far as A determines them.

// Exponents of the scaling: the largest entry is scaled to just below 2^top, so that squares do not overflow, and squares of
// entries down to 2^(-2 top) of the largest keep their digits. A row whose square is below 2^-bottom counts as zero.
template <class T>
constexpr int top = sizeof(T) == 8 ? 500 : 58;
template <class T>
constexpr int bottom = sizeof(T) == 8 ? 960 : 100;

template <class T>
T make_power_of_two(int exponent) {
    return static_cast<T>(__builtin_ldexp(1.0, exponent));
}

// Scales W lane by lane and returns the factors that undo it. A lane with a NaN or an infinity is set to zero, with its status.
template <class T>
Vec<T> scale_lanes(const LaneView<T>& W, std::int32_t* status) {
    Vec<T> largest{}, nothing{};
    for (index_t i = 0; i < W.rows; ++i)
        for (index_t r = 0; r < W.cols; ++r) {
            const Vec<T> x = absolute<T>(W(i, r));
            largest = x > largest ? x : largest;
            nothing += x * T(0);  // NaN for an infinity, too
        }
    Vec<T> factor, back;
    for (int l = 0; l < Simd<T>::W; ++l) {
        int exponent = 0;
        const bool finite = nothing[l] == T(0);
        if (finite && largest[l] > T(0)) __builtin_frexp(static_cast<double>(largest[l]), &exponent);
        int shift = top<T> - exponent;
        constexpr int limit = sizeof(T) == 8 ? 1000 : 120;  // for subnormal numbers
        shift = shift > limit ? limit : shift;
        factor[l] = finite ? make_power_of_two<T>(shift) : T(0);
        back[l] = make_power_of_two<T>(-shift);
        status[l] = finite ? svd_done : svd_not_finite;
    }
    const auto keep = nothing == Vec<T>{};
    for (index_t i = 0; i < W.rows; ++i)
        for (index_t r = 0; r < W.cols; ++r) W(i, r) = keep ? W(i, r) * factor : Vec<T>{};
    return back;
}

// Rows p and q of W, called x and y, become a x + b y and c x + d y.
template <class T>
[[gnu::always_inline]] inline void combine_rows(const LaneView<T>& W, index_t p, index_t q, Vec<T> a, Vec<T> b, Vec<T> c,
                                                Vec<T> d) {
    for (index_t r = 0; r < W.cols; ++r) {
        const Vec<T> x = W(p, r), y = W(q, r);
        W(p, r) = a * x + b * y;
        W(q, r) = c * x + d * y;
    }
}

// Rotates rows p < q of W (and of J, if there is one) so that they are orthogonal and the longer one is row p. Returns
// whether the rows of some lane were not orthogonal, or not in order, before.
template <class T>
[[gnu::always_inline]] inline bool rotate_rows(const LaneView<T>& W, const LaneView<T>* J, index_t p, index_t q,
                                               T tolerance) {
    using S = Simd<T>;
    const Vec<T> one = S::fill(T(1));
    Vec<T> xx{}, yy{}, xy{};
    for (index_t r = 0; r < W.cols; ++r) {
        const Vec<T> x = W(p, r), y = W(q, r);
        xx += x * x;
        yy += y * y;
        xy += x * y;
    }
    const Vec<T> allowed = S::fill(tolerance) * take_square_roots<T>(xx) * take_square_roots<T>(yy);
    const auto oblique = absolute<T>(xy) > allowed;
    if (!any_lane<T>(oblique | (yy > xx))) return false;
    // The smaller root t of t^2 + 2 z t - 1 = 0, z = (yy - xx) / (2 xy), is the tangent of the angle.
    const Vec<T> z = (yy - xx) / (oblique ? xy + xy : one);
    const Vec<T> size = absolute<T>(z);
    const Vec<T> huge = S::fill(make_power_of_two<T>(top<T>));
    const Vec<T> bounded = size < huge ? size : huge;
    const Vec<T> root = size < huge ? take_square_roots<T>(one + bounded * bounded) : size;
    Vec<T> t = one / (size + root);
    t = z < Vec<T>{} ? -t : t;
    t = oblique ? t : Vec<T>{};
    const Vec<T> cosine = one / take_square_roots<T>(one + t * t), sine = t * cosine;
    const Vec<T> moved = oblique ? t * xy : Vec<T>{};
    const auto swap = yy + moved > xx - moved;
    const Vec<T> a = swap ? sine : cosine, b = swap ? cosine : -sine;
    combine_rows<T>(W, p, q, a, b, -b, a);
    if (J) combine_rows<T>(*J, p, q, a, b, -b, a);
    return true;
}

// Returns the sign of row i's leading entry: the first whose size is within 1e-6 of the largest.
template <class T>
Vec<T> find_leading_sign(const LaneView<T>& U, index_t i) {
    Vec<T> largest{};
    for (index_t r = 0; r < U.cols; ++r) {
        const Vec<T> x = absolute<T>(U(i, r));
        largest = x > largest ? x : largest;
    }
    largest *= T(svd_same_size);
    Vec<T> lead{};
    for (index_t r = U.cols - 1; r >= 0; --r) {
        const Vec<T> x = U(i, r);
        lead = absolute<T>(x) >= largest ? x : lead;
    }
    return lead < Vec<T>{} ? Simd<T>::fill(T(-1)) : Simd<T>::fill(T(1));
}

// S, and U and V unless their data is null, of items [begin, end); status per item as in gesvd_types.h. In the longer of U
// and V, rows that belong to zero singular values are left as zeros; the status is then svd_incomplete.
template <class T>
void lane_gesvd(Batch<const T> A, Batch<T> U, Batch<T> S, Batch<T> V, std::int32_t* status, index_t begin, index_t end,
                void* scratch) {
    const bool tall = A.rows > A.cols;
    const Batch<const T> wide = tall ? A.t() : A;
    const index_t k = wide.rows, n = wide.cols;
    const bool vectors = U.data != nullptr;
    Vec<T>* buffer = lane_buffer<T>(scratch);
    const LaneView<T> W = lane_view<T>(buffer, wide);
    const LaneView<T> J{buffer + k * n, k, k, k, 1}, unit{buffer + k * n + k * k, k, n, n, 1};
    Vec<T>* values = unit.data + k * n;
    const T tolerance = std::numeric_limits<T>::epsilon() * (T(2) + static_cast<T>(__builtin_sqrt(double(n))));
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, buffer);
        std::int32_t found[Simd<T>::W];
        const Vec<T> back = scale_lanes<T>(W, found);
        if (vectors)
            for (index_t i = 0; i < k; ++i)
                for (index_t j = 0; j < k; ++j) J(i, j) = Simd<T>::fill(T(i == j));
        bool working = true;
        for (int sweep = 0; working && sweep < 40; ++sweep) {
            working = false;
            for (index_t p = 0; p < k; ++p)
                for (index_t q = p + 1; q < k; ++q) working |= rotate_rows<T>(W, vectors ? &J : nullptr, p, q, tolerance);
        }
        const Vec<T> least = Simd<T>::fill(make_power_of_two<T>(-bottom<T>));
        for (index_t i = 0; i < k; ++i) {
            Vec<T> square{};
            for (index_t r = 0; r < n; ++r) square += W(i, r) * W(i, r);
            const auto zero = square < least;
            const Vec<T> length = zero ? Vec<T>{} : take_square_roots<T>(square);
            values[i] = length * back;
            if (!vectors) continue;
            if (any_lane<T>(zero))
                for (int l = 0; l < Simd<T>::W; ++l)
                    if (zero[l] && found[l] == svd_done) found[l] = svd_incomplete;
            const Vec<T> inverse = zero ? Vec<T>{} : Simd<T>::fill(T(1)) / length;
            for (index_t r = 0; r < n; ++r) unit(i, r) = W(i, r) * inverse;
            const Vec<T> sign = find_leading_sign<T>(tall ? unit : J, i);
            for (index_t r = 0; r < n; ++r) unit(i, r) *= sign;
            for (index_t j = 0; j < k; ++j) J(i, j) *= sign;
        }
        scatter<T>(values, S, group);
        if (vectors) {
            scatter<T>(unit.data, tall ? U : V, group);
            scatter<T>(J.data, tall ? V : U, group);
        }
        for (index_t l = 0; l < group.filled; ++l)
            status[group.begin + l] = working && found[l] != svd_not_finite ? svd_not_converged : found[l];
    });
}

// C := A B', row by row.
template <class T>
void multiply_transposed(const LaneView<T>& A, const LaneView<T>& B, const LaneView<T>& C) {
    for (index_t i = 0; i < C.rows; ++i)
        for (index_t j = 0; j < C.cols; ++j) {
            Vec<T> even{}, odd{};
            index_t r = 0;
            for (; r + 2 <= A.cols; r += 2) {
                even += A(i, r) * B(j, r);
                odd += A(i, r + 1) * B(j, r + 1);
            }
            if (r < A.cols) even += A(i, r) * B(j, r);
            C(i, j) = even + odd;
        }
}

// C := A B (+ C), four columns at a time.
template <class T>
void multiply_plain(const LaneView<T>& A, const LaneView<T>& B, bool accumulate, const LaneView<T>& C) {
    for (index_t i = 0; i < C.rows; ++i)
        for (index_t j = 0; j < C.cols; j += chains) {
            const index_t width = C.cols - j < chains ? C.cols - j : chains;
            Vec<T> acc[chains] = {};
            if (accumulate)
                for (index_t c = 0; c < width; ++c) acc[c] = C(i, j + c);
            if (width == chains)
                for (index_t p = 0; p < A.cols; ++p) {
                    const Vec<T> x = A(i, p);
#pragma GCC unroll 4
                    for (int c = 0; c < chains; ++c) acc[c] += x * B(p, j + c);
                }
            else
                for (index_t p = 0; p < A.cols; ++p)
                    for (index_t c = 0; c < width; ++c) acc[c] += A(i, p) * B(p, j + c);
            for (index_t c = 0; c < width; ++c) C(i, j + c) = acc[c];
        }
}

// largest := the larger of itself and the absolute values of the entries of X, lane by lane.
template <class T>
void update_largest_entry(const LaneView<T>& X, Vec<T>& largest) {
    for (index_t i = 0; i < X.rows; ++i)
        for (index_t j = 0; j < X.cols; ++j) {
            const Vec<T> x = absolute<T>(X(i, j));
            largest = x > largest ? x : largest;
        }
}

// The gradient of gesvd.h with U.cols <= V.cols, for one group of items at a time. Cotangents may be null. The rules are those of
// gesvd_vjp.h.
template <class T>
class LaneSvdGradient {
    using M = typename Simd<T>::Mask;

  public:
    LaneSvdGradient(const SvdGradient<T>& gradient, void* scratch)
        : g(gradient), wide(g.U.cols < g.V.cols && g.gV.data), next(lane_buffer<T>(scratch)), U(take(g.U)), V(take(g.V)), S(take(g.S)),
          gS(take(g.gS)), gU(take(g.gU)), gV(take(g.gV)), G{next, k, k, k, 1}, Y{next + k * k, k, k, k, 1},
          inner{next + 2 * k * k, k, n, n, 1}, gA(lane_view<T>(inner.data + k * n, g.gA)) {}

    void compute(Group<T> group) {
        gather_operands(group);
        measure_spectrum();
        measure_rows();
        ambiguous = M{};
        for (index_t i = 0; i < k; ++i) {
            for (index_t j = i + 1; j < k; ++j) combine_pair(i, j);
            G(i, i) = g.gS.data ? gS(0, i) : zero;
            if (!wide) continue;
            G(i, i) -= inverse[i] * Y(i, i);
            for (index_t c = 0; c < n; ++c) inner(i, c) = inverse[i] * gV(i, c);
        }
        if (wide && g.policy != Degeneracy::nan && any_lane<T>(S(0, k - 1) <= small)) mark_outside_of_rows();
        multiply_plain<T>(G, V, wide, inner);
        multiply_plain<T>(U.t(), inner, false, gA);
        scatter<T>(gA.data, g.gA, group);
        for (index_t l = 0; l < group.filled; ++l)
            if (ambiguous[l]) g.ambiguous[group.begin + l] = 1;
    }

  private:
    LaneView<T> take(const Batch<const T>& like) {
        const LaneView<T> view = lane_view<T>(next, like);
        next += like.rows * like.cols;
        return view;
    }

    void gather_operands(Group<T> group) {
        gather<T>(g.U, group, U.data);
        gather<T>(g.V, group, V.data);
        gather<T>(g.S, group, S.data);
        if (g.gU.data) {
            gather<T>(g.gU, group, gU.data);
            multiply_transposed<T>(gU, U, G);
        }
        if (g.gV.data) {
            gather<T>(g.gV, group, gV.data);
            multiply_transposed<T>(gV, V, Y);
        }
        if (g.gS.data) gather<T>(g.gS, group, gS.data);
    }

    void measure_spectrum() {
        const Vec<T> tiny = Simd<T>::fill(std::numeric_limits<T>::min());
        largest = S(0, 0);
        small = (largest == zero ? one : largest) * g.tol;
        small = small > tiny ? small : tiny;
        close = largest * close_gap<T>;
        M some = S(0, k - 1) < close;
        for (index_t i = 1; i < k; ++i) some |= S(0, i - 1) - S(0, i) < close;
        discards = g.policy == Degeneracy::mask && any_lane<T>(some);
        has_thresholds = false;
    }

    // Returns 1 / s by the policy.
    Vec<T> invert(Vec<T> s) const {
        switch (g.policy) {
            case Degeneracy::lorentz: {
                const Vec<T> unit = largest > small ? largest : small, t = s / unit, e = small / unit;
                return t / (t * t + e * e) / unit;
            }
            case Degeneracy::clamp: return one / (s > small ? s : small);
            case Degeneracy::nan: return one / s;
            default: return s > small ? one / (s > small ? s : one) : zero;
        }
    }

    // Fills `noise` and `inverse`: what RowData of gesvd_vjp.h says.
    void measure_rows() {
        for (index_t i = 0; i < k; ++i) {
            inverse[i] = wide ? invert(S(0, i)) : zero;
            noise[i] = zero;
            if (!discards) continue;
            Vec<T> noise_v{};
            if (g.gU.data) update_largest_entry<T>(gU.block(i, 0, 1, U.cols), noise[i]);
            if (g.gV.data) update_largest_entry<T>(gV.block(i, 0, 1, n), noise_v);
            noise_v *= rounding_units<T>(double(n));
            noise[i] = noise[i] * rounding_units<T>(double(U.cols)) + noise_v;
            if (!wide) continue;
            M inside = is_only_rounding<Vec<T>>(zero, noise_v, S(0, i), close, g.gS.data ? gS(0, i) : zero);
            for (index_t c = 0; c < n && any_lane<T>(inside); ++c) inside &= absolute<T>(find_outside(i, c)) < noise_v;
            inverse[i] = inside ? zero : inverse[i];
        }
    }

    // Returns entry c of row i of gV - Y V, the part of gV out of the space of V.
    Vec<T> find_outside(index_t i, index_t c) const {
        Vec<T> rest = gV(i, c);
        for (index_t j = 0; j < k; ++j) rest -= Y(i, j) * V(j, c);
        return rest;
    }

    // G(i, j) and G(j, i) := what U' G V needs there.
    void combine_pair(index_t i, index_t j) {
        const Vec<T> si = S(0, i), sj = S(0, j), gap = si - sj, total = si + sj;
        const M null = si <= small, tie = gap <= small;
        const Vec<T> left = g.gU.data ? G(i, j) - G(j, i) : zero, right = g.gV.data ? Y(i, j) - Y(j, i) : zero;
        Vec<T> F, rest;
        if (g.policy == Degeneracy::nan) {
            F = one / gap;
            rest = zero;
        } else if (g.policy == Degeneracy::mask) {
            F = tie ? zero : one / (tie ? one : gap);
            rest = tie ? half : zero;
        } else {
            F = invert(gap);
            rest = half * (one - F * gap);
        }
        const M open = g.policy == Degeneracy::nan ? M{} : null;
        const Vec<T> scale = open ? zero : one / (open ? one : total);
        const Vec<T> above = (F * sj - rest) * scale, below = -(F * si + rest) * scale;
        Vec<T> upper = left * above - right * below, lower = right * above - left * below;
        if (discards) {
            // The same rule as in combine_pair of gesvd_vjp.h.
            const Vec<T> both = noise[i] + noise[j], step = g.gS.data ? gS(0, i) - gS(0, j) : zero;
            const Vec<T> opposite = g.gS.data ? gS(0, i) + gS(0, j) : zero;
            const M unturned = tie | is_only_rounding<Vec<T>>(left + right, both, gap, close, step);
            const M unparted = is_only_rounding<Vec<T>>(left - right, both, total, close, opposite);
            const Vec<T> turning = unturned ? zero : half * (left + right) * F;
            const Vec<T> parting = unparted ? zero : half * (left - right) * scale;
            const M split = (unturned | unparted) & ~null;
            upper = split ? turning - parting : upper;
            lower = split ? turning + parting : lower;
        }
        if (g.policy != Degeneracy::nan && any_lane<T>(tie)) mark_tie(i, j, tie, null, left, right);
        if (wide) {
            upper -= inverse[i] * Y(i, j);
            lower -= inverse[j] * Y(j, i);
        }
        G(i, j) = upper;
        G(j, i) = lower;
    }

    // Marks the items whose loss depends on how the vectors of the equal values i and j are rotated. `null`: both are zero.
    void mark_tie(index_t i, index_t j, M tie, M null, Vec<T> left, Vec<T> right) {
        measure_cotangents();
        M turned = absolute<T>(left + right) > size;
        if (any_lane<T>(tie & null)) {
            M one_side{};
            if (g.gU.data) one_side |= absolute<T>(left) > find_threshold(gU, i, j);
            if (g.gV.data) one_side |= absolute<T>(right) > find_threshold(gV, i, j);
            turned = null ? one_side : turned;
        }
        ambiguous |= tie & turned;
        if (g.gS.data) ambiguous |= tie & (absolute<T>(gS(0, i) - gS(0, j)) > size_of_values);
    }

    // Marks the items whose loss depends on vectors of zeros out of the space of V.
    void mark_outside_of_rows() {
        measure_cotangents();
        for (index_t i = 0; i < k; ++i) {
            const Vec<T> least = find_threshold(gV, i, i);
            for (index_t c = 0; c < n; ++c) ambiguous |= (S(0, i) <= small) & (absolute<T>(find_outside(i, c)) > least);
        }
    }

    // Sets the thresholds that CotangentThresholds of gesvd_vjp.h describes, when the first tie is met.
    void measure_cotangents() {
        if (has_thresholds) return;
        has_thresholds = true;
        size = size_of_values = zero;
        if (g.gU.data) update_largest_entry<T>(gU, size);
        if (g.gV.data) update_largest_entry<T>(gV, size);
        if (g.gS.data) update_largest_entry<T>(gS, size_of_values);
        size *= root_eps;
        size_of_values *= root_eps;
        slope = largest > zero ? size / (largest > zero ? largest : one) : zero;
        slope = slope > size_of_values ? slope : size_of_values;
    }

    // Returns the threshold for rows i and j of gU or gV, which belong to zeros.
    Vec<T> find_threshold(const LaneView<T>& cotangent, index_t i, index_t j) const {
        Vec<T> most{};
        for (const index_t row : {i, j}) update_largest_entry<T>(cotangent.block(row, 0, 1, cotangent.cols), most);
        most *= root_eps;
        const Vec<T> least = most > S(0, i) * slope ? most : S(0, i) * slope;
        return least < size ? least : size;
    }

    const Vec<T> zero{}, half = Simd<T>::fill(T(0.5)), one = Simd<T>::fill(T(1));
    const T root_eps = static_cast<T>(__builtin_sqrt(double(std::numeric_limits<T>::epsilon())));
    const SvdGradient<T>& g;
    const index_t k = g.U.rows, n = g.V.cols;
    const bool wide;
    Vec<T>* next;  // free memory
    const LaneView<T> U, V, S, gS, gU, gV, G, Y, inner, gA;
    // Of the present group:
    Vec<T> largest, small, close, size, size_of_values, slope;
    bool discards, has_thresholds;
    M ambiguous;
    Vec<T> noise[lane_limit], inverse[lane_limit];
};

// The gradients of items [begin, end). g.ambiguous is set to 1 where gesvd_types.h says so, and never cleared.
template <class T>
void lane_gesvd_vjp(const SvdGradient<T>& g, index_t begin, index_t end, void* scratch) {
    LaneSvdGradient<T> gradient(g, scratch);
    for_groups<T>(begin, end, [&](Group<T> group) { gradient.compute(group); });
}
