// LQ factorisation and its reverse on batches of small matrices, one matrix per lane (see lanes.h). Included only
// by isa_kernels.cpp.

template <class T>
[[gnu::always_inline]] inline Vec<T> with_sign_of(Vec<T> x, Vec<T> y) {
    using Mask = typename Simd<T>::Mask;
    const Mask sign = reinterpret_cast<Mask>(Simd<T>::fill(-T(0)));
    return reinterpret_cast<Vec<T>>((reinterpret_cast<Mask>(x) & ~sign) | (reinterpret_cast<Mask>(y) & sign));
}

// Returns the reflectors of row k of A, (alpha, x). Lanes whose squares could over- or underflow are computed one by one.
template <class T>
Reflector<Vec<T>> make_lane_reflector(const LaneView<T>& A, index_t k) {
    using S = Simd<T>;
    const index_t n = A.cols;
    Vec<T> sums[chains] = {};
    index_t j = k + 1;
    for (; j + chains <= n; j += chains)
#pragma GCC unroll 4
        for (int c = 0; c < chains; ++c) sums[c] += A(k, j + c) * A(k, j + c);
    for (; j < n; ++j) sums[0] += A(k, j) * A(k, j);
    const Vec<T> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]), alpha = A(k, k), all = alpha * alpha + sum;
    const Vec<T> beta = -with_sign_of<T>(take_square_roots<T>(all), alpha);
    Reflector<Vec<T>> h{beta, (beta - alpha) / beta, S::fill(T(1)) / (alpha - beta)};
    const auto safe = (sum >= S::fill(SafeSquares<T>::smallest)) & (all <= S::fill(SafeSquares<T>::largest));
    if (any_lane<T>(~safe))
        for (index_t l = 0; l < S::W; ++l) {
            if (safe[l]) continue;
            T* const row = reinterpret_cast<T*>(A.at(k, k)) + l;
            const Reflector<T> one = make_careful_reflector<T>(row, n - k, A.col_stride * S::W);
            h.beta[l] = one.beta;
            h.tau[l] = one.tau;
            h.scale[l] = one.scale;
        }
    return h;
}

// Rows [first, last) of A := A - (A v) tau v' in the columns from k on, with v = (1, row k right of the diagonal).
template <class T>
void reflect_rows(const LaneView<T>& A, index_t k, Vec<T> tau, index_t first, index_t last) {
    const index_t n = A.cols;
    index_t i = first;
    for (; i + chains <= last; i += chains) {
        Vec<T> acc[chains];
#pragma GCC unroll 4
        for (int r = 0; r < chains; ++r) acc[r] = A(i + r, k);
        for (index_t j = k + 1; j < n; ++j) {
            const Vec<T> v = A(k, j);
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) acc[r] += A(i + r, j) * v;
        }
#pragma GCC unroll 4
        for (int r = 0; r < chains; ++r) {
            acc[r] *= tau;
            A(i + r, k) -= acc[r];
        }
        for (index_t j = k + 1; j < n; ++j) {
            const Vec<T> v = A(k, j);
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) A(i + r, j) -= acc[r] * v;
        }
    }
    for (; i < last; ++i) {
        Vec<T> acc = A(i, k);
        for (index_t j = k + 1; j < n; ++j) acc += A(i, j) * A(k, j);
        acc *= tau;
        A(i, k) -= acc;
        for (index_t j = k + 1; j < n; ++j) A(i, j) -= acc * A(k, j);
    }
}

// Replaces A by its reflectors right of the diagonal, and L on and below it.
template <class T>
void reduce_rows(const LaneView<T>& A, Vec<T>* tau) {
    const index_t rank = A.rows < A.cols ? A.rows : A.cols;
    for (index_t k = 0; k < rank; ++k) {
        if (k + 1 == A.cols) {  // nothing right of the diagonal
            tau[k] = Vec<T>{};
            continue;
        }
        const Reflector<Vec<T>> h = make_lane_reflector<T>(A, k);
        tau[k] = h.tau;
        for (index_t j = k + 1; j < A.cols; ++j) A(k, j) *= h.scale;
        reflect_rows<T>(A, k, h.tau, k + 1, A.rows);
        A(k, k) = h.beta;
    }
}

// Replaces the reflectors in the first `rank` rows of A by the rows of Q.
template <class T>
void form_orthogonal_rows(const LaneView<T>& A, index_t rank, const Vec<T>* tau) {
    const Vec<T> one = Simd<T>::fill(T(1));
    for (index_t k = rank - 1; k >= 0; --k) {
        reflect_rows<T>(A, k, tau[k], k + 1, rank);
        for (index_t j = 0; j < k; ++j) A(k, j) = Vec<T>{};
        A(k, k) = one - tau[k];
        for (index_t j = k + 1; j < A.cols; ++j) A(k, j) *= -tau[k];
    }
}

