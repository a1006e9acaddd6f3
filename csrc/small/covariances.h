// Stationary covariance functions s phi(S), S = |f - g|^2, of rows f of F and points g, and their gradients: every number is computed
// from the differences in registers. Included only by isa_kernels.cpp.
//
// Points g are the columns of a matrix (d x m) whose rows are `isa::covariance_columns` numbers apart, or a multiple of that: loads
// may go beyond column m.

// exp(x) of x <= 0, to one unit in the last place: 2^k exp(r) with |r| <= log(2) / 2, by the Taylor polynomial. Where the result would
// be less than the smallest normal number, it is 0. NaN stays NaN.
template <class T>
[[gnu::always_inline]] inline Vec<T> take_exponentials(Vec<T> x) {
    using S = Simd<T>;
    using Mask = typename S::Mask;
    constexpr bool is_double = sizeof(T) == 8;
    constexpr int terms = is_double ? 14 : 8, fraction = is_double ? 52 : 23, bias = is_double ? 1023 : 127;
    // Adding this rounds to an integer, which is then found in the last bits.
    constexpr T shift = is_double ? T(6755399441055744.0) : T(12582912.0);
    constexpr T least = is_double ? T(-708.0) : T(-87.0);
    constexpr T high = is_double ? T(6.93147180369123816490e-01) : T(0.693359375);
    constexpr T low = is_double ? T(1.90821492927058770002e-10) : T(-2.12194440e-4);
    const Vec<T> bounded = x < S::fill(least) ? S::fill(least) : x;
    const Vec<T> shifted = bounded * S::fill(T(1.44269504088896340736)) + S::fill(shift);
    const Vec<T> k = shifted - S::fill(shift);
    const Vec<T> r = (bounded - k * S::fill(high)) - k * S::fill(low);
    T factor[terms] = {T(1)};
    for (int i = 1; i < terms; ++i) factor[i] = factor[i - 1] / T(i);
    Vec<T> sum = S::fill(factor[terms - 1]);
#pragma GCC unroll 16
    for (int i = terms - 2; i >= 0; --i) sum = sum * r + S::fill(factor[i]);
    const Mask exponent = ((Mask)shifted + bias) << fraction;
    const Vec<T> result = sum * (Vec<T>)exponent;
    return x < S::fill(least) ? Vec<T>{} : result;
}

// Returns squared distances of at most 10^6, where exp(-r) is 0 in float32 and float64: an infinite one times that 0 would be NaN.
// NaN stays NaN.
template <class T>
[[gnu::always_inline]] inline Vec<T> limit_distances(Vec<T> S) {
    const Vec<T> most = Simd<T>::fill(T(1e6));
    return S > most ? most : S;
}

template <class T, Profile profile>
[[gnu::always_inline]] inline void evaluate_profile(Vec<T> S, Vec<T>& phi, Vec<T>& slope) {
    const auto fill = [](double x) { return Simd<T>::fill(T(x)); };
    if constexpr (profile == Profile::rbf) {
        phi = take_exponentials<T>(fill(-0.5) * S);
        slope = fill(-0.5) * phi;
    } else if constexpr (profile == Profile::matern12) {
        // The slope at 0 counts as 0, so that points that coincide have a finite gradient.
        const Vec<T> r = take_square_roots<T>(S);
        phi = take_exponentials<T>(-r);
        slope = S > Vec<T>{} ? fill(-0.5) * phi / r : Vec<T>{};
    } else if constexpr (profile == Profile::matern32) {
        const Vec<T> t = take_square_roots<T>(fill(3.0) * limit_distances<T>(S)), e = take_exponentials<T>(-t);
        phi = (fill(1.0) + t) * e;
        slope = fill(-1.5) * e;
    } else {
        const Vec<T> near = limit_distances<T>(S);
        const Vec<T> t = take_square_roots<T>(fill(5.0) * near), e = take_exponentials<T>(-t);
        phi = (fill(1.0) + t + fill(5.0 / 3.0) * near) * e;
        slope = fill(-5.0 / 6.0) * (fill(1.0) + t) * e;
    }
}

template <class T>
[[gnu::always_inline]] inline void sum_squared_differences(const T* f, const T* G, index_t ld, index_t d,
                                                           Vec<T> (&S)[isa::covariance_vectors]) {
    for (auto& s : S) s = Vec<T>{};
    for (index_t k = 0; k < d; ++k) {
        const Vec<T> here = Simd<T>::fill(f[k]);
#pragma GCC unroll 4
        for (int u = 0; u < isa::covariance_vectors; ++u) {
            const Vec<T> difference = here - Simd<T>::load(G + k * ld + u * Simd<T>::W);
            S[u] += difference * difference;
        }
    }
}

