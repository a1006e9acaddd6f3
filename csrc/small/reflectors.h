// Householder reflectors of rows, and the leaf of the LQ recursion. Included only by isa_kernels.cpp.
//
// H = I - tau v v' with v = (1, x / (alpha - beta)) takes the row (alpha, x) to (beta, 0), beta = -sign(alpha) |(alpha, x)|:
// LAPACK's sign. A row whose x is zero, or empty, is left alone (tau = 0), as LAPACK does.

template <class T>
struct Reflector {
    T beta, tau;
    T scale;  // v = x * scale
};

// Bounds of a sum of squares that needs no scaling: terms that underflow are negligible, and nothing overflows.
template <class T>
struct SafeSquares {
    static constexpr T smallest = std::numeric_limits<T>::min() /
                                  (std::numeric_limits<T>::epsilon() * std::numeric_limits<T>::epsilon());
    static constexpr T largest = std::numeric_limits<T>::max() / T(4);
};

[[gnu::always_inline]] inline double with_sign_of(double x, double y) { return __builtin_copysign(x, y); }
[[gnu::always_inline]] inline float with_sign_of(float x, float y) { return __builtin_copysignf(x, y); }
[[gnu::always_inline]] inline double magnitude(double x) { return __builtin_fabs(x); }
[[gnu::always_inline]] inline float magnitude(float x) { return __builtin_fabsf(x); }

// Returns the reflector of a row whose entries may be of any size. `row` is (alpha, x), `count` numbers `step` apart. A row of
// numbers whose reciprocals are not normal is scaled in place. A NaN or an infinity in the row is returned in beta.
template <class T>
Reflector<T> make_careful_reflector(T* row, index_t count, index_t step) {
    constexpr T tiny = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon(), huge = T(1) / tiny;
    T largest = 0, nonfinite = 0;
    for (index_t j = 1; j < count; ++j) {
        const T x = magnitude(row[j * step]);
        if (!(x <= std::numeric_limits<T>::max())) nonfinite = x;
        largest = x > largest ? x : largest;
    }
    if (nonfinite != T(0)) return {nonfinite, T(0), T(0)};
    const T pivot = magnitude(row[0]) > largest ? magnitude(row[0]) : largest;
    if (largest == T(0) || !(pivot <= std::numeric_limits<T>::max())) return {row[0], T(0), T(0)};
    const T factor = pivot < tiny ? huge : pivot > huge ? tiny : T(1);
    if (factor != T(1))
        for (index_t j = 0; j < count; ++j) row[j * step] *= factor;
    const T size = pivot * factor, alpha = row[0] / size;
    T sum = alpha * alpha;
    for (index_t j = 1; j < count; ++j) {
        const T x = row[j * step] / size;
        sum += x * x;
    }
    const T beta = -with_sign_of(square_root(sum), alpha);
    return {beta * size / factor, (beta - alpha) / beta, T(1) / (alpha - beta) / size};
}

// Returns the reflector of a contiguous row (alpha, x).
template <class T>
Reflector<T> make_reflector(T* row, index_t count) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    constexpr index_t W = S::W;
    Vec sums[4] = {};
    index_t j = 1;
    for (; j + 4 * W <= count; j += 4 * W)
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const Vec x = S::load(row + j + c * W);
            sums[c] += x * x;
        }
    const Vec total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    T sum = 0;
    for (; j < count; ++j) sum += row[j] * row[j];
    for (index_t l = 0; l < W; ++l) sum += total[l];
    const T alpha = row[0], all = alpha * alpha + sum;
    if (!(sum >= SafeSquares<T>::smallest && all <= SafeSquares<T>::largest)) return make_careful_reflector<T>(row, count, 1);
    const T beta = -with_sign_of(square_root(all), alpha);
    return {beta, (beta - alpha) / beta, T(1) / (alpha - beta)};
}

// x := v = x * scale, and products[r] := rows[r] v for R other rows.
template <class T, int R>
void scale_and_multiply(T* x, T scale, T* const* rows, index_t count, T* products) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    constexpr index_t W = S::W;
    constexpr int chains_each = R >= 4 ? 1 : 2;
    Vec sums[R > 0 ? R : 1][chains_each] = {};
    const Vec factor = S::fill(scale);
    index_t j = 0;
    for (; j + chains_each * W <= count; j += chains_each * W)
