// Leaves of the recursions: one matrix of order <= leaf on one thread, in a row-major buffer with leading dimension
// `leaf`. Included only by isa_kernels.cpp.

// Cholesky, right-looking on the transpose. With U = L' row-major, step k is
//     u_kk = sqrt(a_kk);  u_k* = a_k* / u_kk;  a_i* -= u_ki u_k*  for i > k,
// whole rows at a time. Entries left of the diagonal are overwritten and never read.
template <class T>
int potrf_leaf(View<T> A, T* scratch) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    constexpr index_t W = S::W;
    const index_t n = A.rows;
    T(&U)[leaf][leaf] = *reinterpret_cast<T(*)[leaf][leaf]>(scratch);
    const index_t end = (n + W - 1) / W * W;
    for (index_t k = 0; k < n; ++k)
        for (index_t j = n; j < end; ++j) U[k][j] = T(0);
    pack<T>(A.t(), T(1), &U[0][0], leaf);
    T roots[leaf];
    for (index_t k = 0; k < n; ++k) {
        const T pivot = U[k][k];
        const T largest = std::numeric_limits<T>::max();
        if (!(pivot > T(0) && pivot <= largest))  // finite but not positive, or else NaN or infinite
            return pivot <= T(0) && pivot >= -largest ? int(k + 1) : -int(k + 1);
        // Roots are written at the end: a single number stored into a row that is read as vectors would stall those reads.
        const T root = roots[k] = square_root(pivot);
        const Vec scale = S::fill(T(1) / root);
        for (index_t j = k / W * W; j < end; j += W) S::store(&U[k][j], S::load(&U[k][j]) * scale);
        for (index_t i = k + 1; i < n; ++i) {
            const Vec x = S::fill(U[k][i]);
            for (index_t j = i / W * W; j < end; j += W)
                S::store(&U[i][j], S::load(&U[i][j]) - x * S::load(&U[k][j]));
        }
    }
    for (index_t k = 0; k < n; ++k) U[k][k] = roots[k];
    unpack<T>(&U[0][0], leaf, A.t());
    return 0;
}

// x[v0 ...] := (S_k* - sum_j u_kj S_j*) * inverse on NV vectors; two chains of accumulators hide the latency.
template <class T, int NV>
void reverse_row(const T (&U)[leaf][leaf], const T (&S)[leaf][leaf], index_t k, index_t n, index_t v0, T inverse, T* x) {
    using Vc = Simd<T>;
    typename Vc::Vec even[NV], odd[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
        even[v] = Vc::load(&S[k][(v0 + v) * Vc::W]);
        odd[v] = typename Vc::Vec{};
    }
    index_t j = k + 1;
    for (; j + 1 < n; j += 2) {
        const typename Vc::Vec a = Vc::fill(U[k][j]), b = Vc::fill(U[k][j + 1]);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            even[v] -= a * Vc::load(&S[j][(v0 + v) * Vc::W]);
            odd[v] += b * Vc::load(&S[j + 1][(v0 + v) * Vc::W]);
        }
    }
    if (j < n)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) even[v] -= Vc::fill(U[k][j]) * Vc::load(&S[j][(v0 + v) * Vc::W]);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) Vc::store(x + (v0 + v) * Vc::W, (even[v] - odd[v]) * Vc::fill(inverse));
}

