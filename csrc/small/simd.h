// Vectors of the instruction set that this translation unit is compiled for (compiler vector extensions).
// Included only by isa_kernels.cpp, inside its own namespace; isa.h says why.

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
constexpr int tile_rows = 8, tile_vectors = 3;  // 24 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
constexpr int tile_rows = 4, tile_vectors = 3;  // 12 of 16
#else
constexpr int vector_bytes = 16;
constexpr int tile_rows = 4, tile_vectors = 2;  // 8 of 16
#endif

template <class T>
constexpr index_t lanes_of = vector_bytes / sizeof(T);

template <class T, int Bytes = vector_bytes>
struct Simd {
    static constexpr int W = Bytes / sizeof(T);
    typedef T Vec __attribute__((vector_size(Bytes)));
    typedef T Loose __attribute__((vector_size(Bytes), aligned(alignof(T)), may_alias));
    using Lane = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    typedef Lane Mask __attribute__((vector_size(Bytes)));

    [[gnu::always_inline]] static Vec load(const T* p) { return *reinterpret_cast<const Loose*>(p); }
    [[gnu::always_inline]] static void store(T* p, Vec v) { *reinterpret_cast<Loose*>(p) = v; }
    [[gnu::always_inline]] static Vec fill(T x) { return x - Vec{}; }

    [[gnu::always_inline]] static Vec shuffle(Vec a, Vec b, Mask m) {
#if defined(__clang__)
        Vec r;
        for (int l = 0; l < W; ++l) r[l] = m[l] < W ? a[m[l]] : b[m[l] - W];
        return r;
#else
        return __builtin_shuffle(a, b, m);
#endif
    }

    // Returns the sum of the lanes, by halves.
    [[gnu::always_inline]] static T add_lanes(Vec x) {
        if constexpr (W == 1) {
            return x[0];
        } else {
            using Half = Simd<T, Bytes / 2>;
            typename Half::Vec low, high;
            __builtin_memcpy(&low, &x, sizeof low);
            __builtin_memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
            return Half::add_lanes(low + high);
        }
    }

    // Transposes the W x W block held in x, by exchanging half-blocks of size W/2, W/4, ..., 1.
    [[gnu::always_inline]] static void transpose(Vec (&x)[W]) { exchange<W / 2>(x); }

  private:
    template <int H, int... L>
    static constexpr Mask low_mask(std::integer_sequence<int, L...>) {
        return Mask{((L & H) ? W + L - H : L)...};
    }
    template <int H, int... L>
    static constexpr Mask high_mask(std::integer_sequence<int, L...>) {
        return Mask{((L & H) ? W + L : L + H)...};
    }
    template <int H>
    [[gnu::always_inline]] static void exchange(Vec (&x)[W]) {
        if constexpr (H > 0) {
            constexpr auto lanes = std::make_integer_sequence<int, W>{};
            const Mask low = low_mask<H>(lanes), high = high_mask<H>(lanes);
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                if (i & H) continue;
                const Vec a = x[i], b = x[i + H];
                x[i] = shuffle(a, b, low);
                x[i + H] = shuffle(a, b, high);
            }
            exchange<H / 2>(x);
        }
    }
};

[[gnu::always_inline]] inline double square_root(double x) { return __builtin_sqrt(x); }
[[gnu::always_inline]] inline float square_root(float x) { return __builtin_sqrtf(x); }

// Returns (0, 1, 2, ...), one number per lane, to build masks with.
template <class S>
[[gnu::always_inline]] inline typename S::Mask number_lanes() {
    typename S::Mask numbers;
#pragma GCC unroll 16
    for (int l = 0; l < S::W; ++l) numbers[l] = l;
    return numbers;
}
template <class T>
[[gnu::always_inline]] inline typename Simd<T>::Mask number_lanes_of() {
    return number_lanes<Simd<T>>();
}