template <class T, Profile profile>
void fill_covariances(T variance, View<const T> F, const T* G, index_t ld, View<T> K) {
    using S = Simd<T>;
    constexpr index_t W = S::W, step = isa::covariance_vectors * W;
    static_assert(isa::covariance_columns % step == 0);
    for (index_t i = 0; i < K.rows; ++i) {
        for (index_t j = 0; j < K.cols; j += step) {
            Vec<T> square[isa::covariance_vectors], slope;
            sum_squared_differences<T>(F.at(i, 0), G + j, ld, F.cols, square);
            T last[step];
            T* const target = j + step <= K.cols ? K.at(i, j) : last;
#pragma GCC unroll 4
            for (int u = 0; u < isa::covariance_vectors; ++u) {
                Vec<T> phi;
                evaluate_profile<T, profile>(square[u], phi, slope);
                S::store(target + u * W, S::fill(variance) * phi);
            }
            if (target == last)
                for (index_t c = j; c < K.cols; ++c) K(i, c) = last[c - j];
        }
    }
}

// Adds the gradients of <C, K> for the rows of F and, negated, for the points to of_F and of_G. Returns that for the variance.
// `sums` holds d vectors.
template <class T, Profile profile>
double pull_covariances_back(T variance, View<const T> F, const T* G, index_t ld, View<const T> C, View<T> of_F, T* of_G, T* sums) {
    using S = Simd<T>;
    constexpr index_t W = S::W, step = isa::covariance_vectors * W;
    double total = 0;
    const index_t d = F.cols;
    for (index_t i = 0; i < C.rows; ++i) {
        Vec<T> of_variance{};
        for (index_t k = 0; k < d; ++k) S::store(sums + k * W, Vec<T>{});
        for (index_t j = 0; j < C.cols; j += step) {
            Vec<T> square[isa::covariance_vectors], weight[isa::covariance_vectors];
            sum_squared_differences<T>(F.at(i, 0), G + j, ld, d, square);
            T last[step] = {};
            const T* source = C.at(i, j);
            if (j + step > C.cols) {
                for (index_t c = j; c < C.cols; ++c) last[c - j] = C(i, c);
                source = last;
            }
#pragma GCC unroll 4
            for (int u = 0; u < isa::covariance_vectors; ++u) {
                Vec<T> phi, slope;
                evaluate_profile<T, profile>(square[u], phi, slope);
                const Vec<T> c = S::load(source + u * W);
                of_variance += c * phi;
                weight[u] = S::fill(T(2) * variance) * c * slope;
            }
            for (index_t k = 0; k < d; ++k) {
                const Vec<T> here = S::fill(F(i, k));
                Vec<T> sum = S::load(sums + k * W);
#pragma GCC unroll 4
                for (int u = 0; u < isa::covariance_vectors; ++u) {
                    const index_t at = k * ld + j + u * W;
                    const Vec<T> part = weight[u] * (here - S::load(G + at));
                    sum += part;
                    S::store(of_G + at, S::load(of_G + at) + part);
                }
                S::store(sums + k * W, sum);
            }
        }
        for (index_t k = 0; k < d; ++k)
            for (index_t l = 0; l < W; ++l) of_F(i, k) += sums[k * W + l];
        for (int l = 0; l < W; ++l) total += double(of_variance[l]);
    }
    return total;
}

template <class T>
void covariances(Profile profile, T variance, View<const T> F, const T* G, index_t ld, View<T> K) {
    switch (profile) {
        case Profile::rbf: return fill_covariances<T, Profile::rbf>(variance, F, G, ld, K);
        case Profile::matern12: return fill_covariances<T, Profile::matern12>(variance, F, G, ld, K);
        case Profile::matern32: return fill_covariances<T, Profile::matern32>(variance, F, G, ld, K);
        case Profile::matern52: return fill_covariances<T, Profile::matern52>(variance, F, G, ld, K);
    }
}

template <class T>
double covariances_reverse(Profile profile, T variance, View<const T> F, const T* G, index_t ld, View<const T> C, View<T> of_F,
                           T* of_G, T* sums) {
    switch (profile) {
        case Profile::rbf: return pull_covariances_back<T, Profile::rbf>(variance, F, G, ld, C, of_F, of_G, sums);
        case Profile::matern12: return pull_covariances_back<T, Profile::matern12>(variance, F, G, ld, C, of_F, of_G, sums);
        case Profile::matern32: return pull_covariances_back<T, Profile::matern32>(variance, F, G, ld, C, of_F, of_G, sums);
        case Profile::matern52: return pull_covariances_back<T, Profile::matern52>(variance, F, G, ld, C, of_F, of_G, sums);
    }
    return 0;
}