// Reverse sweep of the above. S holds the symmetric G + G' of the trailing block in full; step k, from the last, is
//     x = (g_k* - S u_k*) / u_kk,   s_kk = (g_kk - x . u_k*) / u_kk,   s_k* = s_*k = x.
template <class T>
void potrf_reverse_leaf(View<const T> L, View<T> G, T* scratch) {
    if constexpr (ReverseBlocks<T>::fits) return potrf_reverse_blocks<T>(L, G, scratch);
    using Vc = Simd<T>;
    using Vec = typename Vc::Vec;
    constexpr index_t W = Vc::W;
    const index_t n = L.rows, vectors = (n + W - 1) / W;
    T(&U)[leaf][leaf] = *reinterpret_cast<T(*)[leaf][leaf]>(scratch);
    T(&S)[leaf][leaf] = *reinterpret_cast<T(*)[leaf][leaf]>(scratch + leaf * leaf);
    pack<T>(L.t(), T(1), &U[0][0], leaf);
    pack<T>(G.readonly().t(), T(1), &S[0][0], leaf);
    for (index_t k = 0; k < n; ++k) {
        for (index_t j = n; j < leaf; ++j) U[k][j] = S[k][j] = T(0);
        for (index_t j = 0; j < k; ++j) U[k][j] = T(0);
    }
    const auto numbers = number_lanes_of<T>();
    T x[leaf];
    for (index_t k = n - 1; k >= 0; --k) {
        const index_t first = (k + 1) / W;  // vectors before it hold nothing right of the diagonal
        const T inverse = T(1) / U[k][k];
        index_t v = first;
        if constexpr (leaf / W >= 4)
            for (; v + 4 <= vectors; v += 4) reverse_row<T, 4>(U, S, k, n, v, inverse, x);
        for (; v + 2 <= vectors; v += 2) reverse_row<T, 2>(U, S, k, n, v, inverse, x);
        for (; v < vectors; ++v) reverse_row<T, 1>(U, S, k, n, v, inverse, x);
        // Up to the diagonal S still holds what G held there, so vectors are masked before they are used.
        Vec sum{};
        for (v = first; v < vectors; ++v) {
            const auto right = numbers > static_cast<typename Vc::Lane>(k - v * W);
            const Vec row = right ? Vc::load(x + v * W) : Vec{};
            sum += row * Vc::load(&U[k][v * W]);
            Vc::store(&S[k][v * W], right ? row : Vc::load(&S[k][v * W]));
        }
        T dot = 0;
        for (index_t l = 0; l < W; ++l) dot += sum[l];
        S[k][k] = (S[k][k] - dot) * inverse;
        for (index_t i = k + 1; i < n; ++i) S[i][k] = x[i];
    }
    // S is symmetric, so its rows can be stored as rows or as columns of G.
    unpack<T>(&S[0][0], leaf, G.col_stride == 1 ? G : G.t());
}

// packed := L, row-major, with zeros above the diagonal up to the end of a group of rows_at_once rows; Inverted: with the reciprocals of the
// diagonal in its place, for a solve.
template <class T, bool Inverted>
void pack_triangle(View<const T> L, T* packed) {
    const index_t n = L.rows;
    if (L.col_stride == 1)
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) packed[i * leaf + j] = L.at(i, 0)[j];
    else if (L.col_stride == -1)
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) packed[i * leaf + j] = L.at(i, 0)[-j];
    else
        pack<T>(L, T(1), packed, leaf);
    for (index_t i = 0; i < n; ++i)
        for (index_t j = i + 1; j < n && j < i / rows_at_once * rows_at_once + rows_at_once; ++j) packed[i * leaf + j] = T(0);
    if (Inverted)
        for (index_t i = 0; i < n; ++i) packed[i * leaf + i] = T(1) / packed[i * leaf + i];
}

// Forward substitution on NV vectors of columns in rows [i, i + R), after the rows before: the part left of the diagonal block is a
// product, the block itself is solved in registers.
template <class T, int NV, int R>
[[gnu::always_inline]] inline void solve_rows(const T* L, index_t i, T* x, index_t ldx) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    Vec acc[R][NV];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[r][v] = S::load(x + (i + r) * ldx + v * S::W);
    for (index_t k = 0; k < i; ++k) {
        Vec row[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) row[v] = S::load(x + k * ldx + v * S::W);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vec l = S::fill(L[(i + r) * leaf + k]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) acc[r][v] -= l * row[v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int s = 0; s < r; ++s) {
            const Vec l = S::fill(L[(i + r) * leaf + i + s]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) acc[r][v] -= l * acc[s][v];
        }
        const Vec inverse = S::fill(L[(i + r) * leaf + i + r]);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[r][v] *= inverse;
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) S::store(x + (i + r) * ldx + v * S::W, acc[r][v]);
}

