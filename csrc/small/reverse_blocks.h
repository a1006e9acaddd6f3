// The reverse sweep of the Cholesky leaf in blocks of 8, for instruction sets whose vectors hold 8 numbers. Included only
// by isa_kernels.cpp.
//
// A sweep over single columns waits for a sum and a store in every step. Here a step is a block column J of 8 columns, T are the
// rows below it, and vectors hold rows of 8 numbers (potrf.h has the formulas):
//
//     X := (G_TJ - S_TT L_TJ) L_JJ^-1,   G_JJ := G_JJ - X' L_TJ,   S_JJ := reverse(L_JJ, G_JJ),   S_TJ := X,   S_JT := X'.

template <class T>
struct ReverseBlocks {
    static constexpr int B = 8;
    static constexpr bool fits = B * sizeof(T) <= vector_bytes;
    using S8 = Simd<T, B * sizeof(T)>;
    using Vec = typename S8::Vec;
    using Mask = typename S8::Mask;

    [[gnu::always_inline]] static Vec lane(Vec x, int l) {
        return S8::shuffle(x, x, Mask{} + static_cast<typename S8::Lane>(l));
    }

    // The sum of all lanes, in every lane.
    [[gnu::always_inline]] static Vec sum(Vec x) {
        const Mask numbers = number_lanes<S8>();
        x += S8::shuffle(x, x, numbers ^ 4);
        x += S8::shuffle(x, x, numbers ^ 2);
        return x + S8::shuffle(x, x, numbers ^ 1);
    }

    // acc := acc - A L, rows of A and of L in memory.
    [[gnu::always_inline]] static void subtract_product(View<const T> A, View<const T> L, Vec (&acc)[B]) {
        for (index_t p = 0; p < L.rows; ++p) {
            const Vec row = S8::load(L.at(p, 0));
#pragma GCC unroll 8
            for (int r = 0; r < B; ++r) acc[r] -= S8::fill(A.data[r * A.row_stride + p]) * row;
        }
    }

    // X := Y L^-1; y holds the columns of Y, and of X afterwards.
    [[gnu::always_inline]] static void solve(View<const T> L, const T* inverse, Vec (&y)[B]) {
#pragma GCC unroll 8
        for (int c = B - 1; c >= 0; --c) {
#pragma GCC unroll 8
            for (int q = B - 1; q > c; --q) y[c] -= S8::fill(L(q, c)) * y[q];
            y[c] *= S8::fill(inverse[c]);
        }
    }

    // g: columns of G_JJ, whose lower triangle is used; s: rows of S_JJ.
    [[gnu::always_inline]] static void reverse(View<const T> L, const T* inverse, const Vec (&g)[B], Vec (&s)[B]) {
        const Mask numbers = number_lanes<S8>();
#pragma GCC unroll 8
        for (int k = B - 1; k >= 0; --k) {
            Vec x = g[k], column{};
#pragma GCC unroll 8
            for (int p = B - 1; p > k; --p) {
                const Vec l = S8::fill(L(p, k));
                x -= l * s[p];
                column = numbers == p ? l : column;
            }
            const Vec scale = S8::fill(inverse[k]);
            x = numbers > k ? x * scale : Vec{};
            const Vec corner = (g[k] - sum(x * column)) * scale;
            s[k] = numbers == k ? corner : x;
#pragma GCC unroll 8
            for (int p = B - 1; p > k; --p) s[p] = numbers == k ? lane(x, p) : s[p];
        }
    }

    // L and S are row-major, n is a multiple of 8. Reads the lower triangle of S and writes all of S.
    static void sweep(View<const T> L, View<T> S) {
        const index_t n = L.rows;
        T inverse[leaf];
        for (index_t k = 0; k < n; ++k) inverse[k] = T(1) / L(k, k);
        for (index_t j = n - B; j >= 0; j -= B) {
            const index_t below = j + B, rest = n - below;
            const View<const T> L_JJ = L.block(j, j, B, B), L_TJ = L.block(below, j, rest, B);
            for (index_t i = below; i < n; i += B) {
                Vec x[B];
                load(S.block(i, j, B, B), x);
                subtract_product(S.block(i, below, B, rest), L_TJ, x);
                S8::transpose(x);
                solve(L_JJ, inverse + j, x);
                store(x, S.block(j, i, B, B));
                S8::transpose(x);
                store(x, S.block(i, j, B, B));
            }
            Vec g[B], s[B];
            load(S.block(j, j, B, B), g);
            subtract_product(S.block(j, below, B, rest), L_TJ, g);
            S8::transpose(g);
            reverse(L_JJ, inverse + j, g, s);
            store(s, S.block(j, j, B, B));
        }
    }

    [[gnu::always_inline]] static void load(View<const T> block, Vec (&rows)[B]) {
#pragma GCC unroll 8
        for (int r = 0; r < B; ++r) rows[r] = S8::load(block.at(r, 0));
    }
    [[gnu::always_inline]] static void store(const Vec (&rows)[B], View<T> block) {
#pragma GCC unroll 8
        for (int r = 0; r < B; ++r) S8::store(block.at(r, 0), rows[r]);
    }

    // Whether the matrix can be used in place. A large matrix cannot: its rows are so far apart that they evict each other from the cache.
    static bool is_direct(View<const T> A) {
        constexpr index_t farthest = in_place_row_bytes / sizeof(T);
        return A.col_stride == 1 && A.row_stride > 0 && A.row_stride <= farthest && A.rows % B == 0;
    }
};

// In place: the lower triangle of G in, the symmetric S out.
template <class T>
void potrf_reverse_blocks(View<const T> L, View<T> G, T* scratch) {
    using R = ReverseBlocks<T>;
    const index_t n = L.rows, padded = (n + R::B - 1) / R::B * R::B;
    const bool in_place = R::is_direct(G), uses_L_in_place = R::is_direct(L);
    View<T> triangle{scratch, padded, padded, leaf, 1}, S{scratch + leaf * leaf, padded, padded, leaf, 1};
    if (!uses_L_in_place) pack<T>(L, T(1), triangle.data, leaf);
    if (!in_place) pack<T>(G.readonly(), T(1), S.data, leaf);
    for (index_t i = n; i < padded; ++i)  // padded by an identity, which does not change the result
        for (index_t j = 0; j < padded; ++j) {
            triangle(i, j) = T(i == j);
            S(i, j) = T(0);
        }
    R::sweep(uses_L_in_place ? L : triangle.readonly(), in_place ? G : S);
    // S is symmetric, so its rows can be stored as rows or as columns of G.
    if (!in_place) unpack<T>(S.data, leaf, G.col_stride == 1 ? G : G.t());
}
