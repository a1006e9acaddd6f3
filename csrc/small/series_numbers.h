// The number type of the Kalman filter, a vector with one series per lane or a plain number, and products of small matrices of
// such numbers. Included only by isa_kernels.cpp.

// Operations on V: a vector with one series per lane (Wide), or the number of one series.
template <class T, bool Wide>
struct Numbers {
    using V = Vec<T>;
    static constexpr index_t width = Simd<T>::W;
    [[gnu::always_inline]] static V fill(T x) { return Simd<T>::fill(x); }
    [[gnu::always_inline]] static T get(const V& x, index_t l) { return x[l]; }
    [[gnu::always_inline]] static void set(V& x, index_t l, T value) { x[l] = value; }
    [[gnu::always_inline]] static bool all(typename Simd<T>::Mask mask) {
        typename Simd<T>::Lane common = -1;
        for (index_t l = 0; l < width; ++l) common &= mask[l];
        return common != 0;
    }
    [[gnu::always_inline]] static V root(V x) { return take_square_roots<T>(x); }
};
template <class T>
struct Numbers<T, false> {
    using V = T;
    static constexpr index_t width = 1;
    [[gnu::always_inline]] static V fill(T x) { return x; }
    [[gnu::always_inline]] static T get(const V& x, index_t) { return x; }
    [[gnu::always_inline]] static void set(V& x, index_t, T value) { x = value; }
    [[gnu::always_inline]] static bool all(bool mask) { return mask; }
    [[gnu::always_inline]] static V root(V x) { return square_root(x); }
};

enum class Into { set, add, subtract };

// C (=, += or -=) A B, with B and C dense and row-major; `triangle`: only columns up to the diagonal. Row i of A starts at
// A + i * row, and its entries are `col` apart.
template <Into mode, bool triangle, class V>
[[gnu::always_inline]] inline void multiply(const V* A, index_t row, index_t col, const V* B, V* C, index_t rows,
                                            index_t inner, index_t cols) {
    // Enough sums at a time to hide the latency of an addition. The compiler vectorises the loop over plain numbers.
    constexpr int J = sizeof(V) > 8 ? 4 : 16;
    for (index_t i = 0; i < rows; ++i) {
        const index_t end = triangle ? i + 1 : cols;
        const V* const a = A + i * row;
        V* const c = C + i * cols;
        index_t j = 0;
        for (; j + J <= end; j += J) {
            V acc[J];
#pragma GCC unroll 16
            for (int l = 0; l < J; ++l) acc[l] = mode == Into::set ? V{} : c[j + l];
            for (index_t k = 0; k < inner; ++k) {
                const V x = mode == Into::subtract ? -a[k * col] : a[k * col];
#pragma GCC unroll 16
                for (int l = 0; l < J; ++l) acc[l] += x * B[k * cols + j + l];
            }
#pragma GCC unroll 16
            for (int l = 0; l < J; ++l) c[j + l] = acc[l];
        }
        for (; j < end; ++j) {
            V acc = mode == Into::set ? V{} : c[j];
            for (index_t k = 0; k < inner; ++k)
                acc += (mode == Into::subtract ? -a[k * col] : a[k * col]) * B[k * cols + j];
            c[j] = acc;
        }
    }
}

// y (=, += or -=) A x.
template <Into mode, class V>
[[gnu::always_inline]] inline void apply(const V* A, index_t row, index_t col, const V* x, V* y, index_t rows,
                                         index_t inner) {
    for (index_t i = 0; i < rows; ++i) {
        V acc{};
        for (index_t k = 0; k < inner; ++k) acc += A[i * row + k * col] * x[k];
        y[i] = mode == Into::set ? acc : mode == Into::add ? y[i] + acc : y[i] - acc;
    }
}

template <class V>
[[gnu::always_inline]] inline void mirror_lower(V* A, index_t n) {
    for (index_t i = 0; i < n; ++i)
        for (index_t j = 0; j < i; ++j) A[j * n + i] = A[i * n + j];
}

template <class V>
[[gnu::always_inline]] inline void transpose_into(const V* A, V* B, index_t rows, index_t cols) {
    for (index_t i = 0; i < rows; ++i)
        for (index_t j = 0; j < cols; ++j) B[j * rows + i] = A[i * cols + j];
}

template <class V>
[[gnu::always_inline]] inline void clear(V* x, index_t count) {
    for (index_t e = 0; e < count; ++e) x[e] = V{};
}
