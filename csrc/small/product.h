// C := alpha A B (+ C) on one thread, for sides up to a few hundred, where the set-up of a BLAS call takes longer than the product.
// Included only by isa_kernels.cpp.
//
// The register tile is tile_rows x (NV vectors) of C. A is read by broadcast, B in whole vectors; B goes through a packed
// panel when it is stored the other way, when the panel is not full, or when enough rows of A read it.

template <class T, int NV>
inline void product_tile(index_t k, const T* const (&a)[tile_rows], index_t a_step, const T* b, index_t ldb,
                         typename Simd<T>::Vec (&acc)[tile_rows][NV]) {
    using S = Simd<T>;
    for (int r = 0; r < tile_rows; ++r)
        for (int v = 0; v < NV; ++v) acc[r][v] = typename S::Vec{};
    index_t offset = 0;
    for (index_t p = 0; p < k; ++p, offset += a_step, b += ldb) {
        typename S::Vec row[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) row[v] = S::load(b + v * S::W);
#pragma GCC unroll 8
        for (int r = 0; r < tile_rows; ++r) {
            const typename S::Vec x = S::fill(a[r][offset]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) acc[r][v] += x * row[v];
        }
    }
}

// Returns tile_rows rows of A from row i on. A row stride of 0 marks strips that pack_strips stored column by column.
template <class T>
[[gnu::always_inline]] inline View<const T> view_strip(View<const T> A, index_t i) {
    if (A.row_stride == 0) return {A.data + i * A.cols, tile_rows, A.cols, 1, A.col_stride};
    return {A.at(i, 0), tile_rows, A.cols, A.row_stride, A.col_stride};
}

template <class T, int NV>
void product_panel(T alpha, View<const T> A, const T* b, index_t ldb, bool accumulate, View<T> C, index_t first,
                   index_t end) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    for (index_t i = first; i < end; i += tile_rows) {
        const index_t height = C.rows - i < tile_rows ? C.rows - i : tile_rows;
        const T* a[tile_rows];
        // Rows past the end read the last row again; their results are not stored.
        const View<const T> strip = view_strip<T>(A, i);
        for (int r = 0; r < tile_rows; ++r) a[r] = strip.at(r < height ? r : height - 1, 0);
        Vec acc[tile_rows][NV];
        product_tile<T, NV>(A.cols, a, strip.col_stride, b, ldb, acc);
        const Vec factor = S::fill(alpha);
        if (height == tile_rows && C.cols == NV * S::W) {
#pragma GCC unroll 8
            for (int r = 0; r < tile_rows; ++r) {
                T* c = C.at(i + r, 0);
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    const Vec old = accumulate ? S::load(c + v * S::W) : Vec{};
                    S::store(c + v * S::W, old + factor * acc[r][v]);
                }
            }
            continue;
        }
        T edge[tile_rows][NV * S::W];
#pragma GCC unroll 8
        for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) S::store(&edge[r][v * S::W], factor * acc[r][v]);
        for (index_t r = 0; r < height; ++r)
            for (index_t j = 0; j < C.cols; ++j) C(i + r, j) = (accumulate ? C(i + r, j) : T(0)) + edge[r][j];
    }
}

// Copies A in strips of tile_rows, each contiguous and in the storage order of A, and returns a view of the copy. Without it,
// rows of a large matrix that lie a power of two apart would share a few cache sets.
template <class T>
View<const T> pack_strips(View<const T> A, T* packed) {
    for (index_t i = 0; i < A.rows; i += tile_rows) {
        const index_t height = A.rows - i < tile_rows ? A.rows - i : tile_rows;
        const View<const T> strip = A.block(i, 0, height, A.cols);
        T* out = packed + i * A.cols;
        if (A.col_stride == 1)
            pack<T>(strip, T(1), out, A.cols);
        else
            pack<T>(strip.t(), T(1), out, tile_rows);
    }
    if (A.col_stride == 1) return {packed, A.rows, A.cols, A.cols, 1};
    return {packed, A.rows, A.cols, 0, tile_rows};
}

// The part of C that is computed. Tiles that the diagonal crosses are computed in full.
enum class Part { all, lower, upper };

