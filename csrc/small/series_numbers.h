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

// J columns from j on of row i of C (=, += or -=) A B: see `multiply`. The sums stay in registers.
template <Into mode, int J, class V>
[[gnu::always_inline]] inline void multiply_columns(const V* a, index_t col, const V* B, V* c, index_t inner,
                                                    index_t cols, index_t j) {
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

// C (=, += or -=) A B, with B and C dense and row-major; `triangle`: only columns up to the diagonal. Row i of A starts at
// A + i * row, and its entries are `col` apart.
template <Into mode, bool triangle, class V>
[[gnu::always_inline]] inline void multiply(const V* A, index_t row, index_t col, const V* B, V* C, index_t rows,
                                            index_t inner, index_t cols) {
    // Enough sums at a time to hide the latency of an addition. The compiler vectorises the loops over plain numbers.
    constexpr int J = sizeof(V) > 8 ? 4 : 16;
    for (index_t i = 0; i < rows; ++i) {
        const index_t end = triangle ? i + 1 : cols;
        const V* const a = A + i * row;
        V* const c = C + i * cols;
        index_t j = 0;
        for (; j + J <= end; j += J) multiply_columns<mode, J>(a, col, B, c, inner, cols, j);
        if (J > 4)
            for (; j + 4 <= end; j += 4) multiply_columns<mode, 4>(a, col, B, c, inner, cols, j);
        for (; j < end; ++j) multiply_columns<mode, 1>(a, col, B, c, inner, cols, j);
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

// Which entries of each row of an n x n matrix are not zero in some series.
struct Pattern {
    std::int32_t* entries;  // n rows of n + 1: how many, then their columns

    template <class S>
    void find(const typename S::V* A, index_t n) const {
        for (index_t i = 0; i < n; ++i) {
            std::int32_t* const row = entries + i * (n + 1);
            std::int32_t count = 0;
            for (index_t k = 0; k < n; ++k)
                if (!S::all(A[i * n + k] == typename S::V{})) row[++count] = static_cast<std::int32_t>(k);
            row[0] = count;
        }
    }
};

// C (= or +=) A B for an n x n matrix A with that pattern; `triangle`: only columns up to the diagonal.
template <Into mode, bool triangle, class V>
[[gnu::always_inline]] inline void multiply_sparse(const V* A, const Pattern& pattern, const V* B, V* C, index_t n,
                                                   index_t cols) {
    static_assert(mode != Into::subtract);
    const auto add_columns = [&](const std::int32_t* row, const V* a, V* c, index_t j, auto width) {
        constexpr int J = decltype(width)::value;
        V acc[J];
#pragma GCC unroll 8
        for (int l = 0; l < J; ++l) acc[l] = mode == Into::set ? V{} : c[j + l];
        for (std::int32_t e = 1; e <= row[0]; ++e) {
            const V x = a[row[e]];
            const V* const b = B + row[e] * cols + j;
#pragma GCC unroll 8
            for (int l = 0; l < J; ++l) acc[l] += x * b[l];
        }
#pragma GCC unroll 8
        for (int l = 0; l < J; ++l) c[j + l] = acc[l];
    };
    for (index_t i = 0; i < n; ++i) {
        const index_t end = triangle ? i + 1 : cols;
        const std::int32_t* const row = pattern.entries + i * (n + 1);
        const V* const a = A + i * n;
        V* const c = C + i * cols;
        index_t j = 0;
        if (sizeof(V) <= 8)
            for (; j + 8 <= end; j += 8) add_columns(row, a, c, j, std::integral_constant<int, 8>{});
        for (; j + 4 <= end; j += 4) add_columns(row, a, c, j, std::integral_constant<int, 4>{});
        for (; j < end; ++j) add_columns(row, a, c, j, std::integral_constant<int, 1>{});
    }
}
