// C := alpha A B (+ C) on one thread: for operands of a few hundred, where a BLAS call costs more than it computes.
// Included by isa_kernels.cpp alone.
//
// The register tile is tile_rows x (NV vectors) of C. A is read by broadcast straight from where it lies; B is read in
// whole vectors, and goes through a packed panel when it is stored the other way or when the panel is not full.

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

template <class T, int NV>
void product_panel(T alpha, View<const T> A, const T* b, index_t ldb, bool accumulate, View<T> C) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    for (index_t i = 0; i < C.rows; i += tile_rows) {
        const index_t height = C.rows - i < tile_rows ? C.rows - i : tile_rows;
        const T* a[tile_rows];
        // Rows past the end read the last row again; their results are not stored.
        for (int r = 0; r < tile_rows; ++r) a[r] = A.at(i + (r < height ? r : height - 1), 0);
        Vec acc[tile_rows][NV];
        product_tile<T, NV>(A.cols, a, A.col_stride, b, ldb, acc);
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

template <class T>
void product(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, T* scratch) {
    constexpr index_t W = Simd<T>::W;
    constexpr index_t full = tile_vectors * W;
    const index_t k = A.cols;
    for (index_t j = 0; j < C.cols; j += full) {
        const index_t width = C.cols - j < full ? C.cols - j : full;
        const index_t vectors = (width + W - 1) / W;
        const View<const T> panel = B.columns(j, width);
        const T* b = panel.data;
        index_t ldb = panel.row_stride;
        if (panel.col_stride != 1 || width != vectors * W) {
            ldb = vectors * W;
            if (width != ldb)
                for (index_t p = 0; p < k; ++p)
                    for (index_t c = width; c < ldb; ++c) scratch[p * ldb + c] = T(0);
            pack<T>(panel, T(1), scratch, ldb);
            b = scratch;
        }
        const View<T> target = C.columns(j, width);
        if (vectors == 1)
            product_panel<T, 1>(alpha, A, b, ldb, accumulate, target);
        else if (vectors == 2)
            product_panel<T, 2>(alpha, A, b, ldb, accumulate, target);
        else
            product_panel<T, tile_vectors>(alpha, A, b, ldb, accumulate, target);
    }
}
