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

template <class T>
void product(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, T* scratch) {
    compute_product<T, Part::all>(alpha, A, B, accumulate, C, scratch);
}

// The same for one triangle of a square C.
template <class T>
void product_triangle(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, bool lower, T* scratch) {
    if (lower)
        compute_product<T, Part::lower>(alpha, A, B, accumulate, C, scratch);
    else
        compute_product<T, Part::upper>(alpha, A, B, accumulate, C, scratch);
}