#pragma GCC unroll 2
        for (int c = 0; c < chains_each; ++c) {
            const Vec v = S::load(x + j + c * W) * factor;
            S::store(x + j + c * W, v);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c] += S::load(rows[r] + j + c * W) * v;
        }
    T tails[R > 0 ? R : 1] = {};
    for (; j < count; ++j) {
        x[j] *= scale;
        for (int r = 0; r < R; ++r) tails[r] += rows[r][j] * x[j];
    }
    for (int r = 0; r < R; ++r) {
        T sum = tails[r];
        for (int c = 0; c < chains_each; ++c)
            for (index_t l = 0; l < W; ++l) sum += sums[r][c][l];
        products[r] = sum;
    }
}

// rows[r] -= factors[r] v
template <class T, int R>
void subtract_multiples(const T* v, T* const* rows, index_t count, const T* factors) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    constexpr index_t W = S::W;
    Vec f[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) f[r] = S::fill(factors[r]);
    index_t j = 0;
    for (; j + W <= count; j += W) {
        const Vec x = S::load(v + j);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) S::store(rows[r] + j, S::load(rows[r] + j) - f[r] * x);
    }
    for (; j < count; ++j)
        for (int r = 0; r < R; ++r) rows[r][j] -= factors[r] * v[j];
}

template <class T>
using ScaleAndMultiply = void (*)(T*, T, T* const*, index_t, T*);
template <class T>
using SubtractMultiples = void (*)(const T*, T* const*, index_t, const T*);

template <class T, int... R>
constexpr void fill_tables(ScaleAndMultiply<T> (&scale)[lq_leaf], SubtractMultiples<T> (&subtract)[lq_leaf],
                           std::integer_sequence<int, R...>) {
    ((scale[R] = &scale_and_multiply<T, R>), ...);
    ((subtract[R] = R > 0 ? &subtract_multiples<T, (R > 0 ? R : 1)> : nullptr), ...);
}

template <class T>
struct RowKernels {
    ScaleAndMultiply<T> scale[lq_leaf] = {};
    SubtractMultiples<T> subtract[lq_leaf] = {};
    constexpr RowKernels() { fill_tables<T>(scale, subtract, std::make_integer_sequence<int, lq_leaf>{}); }
};

// Factors A = L Q with at most lq_leaf contiguous rows. A becomes Y, the rows v with explicit zeros and ones. `mixed` receives L
// below the diagonal, and T on and above it, with H1 H2 ... = I - Y' T Y; `diagonal` receives the diagonal of L.
template <class T>
void lq_leaf_rows(View<T> A, View<T> mixed, T* diagonal) {
    static constexpr RowKernels<T> kernels{};
    const index_t m = A.rows, n = A.cols;
    for (index_t k = 0; k < m; ++k) {
        T* const row = A.at(k, k);
        const Reflector<T> h = make_reflector<T>(row, n - k);
        diagonal[k] = h.beta;
        mixed(k, k) = h.tau;
        if (h.tau == T(0)) {
            for (index_t i = 0; i < k; ++i) mixed(i, k) = T(0);
            for (index_t j = 1; j < n - k; ++j) row[j] = T(0);
            continue;
        }
        T* others[lq_leaf];
        index_t count = 0;
        for (index_t i = 0; i < m; ++i)
            if (i != k) others[count++] = A.at(i, k + 1);
        T products[lq_leaf];
        kernels.scale[count](row + 1, h.scale, others, n - k - 1, products);
        for (index_t i = 0; i < count; ++i) products[i] += others[i][-1];  // v starts with 1
        for (index_t i = 0; i < k; ++i) {
            T sum = 0;
            for (index_t l = i; l < k; ++l) sum += mixed(i, l) * products[l];
            mixed(i, k) = -h.tau * sum;
        }
        for (index_t i = k; i < count; ++i) {
            products[i] *= h.tau;
            others[i][-1] -= products[i];
        }
        if (count > k) kernels.subtract[count - k](row + 1, others + k, n - k - 1, products + k);
    }
    for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < i; ++j) {
            mixed(i, j) = A(i, j);
            A(i, j) = T(0);
        }
        A(i, i) = T(1);
    }
}