// dst (row-major, leading dimension ldd) := scale * src, for any strides of src.
template <class T>
inline void pack(View<const T> src, T scale, T* dst, index_t ldd) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    constexpr index_t W = S::W;
    if (src.col_stride == 1) {
        for (index_t i = 0; i < src.rows; ++i)
            for (index_t j = 0; j < src.cols; ++j) dst[i * ldd + j] = scale * src(i, j);
        return;
    }
    if (src.row_stride == -1)  // rows walked backwards: pack them forwards, from the last row of dst
        return pack<T>(src.reversed_rows(), scale, dst + (src.rows - 1) * ldd, -ldd);
    index_t i = 0;
    if (src.row_stride == 1) {
        for (; i + W <= src.rows; i += W) {
            index_t j = 0;
            for (; j + W <= src.cols; j += W) {
                Vec x[W];
#pragma GCC unroll 16
                for (int l = 0; l < W; ++l) x[l] = S::load(src.at(i, j + l)) * S::fill(scale);
                S::transpose(x);
#pragma GCC unroll 16
                for (int l = 0; l < W; ++l) S::store(dst + (i + l) * ldd + j, x[l]);
            }
            for (; j < src.cols; ++j)
                for (index_t l = 0; l < W; ++l) dst[(i + l) * ldd + j] = scale * src(i + l, j);
        }
    }
    for (; i < src.rows; ++i)
        for (index_t j = 0; j < src.cols; ++j) dst[i * ldd + j] = scale * src(i, j);
}

template <class T>
void copy(View<const T> src, T scale, View<T> dst) {
    pack<T>(src, scale, dst.data, dst.row_stride);
}

// The reverse of pack: dst := src (row-major, leading dimension lds).
template <class T>
inline void unpack(const T* src, index_t lds, View<T> dst) {
    if (dst.row_stride == -1) return unpack<T>(src + (dst.rows - 1) * lds, -lds, dst.reversed_rows());
    if (dst.col_stride != 1 && dst.row_stride == 1) {
        pack<T>(View<const T>{src, dst.cols, dst.rows, 1, lds}, T(1), dst.data, dst.col_stride);
        return;
    }
    for (index_t i = 0; i < dst.rows; ++i)
        for (index_t j = 0; j < dst.cols; ++j) dst(i, j) = src[i * lds + j];
}

// Which entries of two matrices are close, as torch.isclose decides it.
//
// The rounding of every step is torch's, which computes them one by one: nothing here may be contracted to a fused multiply-add, and the
// absolute value between product and sum prevents it.
template <class T>
struct Closeness {
    using S = Simd<T>;
    T rtol, atol;

    // In lane l: -1 where |a - b| <= atol + |rtol b| and the left side is finite, or where a = b; else 0.
    [[gnu::always_inline]] typename S::Mask compare(typename S::Vec a, typename S::Vec b) const {
        const typename S::Vec difference = magnitude(a - b), allowed = atol + magnitude(rtol * b);
        return (a == b) | ((difference <= allowed) & (difference <= S::fill(std::numeric_limits<T>::max())));
    }

    [[gnu::always_inline]] bool compare_one(T a, T b) const {
        const T difference = __builtin_fabs(a - b), allowed = atol + T(__builtin_fabs(rtol * b));
        return (a == b) | ((difference <= allowed) & (difference <= std::numeric_limits<T>::max()));
    }

    [[gnu::always_inline]] void compare_to(typename S::Vec a, typename S::Vec b, bool* close) const {
        typedef signed char Bytes __attribute__((vector_size(S::W)));
        const Bytes bytes = __builtin_convertvector(compare(a, b), Bytes) & 1;
        __builtin_memcpy(close, &bytes, S::W);
    }

  private:
    [[gnu::always_inline]] static typename S::Vec magnitude(typename S::Vec x) { return x < 0 ? -x : x; }
};