template <class T, Part Wanted>
void compute_product(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, T* scratch) {
    constexpr index_t W = Simd<T>::W;
    constexpr index_t full = tile_vectors * W;
    const index_t k = A.cols;
    T* panel_buffer = scratch + product_limit * (product_limit + 8);
    // Packing A pays if several panels of B read it and it would not stay in the innermost cache without.
    const bool small = C.rows <= leaf && C.cols <= leaf && k <= leaf;
    const bool packed = C.cols > full && k > 0 && !small;
    const View<const T> left = packed ? pack_strips<T>(A, scratch) : A;
    for (index_t j = 0; j < C.cols; j += full) {
        const index_t width = C.cols - j < full ? C.cols - j : full;
        const index_t vectors = (width + W - 1) / W;
        const View<const T> panel = B.columns(j, width);
        const T* b = panel.data;
        index_t ldb = panel.row_stride;
        if (panel.col_stride != 1 || width != vectors * W || (C.rows >= 4 * tile_rows && !small)) {
            ldb = vectors * W;
            if (width != ldb)
                for (index_t p = 0; p < k; ++p)
                    for (index_t c = width; c < ldb; ++c) panel_buffer[p * ldb + c] = T(0);
            pack<T>(panel, T(1), panel_buffer, ldb);
            b = panel_buffer;
        }
        const View<T> target = C.columns(j, width);
        const index_t first = Wanted == Part::lower ? j / tile_rows * tile_rows : 0;
        const index_t end = Wanted == Part::upper && j + width < C.rows ? j + width : C.rows;
        if (vectors == 1)
            product_panel<T, 1>(alpha, left, b, ldb, accumulate, target, first, end);
        else if (vectors == 2)
            product_panel<T, 2>(alpha, left, b, ldb, accumulate, target, first, end);
        else
            product_panel<T, tile_vectors>(alpha, left, b, ldb, accumulate, target, first, end);
    }
}

// Products with few rows of C, or few columns, which the tile above would compute with mostly empty registers.

// C(i, j) := alpha acc[i][j] (+ C(i, j)) for the entries of a vector in row i from column j on; the first `skipped` entries are left out.
template <class T>
[[gnu::always_inline]] inline void finish_entries(typename Simd<T>::Vec sum, T alpha, bool accumulate, View<T> C, index_t i, index_t j, index_t skipped) {
    using S = Simd<T>;
    sum *= S::fill(alpha);
    if (C.col_stride == 1 && skipped == 0) {
        T* const c = C.at(i, j);
        return S::store(c, accumulate ? S::load(c) + sum : sum);
    }
    T entries[S::W];
    S::store(entries, sum);
    for (index_t l = skipped; l < S::W; ++l) C(i, j + l) = (accumulate ? C(i, j + l) : T(0)) + entries[l];
}

// R rows of C for NV vectors of columns from j on; B is stored by rows. The last vector ends with the last column of C.
template <class T, int R, int NV>
void multiply_few_rows(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, index_t j) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    constexpr index_t W = S::W;
    const index_t last = C.cols - j < NV * W ? C.cols - W : j + (NV - 1) * W;  // where the last vector begins
    Vec acc[R][NV] = {};
    const T* b = B.at(0, j);
    for (index_t p = 0; p < A.cols; ++p, b += B.row_stride) {
        Vec row[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV - 1; ++v) row[v] = S::load(b + v * W);
        row[NV - 1] = S::load(b + (last - j));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vec x = S::fill(A(r, p));
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) acc[r][v] += x * row[v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < NV - 1; ++v) finish_entries<T>(acc[r][v], alpha, accumulate, C, r, j + v * W, 0);
        finish_entries<T>(acc[r][NV - 1], alpha, accumulate, C, r, last, j + (NV - 1) * W - last);
    }
}

template <class T, int R, int NV>
void multiply_few_rows(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, index_t j, index_t vectors) {
    if constexpr (NV > 1)
        if (vectors < NV) return multiply_few_rows<T, R, NV - 1>(alpha, A, B, accumulate, C, j, vectors);
    multiply_few_rows<T, R, NV>(alpha, A, B, accumulate, C, j);
}

// C of R rows and at least one vector of columns.
template <class T, int R>
void multiply_few_rows(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C) {
    constexpr int NV = R == 1 ? 8 : R == 2 ? 4 : 3;
    constexpr index_t W = Simd<T>::W;
    for (index_t j = 0; j < C.cols; j += NV * W) {
        const index_t vectors = (C.cols - j + W - 1) / W;
        multiply_few_rows<T, R, NV>(alpha, A, B, accumulate, C, j, vectors < NV ? vectors : NV);
    }
}

