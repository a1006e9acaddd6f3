// potri and its reverse, one matrix per lane. Included only by isa_kernels.cpp, after lanes.h.

// The lower triangle of A := its inverse, `chains` columns at a time; the strict upper one := 0:
//     m_jj = 1 / l_jj,   m_ij = -(sum_{j <= p < i} l_ip m_pj) / l_ii.
template <class T>
void invert_triangle(const LaneView<T>& A) {
    const index_t n = A.rows;
    const Vec<T> one = Simd<T>::fill(T(1));
    Vec<T> reciprocal[lane_limit];
    for (index_t i = 0; i < n; ++i) {
        reciprocal[i] = one / A(i, i);
        for (index_t j = i + 1; j < n; ++j) A(i, j) = Vec<T>{};
    }
    for (index_t j = 0; j < n; j += chains) {
        const index_t width = n - j < chains ? n - j : chains;
        for (index_t i = j; i < n; ++i) {
            Vec<T> acc[chains] = {};
            if (width == chains)
                for (index_t p = j; p < i; ++p) {
                    const Vec<T> l = A(i, p);
#pragma GCC unroll 4
                    for (int r = 0; r < chains; ++r) acc[r] -= l * A(p, j + r);
                }
            else
                for (index_t p = j; p < i; ++p)
                    for (index_t r = 0; r < width; ++r) acc[r] -= A(i, p) * A(p, j + r);
            for (index_t r = 0; r < width; ++r)
                A(i, j + r) = j + r < i ? acc[r] * reciprocal[i] : j + r == i ? reciprocal[i] : Vec<T>{};
        }
    }
}

// The lower triangle of A := that of M' M, where M is the lower triangle in A. b_ij = sum_{p >= i} m_pi m_pj reads no row before
// i, so rows can be overwritten from the first on.
template <class T>
void multiply_by_transpose(const LaneView<T>& A) {
    const index_t n = A.rows;
    for (index_t i = 0; i < n; ++i)
        for (index_t j = 0; j <= i; j += chains) {
            const index_t width = i + 1 - j < chains ? i + 1 - j : chains;
            Vec<T> acc[chains] = {};
            if (width == chains)
                for (index_t p = i; p < n; ++p) {
                    const Vec<T> m = A(p, i);
#pragma GCC unroll 4
                    for (int r = 0; r < chains; ++r) acc[r] += m * A(p, j + r);
                }
            else
                for (index_t p = i; p < n; ++p)
                    for (index_t r = 0; r < width; ++r) acc[r] += A(p, i) * A(p, j + r);
            for (index_t r = 0; r < width; ++r) A(i, j + r) = acc[r];
        }
}

template <class T>
void lane_potri(Batch<const T> L, Batch<const T> X, const T* weight, T scale, T ratio, Batch<T> B, index_t begin,
                index_t end, void* scratch) {
    Vec<T>* buffer = lane_buffer<T>(scratch);
    Vec<T>* x_buffer = buffer + lane_limit * lane_limit;
    // The result is symmetric, so the storage order of L is right for B as well.
    const LaneView<T> b = lane_view<T>(buffer, L), x = lane_view<T>(x_buffer, X);
    const index_t n = L.rows, k = X.cols;
    const Vec<T> share = Simd<T>::fill(ratio);
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(L, group, buffer);
        invert_triangle<T>(b);
        multiply_by_transpose<T>(b);
        if (k > 0) gather<T>(X, group, x_buffer);
        Vec<T> factor = Simd<T>::fill(T(1));
        if (weight)
            for (index_t l = 0; l < Simd<T>::W; ++l)
                factor[l] = scale * weight[group.begin + (l < group.filled ? l : group.filled - 1)];
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) {
                Vec<T> sum{};
                for (index_t p = 0; p < k; ++p) sum += x(i, p) * x(j, p);
                if (weight) b(i, j) = factor * (b(i, j) + share * sum);
                b(j, i) = b(i, j);
            }
        scatter<T>(buffer, B, group);
    });
}

// X := L^-T L^-1 A.
template <class T>
void lane_cho_solve(Batch<const T> L, Batch<const T> A, Batch<T> X, index_t begin, index_t end, void* scratch) {
    Vec<T>* l_buffer = lane_buffer<T>(scratch);
    Vec<T>* x_buffer = l_buffer + lane_limit * lane_limit;
    Vec<T>* reordered = x_buffer + lane_limit * lane_limit;
    const LaneView<T> l = lane_view<T>(l_buffer, L), x = lane_view<T>(x_buffer, A);
    for_groups<T>(begin, end, [&](Group<T> group) {
        // A factor that all items share is gathered once.
        if (L.batch_stride != 0 || group.begin == begin) gather<T>(L, group, l_buffer);
        gather<T>(A, group, x_buffer);
        substitute<T>(l, x);
        substitute<T>(l.t().reversed(), x.reversed_rows());
        scatter<T>(reorder_for<T>(X, A, x_buffer, reordered), X, group);
    });
}

// S = -(G + G');  S := L^-1 S;  S := S L^-T;  gL = tril(L^-T S).
template <class T>
void lane_potri_reverse(Batch<const T> L, Batch<const T> gB, Batch<T> gL, index_t begin, index_t end, void* scratch) {
    Vec<T>* l_buffer = lane_buffer<T>(scratch);
    Vec<T>* g_buffer = l_buffer + lane_limit * lane_limit;
    Vec<T>* s_buffer = g_buffer + lane_limit * lane_limit;
    const LaneView<T> l = lane_view<T>(l_buffer, L), g = lane_view<T>(g_buffer, gB), s = lane_view<T>(s_buffer, gL);
    const index_t n = L.rows;
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(L, group, l_buffer);
        gather<T>(gB, group, g_buffer);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) s(i, j) = s(j, i) = -(g(i, j) + g(j, i));
        substitute<T>(l, s);
        substitute<T>(l, s.t());
        substitute<T>(l.t().reversed(), s.reversed_rows());
        for (index_t i = 0; i < n; ++i)
            for (index_t j = i + 1; j < n; ++j) s(i, j) = Vec<T>{};
        scatter<T>(s_buffer, gL, group);
    });
}
