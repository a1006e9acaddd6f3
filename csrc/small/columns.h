// Passes over observations: sums of columns, and observations less their means. Included only by isa_kernels.cpp.

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
