// Batches of full products and of sums of logarithms. Included only by isa_kernels.cpp.

// d := factor a b + c, where c is a function of the place in d. Two rows and `chains` columns at a time: each number that is
// loaded is used several times.
template <class T, class Start>
[[gnu::always_inline]] inline void multiply_lanes(const LaneView<T>& a, const LaneView<T>& b, Vec<T> factor, const LaneView<T>& d,
                                                  Start start) {
    const index_t m = d.rows, n = d.cols, k = a.cols;
    constexpr index_t rows = 2;
    index_t i = 0;
    for (; i + rows <= m; i += rows) {
        index_t j = 0;
        for (; j + chains <= n; j += chains) {
            Vec<T> acc[rows][chains] = {};
            for (index_t p = 0; p < k; ++p) {
                const Vec<T> x = a(i, p), y = a(i + 1, p);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) {
                    const Vec<T> z = b(p, j + r);
                    acc[0][r] += x * z;
                    acc[1][r] += y * z;
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) {
                d(i, j + r) = start(i, j + r) + factor * acc[0][r];
                d(i + 1, j + r) = start(i + 1, j + r) + factor * acc[1][r];
            }
        }
        for (; j < n; ++j) {
            Vec<T> acc[rows] = {};
            for (index_t p = 0; p < k; ++p) {
                const Vec<T> z = b(p, j);
                acc[0] += a(i, p) * z;
                acc[1] += a(i + 1, p) * z;
            }
            d(i, j) = start(i, j) + factor * acc[0];
            d(i + 1, j) = start(i + 1, j) + factor * acc[1];
        }
    }
    for (; i < m; ++i) {
        index_t j = 0;
        for (; j + chains <= n; j += chains) {
            Vec<T> acc[chains] = {};
            for (index_t p = 0; p < k; ++p) {
                const Vec<T> x = a(i, p);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] += x * b(p, j + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) d(i, j + r) = start(i, j + r) + factor * acc[r];
        }
        for (; j < n; ++j) {
            Vec<T> acc{};
            for (index_t p = 0; p < k; ++p) acc += a(i, p) * b(p, j);
            d(i, j) = start(i, j) + factor * acc;
        }
    }
}

// D := alpha A B + beta C for matrices of at most lane_product_elements numbers; with `symmetrise` A + A' takes the place of A.
// C is not read where beta is 0.
template <class T>
void lane_gemm(T alpha, Batch<const T> A, bool symmetrise, Batch<const T> B, T beta, Batch<const T> C, Batch<T> D, index_t begin,
               index_t end, void* scratch) {
    Vec<T>* a_buffer = lane_buffer<T>(scratch);
    Vec<T>* b_buffer = a_buffer + lane_product_elements;
    Vec<T>* c_buffer = b_buffer + lane_product_elements;
    Vec<T>* d_buffer = c_buffer + lane_product_elements;
    const LaneView<T> a = lane_view<T>(a_buffer, A), b = lane_view<T>(b_buffer, B), c = lane_view<T>(c_buffer, C),
                      d = lane_view<T>(d_buffer, D);
    const Vec<T> factor = Simd<T>::fill(alpha), share = Simd<T>::fill(beta);
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, a_buffer);
        gather<T>(B, group, b_buffer);
        if (symmetrise)
            for (index_t i = 0; i < A.rows; ++i)
                for (index_t j = 0; j <= i; ++j) a(i, j) = a(j, i) = a(i, j) + a(j, i);
        if (beta != T(0)) {
            gather<T>(C, group, c_buffer);
            multiply_lanes<T>(a, b, factor, d, [&](index_t i, index_t j) { return share * c(i, j); });
        } else {
            multiply_lanes<T>(a, b, factor, d, [](index_t, index_t) { return Vec<T>{}; });
        }
        scatter<T>(d_buffer, D, group);
    });
}

// log x of positive normal numbers, x = 2^e m with m between 1/sqrt(2) and sqrt(2): e log 2 + 2 artanh(s), s = (m - 1) / (m + 1). The
// first term of the series of artanh that is left out is below 2^-55.
[[gnu::always_inline]] inline Vec<double> take_logarithms(Vec<double> x) {
    using Bits = LaneMask<double>;
    constexpr std::int64_t mantissa_bits = 0x000fffffffffffff, one_bits = 0x3ff0000000000000;
    const Bits bits = reinterpret_cast<Bits>(x);
    const Vec<double> mantissa = reinterpret_cast<Vec<double>>((bits & mantissa_bits) | one_bits);
    const Bits large = mantissa > 1.41421356237309504880;
    const Vec<double> m = large ? 0.5 * mantissa : mantissa;
    const Vec<double> exponent = __builtin_convertvector((bits >> 52) - 1023 - large, Vec<double>);  // a true comparison is -1
    const Vec<double> s = (m - 1.0) / (m + 1.0), z = s * s;
    Vec<double> series = Simd<double>::fill(1.0 / 21);
    for (int k = 19; k > 1; k -= 2) series = series * z + 1.0 / k;
    return exponent * 0.69314718055994530942 + (2.0 * s + 2.0 * s * z * series);
}