// close (contiguous) := |A - B| <= atol + |rtol B| where that is finite, or A = B. A is stored by rows; full tiles of a B that is stored by
// columns are transposed in registers.
template <class T>
void compare_close(View<const T> A, View<const T> B, T rtol, T atol, bool* close) {
    using S = Simd<T>;
    constexpr index_t W = S::W;
    const Closeness<T> closeness{rtol, atol};
    const index_t rows = A.rows, cols = A.cols;
    const bool by_rows = B.col_stride == 1, by_columns = !by_rows && B.row_stride == 1;
    const index_t tiled_rows = by_rows ? rows : by_columns ? rows / W * W : 0, tiled_cols = by_rows || by_columns ? cols / W * W : 0;
    for (index_t i = 0; i < tiled_rows; i += by_rows ? 1 : W) {
        for (index_t j = 0; j < tiled_cols; j += W) {
            if (by_rows) {
                closeness.compare_to(S::load(A.at(i, j)), S::load(B.at(i, j)), close + i * cols + j);
                continue;
            }
            typename S::Vec tile[W];
            for (index_t l = 0; l < W; ++l) tile[l] = S::load(B.at(i, j + l));
            S::transpose(tile);
            for (index_t l = 0; l < W; ++l) closeness.compare_to(S::load(A.at(i + l, j)), tile[l], close + (i + l) * cols + j);
        }
    }
    for (index_t i = 0; i < rows; ++i)
        for (index_t j = i < tiled_rows ? tiled_cols : 0; j < cols; ++j) close[i * cols + j] = closeness.compare_one(A(i, j), B(i, j));
}

// Passes over observations: sums of columns, and observations less their means.

// total[j] += the sum of x[i * step + j] over `rows` rows, for j < width.
template <class T>
void add_rows(const T* x, index_t rows, index_t step, index_t width, double* total) {
    using S = Simd<double>;
    constexpr index_t W = S::W, rows_at_a_time = 8;
    index_t i = 0;
    for (; i + rows_at_a_time <= rows; i += rows_at_a_time, x += rows_at_a_time * step) {
        index_t j = 0;
        for (; j + W <= width; j += W) {
            typename S::Vec sum = S::load(total + j);
#pragma GCC unroll 8
            for (index_t r = 0; r < rows_at_a_time; ++r)
                sum += __builtin_convertvector(Simd<T, W * sizeof(T)>::load(x + r * step + j), typename S::Vec);
            S::store(total + j, sum);
        }
        for (; j < width; ++j)
            for (index_t r = 0; r < rows_at_a_time; ++r) total[j] += static_cast<double>(x[r * step + j]);
    }
    for (; i < rows; ++i, x += step)
        for (index_t j = 0; j < width; ++j) total[j] += static_cast<double>(x[j]);
}

// out := x less `row` in each of its rows of `width` numbers. largest := the largest absolute value in `out`, of those that are numbers;
// has_nan := whether others are among them.
template <class T>
void subtract_row(const T* x, index_t rows, index_t step, index_t width, const T* row, T* out, index_t out_step, T* largest, bool* has_nan) {
    using S = Simd<T>;
    constexpr index_t W = S::W;
    typename S::Vec most{};
    typename S::Mask odd{};
    T most_left = 0;
    bool is_odd = false;
    for (index_t i = 0; i < rows; ++i, x += step, out += out_step) {
        index_t j = 0;
        for (; j + W <= width; j += W) {
            const typename S::Vec difference = S::load(x + j) - S::load(row + j), size = difference < 0 ? -difference : difference;
            S::store(out + j, difference);
            most = size > most ? size : most;
            odd |= difference != difference;
        }
        for (; j < width; ++j) {
            const T difference = x[j] - row[j], size = difference < 0 ? -difference : difference;
            out[j] = difference;
            most_left = size > most_left ? size : most_left;
            is_odd |= difference != difference;
        }
    }
    for (index_t l = 0; l < W; ++l) {
        most_left = most[l] > most_left ? most[l] : most_left;
        is_odd |= odd[l] != 0;
    }
    *largest = most_left;
    *has_nan = is_odd;
}