// L and Q of items [begin, end); L alone if Q.data is null.
template <class T>
void lane_gelqf(Batch<const T> A, Batch<T> Q, Batch<T> L, bool positive, index_t begin, index_t end, void* scratch) {
    const index_t m = A.rows, n = A.cols, rank = m < n ? m : n;
    Vec<T>* const work = lane_buffer<T>(scratch);
    Vec<T>* const l_buffer = work + m * n;
    Vec<T>* const tau = l_buffer + m * rank;
    const LaneView<T> a{work, m, n, n, 1}, l{l_buffer, m, rank, rank, 1};
    const Vec<T> zero{}, one = Simd<T>::fill(T(1));
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, work);
        reduce_rows<T>(a, tau);
        for (index_t j = 0; j < rank; ++j) {
            for (index_t i = 0; i < j; ++i) l(i, j) = zero;
            const Vec<T> sign = positive ? (a(j, j) < zero ? -one : one) : one;
            for (index_t i = j; i < m; ++i) l(i, j) = sign * a(i, j);
        }
        scatter<T>(l_buffer, L, group);
        if (!Q.data) return;
        if (positive)  // the signs are kept in l, because the diagonal of a is overwritten by that of Q
            for (index_t j = 0; j < rank; ++j) l(j, j) = a(j, j) < zero ? -one : one;
        form_orthogonal_rows<T>(a, rank, tau);
        if (positive)
            for (index_t i = 0; i < rank; ++i)
                for (index_t j = 0; j < n; ++j) a(i, j) *= l(i, i);
        scatter<T>(work, Q, group);
    });
}

// C(i, j) := [C(i, j)] +- sum over k in [first(i), A.cols) of A(i, k) B(k, j), for j < width(i).
template <class T, bool Subtract, class First, class Width>
void lane_multiply(const LaneView<T>& A, const LaneView<T>& B, bool accumulate, const LaneView<T>& C, First first,
                   Width width) {
    for (index_t i = 0; i < C.rows; ++i) {
        const index_t from = first(i), end = width(i);
        index_t j = 0;
        for (; j + chains <= end; j += chains) {
            Vec<T> acc[chains] = {};
            for (index_t k = from; k < A.cols; ++k) {
                const Vec<T> x = A(i, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] += x * B(k, j + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) {
                const Vec<T> old = accumulate ? C(i, j + r) : Vec<T>{};
                C(i, j + r) = Subtract ? old - acc[r] : old + acc[r];
            }
        }
        for (; j < end; ++j) {
            Vec<T> acc{};
            for (index_t k = from; k < A.cols; ++k) acc += A(i, k) * B(k, j);
            const Vec<T> old = accumulate ? C(i, j) : Vec<T>{};
            C(i, j) = Subtract ? old - acc : old + acc;
        }
    }
}

// M (rank x rank) := Z of gelqf.h: the lower triangle of L1' gL1 - gQ Q', mirrored, plus K - K' above the diagonal. K = gL2' L2 is
// computed in `spare`. gQ.data or gL.data may be null.
template <class T>
void form_middle(const LaneView<T>& Q, const LaneView<T>& L, const LaneView<T>& gQ, const LaneView<T>& gL,
                 const LaneView<T>& M, const LaneView<T>& spare) {
    const index_t rank = M.rows, below = L.rows - rank;
    const auto from_start = [](index_t) { return index_t(0); };
    const auto from_diagonal = [](index_t i) { return i; };
    const auto to_diagonal = [](index_t i) { return i + 1; };
    const auto whole = [=](index_t) { return rank; };
    if (gL.data)
        lane_multiply<T, false>(L.block(0, 0, rank, rank).t(), gL.block(0, 0, rank, rank), false, M, from_diagonal,
                                to_diagonal);
    if (gQ.data) lane_multiply<T, true>(gQ, Q.t(), gL.data != nullptr, M, from_start, to_diagonal);
    for (index_t i = 0; i < rank; ++i)
        for (index_t j = 0; j < i; ++j) M(j, i) = M(i, j);
    if (below == 0 || !gL.data) return;
    lane_multiply<T, false>(gL.block(rank, 0, below, rank).t(), L.block(rank, 0, below, rank), false, spare, from_start,
                            whole);
    for (index_t i = 0; i < rank; ++i)
        for (index_t j = 0; j < i; ++j) M(j, i) += spare(j, i) - spare(i, j);
}

template <class T>
LaneView<T> view_upper(const LaneView<T>& L, index_t rank) {
    return L.block(0, 0, rank, rank).t().reversed();
}

// The gradient of items [begin, end); gelqf.h has the formulas. gQ.data or gL.data may be null.
template <class T>
void lane_gelqf_vjp(Batch<const T> Q, Batch<const T> L, Batch<const T> gQ, Batch<const T> gL, Batch<T> gA, index_t begin,
                    index_t end, void* scratch) {
    const index_t m = gA.rows, n = gA.cols, rank = m < n ? m : n;
    Vec<T>* const q_buffer = lane_buffer<T>(scratch);
    Vec<T>* const l_buffer = q_buffer + rank * n;
    Vec<T>* const gl_buffer = l_buffer + m * rank;
    Vec<T>* const ga_buffer = gl_buffer + m * rank;
    Vec<T>* const m_buffer = ga_buffer + m * n;
    Vec<T>* const spare_buffer = m_buffer + rank * rank;
    const LaneView<T> q{q_buffer, rank, n, n, 1}, l{l_buffer, m, rank, rank, 1}, ga{ga_buffer, m, n, n, 1};
    const LaneView<T> gq{gQ.data ? ga_buffer : nullptr, rank, n, n, 1}, gl{gL.data ? gl_buffer : nullptr, m, rank, rank, 1};
    const LaneView<T> M{m_buffer, rank, rank, rank, 1}, spare{spare_buffer, rank, rank, rank, 1};
    const LaneView<T> top = ga.block(0, 0, rank, n), bottom = ga.block(rank, 0, m - rank, n);
    const auto from_start = [](index_t) { return index_t(0); };
    const auto whole = [=](index_t) { return n; };
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(Q, group, q_buffer);
        gather<T>(L, group, l_buffer);
        if (gQ.data) gather<T>(gQ, group, ga_buffer);
        if (gL.data) gather<T>(gL, group, gl_buffer);
        form_middle<T>(q, l, gq, gl, M, spare);
        lane_multiply<T, false>(M, q, gQ.data != nullptr, top, from_start, whole);
        substitute<T>(view_upper<T>(l, rank), top.reversed_rows());
        if (gL.data)
            lane_multiply<T, false>(gl.block(rank, 0, m - rank, rank), q, false, bottom, from_start, whole);
        else
            for (index_t e = rank * n; e < m * n; ++e) ga_buffer[e] = Vec<T>{};
        scatter<T>(ga_buffer, gA, group);
    });
}