// R x N entries of C as sums over vectors of rows of A and columns of B, both contiguous and not shorter than a vector.
template <class T, int R, int N>
void sum_products(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, index_t i, index_t j) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    // Partial sums, so that an addition does not wait for the one before it.
    constexpr index_t W = S::W, parts = R * N < 4 ? 4 : 1;
    const index_t k = A.cols;
    const T *a[R], *b[N];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) a[r] = A.at(i + r, 0);
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) b[c] = B.at(0, j + c);
    Vec acc[parts][R][N] = {};
    const auto add = [&](index_t part, index_t p, auto change) {
        Vec column[N];
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) column[c] = change(S::load(b[c] + p));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vec x = change(S::load(a[r] + p));
#pragma GCC unroll 4
            for (int c = 0; c < N; ++c) acc[part][r][c] += x * column[c];
        }
    };
    const auto keep = [](Vec x) { return x; };
    index_t p = 0;
    for (; p + parts * W <= k; p += parts * W)
#pragma GCC unroll 4
        for (index_t part = 0; part < parts; ++part) add(part, p + part * W, keep);
    for (; p + W <= k; p += W) add(0, p, keep);
    if (p < k) {  // The last entries with some before them, which count as zero.
        const typename S::Mask fresh = number_lanes<S>() >= static_cast<typename S::Lane>(W - (k - p));
        add(0, k - W, [&](Vec x) { return fresh ? x : Vec{}; });  // in both factors: zero times infinity is NaN
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < N; ++c) {
            Vec sum = acc[0][r][c];
            for (index_t part = 1; part < parts; ++part) sum += acc[part][r][c];
            C(i + r, j + c) = alpha * S::add_lanes(sum) + (accumulate ? C(i + r, j + c) : T(0));
        }
}

// The same for all of C, or for the tiles that hold one of its triangles.
template <class T>
void sum_products(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, Part wanted) {
    constexpr int N = tile_rows == 8 ? 4 : 2;  // R * N sums stay in the registers
    const auto compute = [&](auto rows, index_t i) {
        index_t j = wanted == Part::upper ? i / N * N : 0;
        const index_t end = wanted == Part::lower && i + rows < C.cols ? i + rows : C.cols;
        for (; j < end && j + N <= C.cols; j += N) sum_products<T, rows, N>(alpha, A, B, accumulate, C, i, j);
        for (; j < end; ++j) sum_products<T, rows, 1>(alpha, A, B, accumulate, C, i, j);
    };
    index_t i = 0;
    for (; i + 4 <= C.rows; i += 4) compute(std::integral_constant<int, 4>{}, i);
    if (C.rows - i == 3)
        compute(std::integral_constant<int, 3>{}, i);
    else if (C.rows - i == 2)
        compute(std::integral_constant<int, 2>{}, i);
    else if (C.rows - i == 1)
        compute(std::integral_constant<int, 1>{}, i);
}

// Computes C if it has few rows and B is stored by rows, or with long sums by columns. Returns whether it did.
template <class T>
bool multiply_slim(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, T* scratch, Part wanted = Part::all) {
    constexpr index_t W = Simd<T>::W;
    const index_t m = C.rows;
    if (m <= few_lines && B.row_stride == 1 && A.cols >= least_sum_vectors * W) {
        View<const T> rows = A;
        if (A.col_stride != 1) {
            if (C.cols <= few_lines) return false;  // to copy A would take as long as the product
            pack<T>(A, T(1), scratch, A.cols);
            rows = {scratch, m, A.cols, A.cols, 1};
        }
        return sum_products<T>(alpha, rows, B, accumulate, C, wanted), true;
    }
    if (m > few_rows || B.col_stride != 1 || C.cols < W) return false;
    if (m == 1)
        multiply_few_rows<T, 1>(alpha, A, B, accumulate, C);
    else if (m == 2)
        multiply_few_rows<T, 2>(alpha, A, B, accumulate, C);
    else if (m == 3)
        multiply_few_rows<T, 3>(alpha, A, B, accumulate, C);
    else
        multiply_few_rows<T, 4>(alpha, A, B, accumulate, C);
    return true;
}

template <class T>
void product(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, T* scratch) {
    if (multiply_slim<T>(alpha, A, B, accumulate, C, scratch) || multiply_slim<T>(alpha, B.t(), A.t(), accumulate, C.t(), scratch)) return;
    compute_product<T, Part::all>(alpha, A, B, accumulate, C, scratch);
}

// The same for one triangle of a square C.
template <class T>
void product_triangle(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, bool lower, T* scratch) {
    if (C.rows <= few_lines && multiply_slim<T>(alpha, A, B, accumulate, C, scratch, lower ? Part::lower : Part::upper)) return;
    if (lower)
        compute_product<T, Part::lower>(alpha, A, B, accumulate, C, scratch);
    else
        compute_product<T, Part::upper>(alpha, A, B, accumulate, C, scratch);
}