// Rows [i, i + R) of the product with the triangle, for NV vectors of columns. Rows further down are not read.
template <class T, int NV, int R>
[[gnu::always_inline]] inline void multiply_rows(const T* L, index_t i, T* x, index_t ldx) {
    using S = Simd<T>;
    using Vec = typename S::Vec;
    Vec acc[R][NV] = {};
    for (index_t k = 0; k < i + R; ++k) {
        Vec row[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) row[v] = S::load(x + k * ldx + v * S::W);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vec l = S::fill(L[(i + r) * leaf + k]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) acc[r][v] += l * row[v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) S::store(x + (i + r) * ldx + v * S::W, acc[r][v]);
}

// x := L^-1 x or L x for NV vectors of columns, a group of rows at a time: a solve begins with the first group, a product with the last
// one, so that rows that are still needed have not been overwritten. The rows after the last full group are one of their own.
template <class T, bool Solve, int NV>
void triangle_panel(const T* L, index_t n, T* x, index_t ldx) {
    const index_t full = n / rows_at_once * rows_at_once;
    const auto compute_rest = [&](auto compute) {
        if (n - full == 1)
            compute(std::integral_constant<int, 1>{}, full);
        else if (n - full == 2)
            compute(std::integral_constant<int, 2>{}, full);
        else if (n - full == 3)
            compute(std::integral_constant<int, 3>{}, full);
    };
    const auto compute_rows = [&](auto rows, index_t i) {
        Solve ? solve_rows<T, NV, rows>(L, i, x, ldx) : multiply_rows<T, NV, rows>(L, i, x, ldx);
    };
    const std::integral_constant<int, rows_at_once> group{};
    if (Solve) {
        for (index_t i = 0; i < full; i += rows_at_once) compute_rows(group, i);
        compute_rest(compute_rows);
    } else {
        compute_rest(compute_rows);
        for (index_t i = full - rows_at_once; i >= 0; i -= rows_at_once) compute_rows(group, i);
    }
}

template <class T, bool Solve>
void triangle_leaf(View<const T> L, View<T> X, T* scratch) {
    constexpr index_t W = Simd<T>::W, most = 4;  // vectors of columns at a time
    const index_t n = X.rows;
    T* packed = scratch;
    T* panel = scratch + leaf * leaf;  // leaf x most * W at most: leaf x 64
    pack_triangle<T, Solve>(L, packed);
    const auto compute = [&](index_t vectors, T* x, index_t ldx) {
        if (vectors == 1)
            triangle_panel<T, Solve, 1>(packed, n, x, ldx);
        else if (vectors == 2)
            triangle_panel<T, Solve, 2>(packed, n, x, ldx);
        else if (vectors == 3)
            triangle_panel<T, Solve, 3>(packed, n, x, ldx);
        else
            triangle_panel<T, Solve, most>(packed, n, x, ldx);
    };
    for (index_t j = 0; j < X.cols;) {
        const index_t left = X.cols - j, whole = left < most * W ? left / W : most;
        if (X.col_stride == 1 && whole > 0) {
            compute(whole, X.at(0, j), X.row_stride);
            j += whole * W;
            continue;
        }
        const index_t width = left < most * W ? left : most * W, vectors = (width + W - 1) / W, ldx = vectors * W;
        const View<T> columns = X.columns(j, width);
        for (index_t i = 0; i < n; ++i)
            for (index_t c = width; c < ldx; ++c) panel[i * ldx + c] = T(0);
        pack<T>(columns, T(1), panel, ldx);
        compute(vectors, panel, ldx);
        unpack<T>(panel, ldx, columns);
        j += width;
    }
}