// The same for float32: the series ends below 2^-27, and log 2 is in two parts, of which the product of the first with an exponent is exact.
[[gnu::always_inline]] inline Vec<float> take_logarithms(Vec<float> x) {
    using Bits = LaneMask<float>;
    const Bits bits = reinterpret_cast<Bits>(x);
    const Vec<float> mantissa = reinterpret_cast<Vec<float>>((bits & 0x007fffff) | 0x3f800000);
    const Bits large = mantissa > 1.41421356f;
    const Vec<float> m = large ? 0.5f * mantissa : mantissa;
    const Vec<float> exponent = __builtin_convertvector((bits >> 23) - 127 - large, Vec<float>);  // a true comparison is -1
    const Vec<float> s = (m - 1.0f) / (m + 1.0f), z = s * s;
    Vec<float> series = Simd<float>::fill(1.0f / 11);
    for (int k = 9; k > 1; k -= 2) series = series * z + 1.0f / k;
    return exponent * 0.693359375f + (2.0f * s + (2.0f * s * z * series - exponent * 2.12194440e-4f));
}

// out[i] := log |x[i]|; NaN for a number that is zero, subnormal or not finite.
inline void take_logarithms(const float* x, index_t count, double* out) {
    using S = Simd<float>;
    constexpr index_t W = S::W;
    for (index_t first = 0; first < count; first += W) {
        const index_t filled = count - first < W ? count - first : W;
        Vec<float> numbers = S::fill(1.0f);
        if (filled == W)
            numbers = S::load(x + first);
        else
            for (index_t l = 0; l < filled; ++l) numbers[l] = x[first + l];
        const Vec<float> size = absolute<float>(numbers);
        const auto fits = (size >= std::numeric_limits<float>::min()) & (size <= std::numeric_limits<float>::max());
        const Vec<float> found = fits ? take_logarithms(size) : S::fill(std::numeric_limits<float>::quiet_NaN());
        using Wide = Simd<double, W * sizeof(double)>;
        if (filled == W)
            Wide::store(out + first, __builtin_convertvector(found, typename Wide::Vec));
        else
            for (index_t l = 0; l < filled; ++l) out[first + l] = static_cast<double>(found[l]);
    }
}

// out[item - begin] := sum_i log |a_ii|: mantissas are multiplied, exponents are added, and there is one logarithm per run of
// entries. NaN for an item with an entry that is zero or not finite, which the caller computes by itself.
template <class T>
void lane_sum_logs(Batch<const T> A, double* out, index_t begin, index_t end) {
    using S = Simd<double>;
    using Bits = typename S::Mask;
    using Row = typename S::Vec;
    constexpr index_t W = S::W;
    constexpr std::int64_t size_bits = 0x7fffffffffffffff, mantissa_bits = 0x000fffffffffffff, one_bits = 0x3ff0000000000000;
    const index_t step = A.row_stride + A.col_stride, n = A.rows;
    const bool is_contiguous = n == 1 && A.batch_stride == 1;
    if constexpr (std::is_same_v<T, float>)
        if (is_contiguous) return take_logarithms(A.data + begin, end - begin, out);
    for (index_t first = begin; first < end; first += W) {
        const index_t filled = end - first < W ? end - first : W;
        const T* item[W];
        for (index_t l = 0; l < W; ++l) item[l] = A.data + (first + (l < filled ? l : filled - 1)) * A.batch_stride;
        Row sums{};
        Bits odd{};
        for (index_t from = 0; from < n; from += plan::log_run) {
            Row product = S::fill(1.0);
            Bits exponents{};
            const index_t to = n - from < plan::log_run ? n : from + plan::log_run;
            for (index_t i = from; i < to; ++i) {
                Row x;
                if (is_contiguous && filled == W)
                    x = __builtin_convertvector(Simd<T, W * sizeof(T)>::load(item[0]), Row);
                else
#pragma GCC unroll 16
                    for (index_t l = 0; l < W; ++l) x[l] = static_cast<double>(item[l][i * step]);
                const Bits bits = reinterpret_cast<Bits>(x) & size_bits, exponent = bits >> 52;
                odd |= (exponent == 0) | (exponent == 2047);
                const Row mantissa = reinterpret_cast<Row>((bits & mantissa_bits) | one_bits);
                // Mantissas are between 1/sqrt(2) and sqrt(2): entries near 1 have exponent 0, and a product of a run does not overflow.
                const Bits large = mantissa > 1.41421356237309504880;
                product *= large ? 0.5 * mantissa : mantissa;
                exponents += exponent - 1023 - large;  // A true comparison is -1.
            }
            sums += take_logarithms(product) + __builtin_convertvector(exponents, Row) * 0.69314718055994530942;
        }
        sums = odd != 0 ? S::fill(std::numeric_limits<double>::quiet_NaN()) : sums;
        if (filled == W)
            S::store(out + (first - begin), sums);
        else
            for (index_t l = 0; l < filled; ++l) out[first - begin + l] = sums[l];
    }
}