// The gradient when only L was computed. Q = L1^-1 A1, so gA = P A1 with P = [L1^-T Z; gL2] L1^-1.
template <class T>
void lane_gelqf_l_vjp(Batch<const T> A, Batch<const T> L, Batch<const T> gL, Batch<T> gA, index_t begin, index_t end,
                      void* scratch) {
    const index_t m = A.rows, n = A.cols, rank = m < n ? m : n;
    Vec<T>* const a_buffer = lane_buffer<T>(scratch);
    Vec<T>* const l_buffer = a_buffer + m * n;
    Vec<T>* const gl_buffer = l_buffer + m * rank;
    Vec<T>* const ga_buffer = gl_buffer + m * rank;
    Vec<T>* const m_buffer = ga_buffer + m * n;
    Vec<T>* const spare_buffer = m_buffer + rank * rank;
    const LaneView<T> a{a_buffer, rank, n, n, 1}, l{l_buffer, m, rank, rank, 1}, gl{gl_buffer, m, rank, rank, 1};
    const LaneView<T> ga{ga_buffer, m, n, n, 1}, nothing{nullptr, 0, 0, 0, 0};
    const LaneView<T> M{m_buffer, rank, rank, rank, 1}, spare{spare_buffer, rank, rank, rank, 1};
    const LaneView<T> top = gl.block(0, 0, rank, rank);
    const auto from_start = [](index_t) { return index_t(0); };
    const auto whole = [=](index_t) { return n; };
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, a_buffer);
        gather<T>(L, group, l_buffer);
        gather<T>(gL, group, gl_buffer);
        form_middle<T>(nothing, l, nothing, gl, M, spare);
        for (index_t i = 0; i < rank; ++i)
            for (index_t j = 0; j < rank; ++j) top(i, j) = M(i, j);
        substitute<T>(view_upper<T>(l, rank), top.reversed_rows());
        // P := P L1^-1 is P' := L1^-T P'.
        substitute<T>(view_upper<T>(l, rank), gl.t().reversed_rows());
        lane_multiply<T, false>(gl, a, false, ga, from_start, whole);
        scatter<T>(ga_buffer, gA, group);
    });
}
