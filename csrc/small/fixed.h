// Batches of products of square matrices whose order is known when this is compiled: 4, 8 and 16. Included only
// by isa_kernels.cpp.
//
// A row of such a matrix is one or two vectors, and c_i* = sum_k a_ik b_k* is computed on rows in place, one item after the
// other, without the transpositions that lanes.h needs to put one item into each lane.

template <class T, int N>
struct Fixed {
    static constexpr int widest = vector_bytes / sizeof(T);
    static constexpr int width = N < widest ? N : widest;
    static constexpr int vectors = N / width;
    // Rows of a result that fit into the registers.
    static constexpr int strip = N * vectors <= 16 ? N : 16 / vectors;
    using S = Simd<T, width * sizeof(T)>;
    using Row = typename S::Vec;
    using Rows = Row[N][vectors];

    // x := the rows of A, in blocks of width x width; blocks of a column-major matrix are transposed in registers.
    [[gnu::always_inline]] static void load(View<const T> A, Rows& x) {
        const bool by_rows = A.col_stride == 1;
        const index_t stride = by_rows ? A.row_stride : A.col_stride;
        for (int i = 0; i < N; i += width)
            for (int v = 0; v < vectors; ++v) {
                const T* corner = A.at(i, v * width);
                Row block[width];
#pragma GCC unroll 16
                for (int l = 0; l < width; ++l) block[l] = S::load(corner + l * stride);
                if (!by_rows) S::transpose(block);
#pragma GCC unroll 16
                for (int l = 0; l < width; ++l) x[i + l][v] = block[l];
            }
    }

    [[gnu::always_inline]] static void store(const Rows& x, View<T> C) {
        const bool by_rows = C.col_stride == 1;
        const index_t stride = by_rows ? C.row_stride : C.col_stride;
        for (int i = 0; i < N; i += width)
            for (int v = 0; v < vectors; ++v) {
                Row block[width];
#pragma GCC unroll 16
                for (int l = 0; l < width; ++l) block[l] = x[i + l][v];
                if (!by_rows) S::transpose(block);
                T* corner = C.at(i, v * width);
#pragma GCC unroll 16
                for (int l = 0; l < width; ++l) S::store(corner + l * stride, block[l]);
            }
    }

    // y := A x, where a_ik is read if wanted(i, k) holds and counts as zero otherwise.
    template <class Wanted>
    [[gnu::always_inline]] static void multiply(View<const T> A, const Rows& x, Rows& y, Wanted wanted) {
#pragma GCC unroll 4
        for (int first = 0; first < N; first += strip) {
            Row acc[strip][vectors] = {};
#pragma GCC unroll 16
            for (int k = 0; k < N; ++k) {
                const T* column = A.at(first, k);
#pragma GCC unroll 16
                for (int r = 0; r < strip; ++r) {
                    if (!wanted(first + r, k)) continue;
                    const Row a = S::fill(column[r * A.row_stride]);
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; ++v) acc[r][v] += a * x[k][v];
                }
            }
#pragma GCC unroll 16
            for (int r = 0; r < strip; ++r)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v) y[first + r][v] = acc[r][v];
        }
    }

    // x := scale x. Unless `whole`, the other triangle (the strict upper one if `lower`) := 0.
    [[gnu::always_inline]] static void scale_triangle(Rows& x, T scale, bool whole, bool lower) {
        const auto numbers = number_lanes<S>();
        const Row factor = S::fill(scale);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) {
                const auto column = numbers + static_cast<typename S::Lane>(v * width);
                const auto kept = lower ? column <= i : column >= i;
                const Row scaled = factor * x[i][v];
                x[i][v] = whole ? scaled : (kept ? scaled : Row{});
            }
    }
};

// B := L A with a triangular L.
template <class T, int N, bool Lower>
void fixed_triangle(Batch<const T> L, Batch<const T> A, Batch<T> B, index_t begin, index_t end) {
    using F = Fixed<T, N>;
    for (index_t b = begin; b < end; ++b) {
        typename F::Rows x, y;
        F::load(A[b], x);
        F::multiply(L[b], x, y, [](int i, int k) { return Lower ? k <= i : k >= i; });
        F::store(y, B[b]);
    }
}

// The lower triangle of C := alpha A B. The upper one is set to zero or, if symmetric (B = A'), computed by sums in the same order.
template <class T, int N>
void fixed_product(T alpha, Batch<const T> A, Batch<const T> B, Batch<T> C, bool symmetric, index_t begin,
                   index_t end) {
    using F = Fixed<T, N>;
    const bool by_rows = C.col_stride == 1;
    if (!by_rows) {  // C' = B' A', upper triangle
        const Batch<const T> left = B.t();
        B = A.t();
        A = left;
        C = C.t();
    }
    for (index_t b = begin; b < end; ++b) {
        typename F::Rows x, y;
        F::load(B[b], x);
        F::multiply(A[b], x, y, [](int, int) { return true; });
        F::scale_triangle(y, alpha, symmetric, by_rows);
        F::store(y, C[b]);
    }
}

// Calls body(std::integral_constant<int, N>) if all sizes are the same N and N is 4, 8 or 16. Returns whether it did.
template <class Body>
bool with_fixed_order(std::initializer_list<index_t> sizes, Body body) {
    const index_t n = *sizes.begin();
    for (const index_t size : sizes)
        if (size != n) return false;
    if (n == 4) return body(std::integral_constant<int, 4>{}), true;
    if (n == 8) return body(std::integral_constant<int, 8>{}), true;
    if (n == 16) return body(std::integral_constant<int, 16>{}), true;
    return false;
}
