// Batches of small matrices: W matrices at a time, one per vector lane. Included only by isa_kernels.cpp.
//
// Items are dense, so a batch is a table of items x elements. `gather` transposes W rows of it into a buffer whose
// k-th vector holds element k of all W items. The textbook loops then run on vectors instead of numbers.

template <class T>
using Vec = typename Simd<T>::Vec;

// A mask with one entry per lane: all bits set, or 0.
template <class T>
using LaneMask = typename Simd<T>::Mask;

// A matrix of vectors: strides count vectors.
template <class T>
using LaneView = View<Vec<T>>;

// The W items from `begin` on. Only the first `filled` exist; the others repeat the last item and are not written back.
template <class T>
struct Group {
    index_t begin, filled;
};

template <class T>
void gather(const Batch<const T>& batch, Group<T> group, Vec<T>* buffer) {
    using S = Simd<T>;
    constexpr index_t W = S::W;
    const index_t size = batch.rows * batch.cols;
    const T* item[W];
    for (index_t l = 0; l < W; ++l)
        item[l] = batch.data + (group.begin + (l < group.filled ? l : group.filled - 1)) * batch.batch_stride;
    const index_t ahead = size * sizeof(T) <= prefetched_item_bytes ? W * batch.batch_stride : 0;
    index_t e = 0;
    for (; e + W <= size; e += W) {
        Vec<T> x[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) {
            x[l] = S::load(item[l] + e);
            __builtin_prefetch(item[l] + e + ahead);
        }
        S::transpose(x);
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) buffer[e + l] = x[l];
    }
    if (size == 1 && batch.batch_stride == 1 && group.filled == W) {
        buffer[0] = S::load(item[0]);
        return;
    }
    const index_t rest = size - e;
    if (rest >= transposed_rest) {
        // One more block. It begins before the last elements; or, where items are shorter than a vector, it ends after them, if that is
        // before the end of the batch.
        const index_t last = (group.begin + group.filled - 1) * batch.batch_stride;
        const bool is_short = size < W;
        if (!is_short || last + W <= (batch.count - 1) * batch.batch_stride + size) {
            const index_t from = is_short ? 0 : size - W;
            Vec<T> x[W];
#pragma GCC unroll 16
            for (int l = 0; l < W; ++l) x[l] = S::load(item[l] + from);
            S::transpose(x);
#pragma GCC unroll 16
            for (int l = 0; l < W; ++l)
                if (!is_short || l < size) buffer[from + l] = x[l];
            return;
        }
    }
    for (; e < size; ++e) {
        // Collected in a register: numbers stored one by one cannot be read back as a vector before all of them are in the cache.
        Vec<T> x;
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) x[l] = item[l][e];
        buffer[e] = x;
    }
}

template <class T>
void scatter(const Vec<T>* buffer, const Batch<T>& batch, Group<T> group) {
    using S = Simd<T>;
    constexpr index_t W = S::W;
    const index_t size = batch.rows * batch.cols;
    T* item = batch.data + group.begin * batch.batch_stride;
    const index_t ahead = size * sizeof(T) <= prefetched_item_bytes ? W * batch.batch_stride : 0;
    index_t e = 0;
    for (; e + W <= size; e += W) {
        Vec<T> x[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) x[l] = buffer[e + l];
        S::transpose(x);
        if (group.filled == W)
#pragma GCC unroll 16
            for (int l = 0; l < W; ++l) {
                S::store(item + l * batch.batch_stride + e, x[l]);
                __builtin_prefetch(item + l * batch.batch_stride + e + ahead, 1);
            }
        else
            for (index_t l = 0; l < group.filled; ++l) S::store(item + l * batch.batch_stride + e, x[l]);
    }
    if (size == 1 && batch.batch_stride == 1 && group.filled == W) return S::store(item, buffer[0]);
    const bool is_short = size < W;
    if (size - e >= transposed_rest && (!is_short || batch.batch_stride == size)) {
        // The last elements as one more block, which begins before them. Items that are shorter than a vector and next to each other are
        // stored in rising order, so that each overwrites what the one before has stored too much; the last ones are stored exactly.
        const index_t from = is_short ? 0 : size - W;
        Vec<T> x[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) x[l] = buffer[from + (!is_short || l < size ? l : 0)];
        S::transpose(x);
#pragma GCC unroll 16
        for (index_t l = 0; l < W; ++l) {
            T* const target = item + l * batch.batch_stride + from;
            if (l < group.filled && (!is_short || (group.filled - l) * size >= W))
                S::store(target, x[l]);
            else if (l < group.filled)
                __builtin_memcpy(target, &x[l], static_cast<std::size_t>(size) * sizeof(T));
        }
        return;
    }
    for (; e < size; ++e)
        for (index_t l = 0; l < group.filled; ++l) item[l * batch.batch_stride + e] = buffer[e][l];
}

template <class T, class Body>
void for_groups(index_t begin, index_t end, Body body) {
    constexpr index_t W = Simd<T>::W;
    for (index_t b = begin; b < end; b += W) body(Group<T>{b, end - b < W ? end - b : W});
}

template <class T>
LaneView<T> lane_view(Vec<T>* buffer, const Batch<const T>& like) {
    return {buffer, like.rows, like.cols, like.row_stride, like.col_stride};
}
template <class T>
LaneView<T> lane_view(Vec<T>* buffer, const Batch<T>& like) {
    return {buffer, like.rows, like.cols, like.row_stride, like.col_stride};
}

// Returns the elements of `buffer`, which are in the storage order of `from`, in the storage order of `batch`, as `scatter` needs
// them: `buffer` itself, or a copy in `other` if one of the two is row-major and the other column-major.
template <class T>
const Vec<T>* reorder_for(const Batch<T>& batch, const Batch<const T>& from, Vec<T>* buffer, Vec<T>* other) {
    if (batch.row_stride == from.row_stride && batch.col_stride == from.col_stride) return buffer;
    const LaneView<T> source = lane_view<T>(buffer, from), target = lane_view<T>(other, batch);
    for (index_t i = 0; i < batch.rows; ++i)
        for (index_t j = 0; j < batch.cols; ++j) target(i, j) = source(i, j);
    return other;
}

template <class T>
Vec<T>* lane_buffer(void* scratch) {
    return reinterpret_cast<Vec<T>*>((reinterpret_cast<std::uintptr_t>(scratch) + 63) / 64 * 64);
}

template <class T>
Vec<T> take_square_roots(Vec<T> x) {
    for (int l = 0; l < Simd<T>::W; ++l) x[l] = square_root(x[l]);
    return x;
}

template <class T>
[[gnu::always_inline]] inline Vec<T> absolute(Vec<T> x) {
    return x < Vec<T>{} ? -x : x;
}

template <class T>
[[gnu::always_inline]] inline bool any_lane(const LaneMask<T>& mask) {
    typename Simd<T>::Lane found = 0;
#pragma GCC unroll 16
    for (int l = 0; l < Simd<T>::W; ++l) found |= mask[l];
    return found != 0;
}

// Left-looking Cholesky: l_ij = (a_ij - sum_{k<j} l_ik l_jk) / l_jj. A lane whose pivot is not positive and finite
// continues with pivot 1; its first bad pivot is its status.
template <class T>
void factor(const LaneView<T>& A, typename Simd<T>::Mask& status) {
    using S = Simd<T>;
    const index_t n = A.rows;
    const Vec<T> one = S::fill(T(1)), largest = S::fill(std::numeric_limits<T>::max());
    status = typename S::Mask{};
    for (index_t j = 0; j < n; ++j) {
        Vec<T> pivot = A(j, j);
        for (index_t k = 0; k != j; ++k) pivot -= A(j, k) * A(j, k);
        const auto good = (pivot > Vec<T>{}) & (pivot <= largest);
        const auto finite = (pivot <= largest) & (pivot >= -largest);
        const auto order = typename S::Mask{} + static_cast<typename S::Lane>(j + 1);
        const auto code = finite ? order : -order;
        status = (good | (status != 0)) ? status : code;
        pivot = good ? pivot : one;
        const Vec<T> root = take_square_roots<T>(pivot);
        const Vec<T> inverse = one / root;
        A(j, j) = root;
        index_t i = j + 1;
        for (; i + chains <= n; i += chains) {
            Vec<T> acc[chains];
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) acc[r] = A(i + r, j);
            for (index_t k = 0; k != j; ++k) {
                const Vec<T> x = A(j, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] -= A(i + r, k) * x;
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) A(i + r, j) = acc[r] * inverse;
        }
        for (; i < n; ++i) {
            Vec<T> acc = A(i, j);
            for (index_t k = 0; k != j; ++k) acc -= A(i, k) * A(j, k);
            A(i, j) = acc * inverse;
        }
    }
    for (index_t i = 0; i < n; ++i)
        for (index_t j = i + 1; j < n; ++j) A(i, j) = Vec<T>{};
}

template <class T>
void lane_potrf(Batch<const T> A, Batch<T> L, std::int32_t* info, index_t begin, index_t end, void* scratch) {
    Vec<T>* buffer = lane_buffer<T>(scratch);
    Vec<T>* reordered = buffer + lane_limit * lane_limit;
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, buffer);
        typename Simd<T>::Mask status;
        factor<T>(lane_view<T>(buffer, A), status);
        scatter<T>(reorder_for<T>(L, A, buffer, reordered), L, group);
        for (index_t l = 0; l < group.filled; ++l) info[group.begin + l] = static_cast<std::int32_t>(status[l]);
    });
}

// The reverse sweep of leaves.h. G is halved as it is loaded (see potrf.h).
template <class T>
void reverse(const LaneView<T>& L, const LaneView<T>& S) {
    const index_t n = L.rows;
    const Vec<T> half = Simd<T>::fill(T(0.5)), one = Simd<T>::fill(T(1));
    for (index_t k = n - 1; k >= 0; --k) {
        const Vec<T> inverse = one / L(k, k);
        Vec<T> diagonal = half * S(k, k);
        index_t i = k + 1;
        for (; i + chains <= n; i += chains) {
            Vec<T> acc[chains];
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) acc[r] = half * S(i + r, k);
            for (index_t j = k + 1; j < n; ++j) {
                const Vec<T> x = L(j, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] -= S(i + r, j) * x;
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) {
                const Vec<T> x = acc[r] * inverse;
                S(k, i + r) = x;
                diagonal -= x * L(i + r, k);
            }
        }
        for (; i < n; ++i) {
            Vec<T> acc = half * S(i, k);
            for (index_t j = k + 1; j < n; ++j) acc -= S(i, j) * L(j, k);
            acc *= inverse;
            S(k, i) = acc;
            diagonal -= acc * L(i, k);
        }
        S(k, k) = diagonal * inverse;
        for (i = k + 1; i < n; ++i) S(i, k) = S(k, i);
    }
}

template <class T>
void lane_potrf_reverse(Batch<const T> L, Batch<const T> gL, Batch<T> gA, index_t begin, index_t end, void* scratch) {
    Vec<T>* factor_buffer = lane_buffer<T>(scratch);
    Vec<T>* gradient_buffer = factor_buffer + lane_limit * lane_limit;
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(L, group, factor_buffer);
        gather<T>(gL, group, gradient_buffer);
        reverse<T>(lane_view<T>(factor_buffer, L), lane_view<T>(gradient_buffer, gL));
        scatter<T>(gradient_buffer, gA, group);  // symmetric: the storage order of gL serves gA
    });
}

template <class T>
void substitute(const LaneView<T>& L, const LaneView<T>& X) {
    const Vec<T> one = Simd<T>::fill(T(1));
    for (index_t i = 0; i < L.rows; ++i) {
        const Vec<T> inverse = one / L(i, i);
        index_t c = 0;
        for (; c + chains <= X.cols; c += chains) {
            Vec<T> acc[chains];
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) acc[r] = X(i, c + r);
            for (index_t k = 0; k != i; ++k) {
                const Vec<T> l = L(i, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] -= l * X(k, c + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) X(i, c + r) = acc[r] * inverse;
        }
        for (; c < X.cols; ++c) {
            Vec<T> acc = X(i, c);
            for (index_t k = 0; k != i; ++k) acc -= L(i, k) * X(k, c);
            X(i, c) = acc * inverse;
        }
    }
}

template <class T>
void multiply(const LaneView<T>& L, const LaneView<T>& X) {
    for (index_t i = L.rows - 1; i >= 0; --i) {
        index_t c = 0;
        for (; c + chains <= X.cols; c += chains) {
            Vec<T> acc[chains] = {};
            for (index_t k = 0; k <= i; ++k) {
                const Vec<T> l = L(i, k);
#pragma GCC unroll 4
                for (int r = 0; r < chains; ++r) acc[r] += l * X(k, c + r);
            }
#pragma GCC unroll 4
            for (int r = 0; r < chains; ++r) X(i, c + r) = acc[r];
        }
        for (; c < X.cols; ++c) {
            Vec<T> acc{};
            for (index_t k = 0; k <= i; ++k) acc += L(i, k) * X(k, c);
            X(i, c) = acc;
        }
    }
}

template <class T, bool Solve>
void lane_triangle(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> X, index_t begin, index_t end,
                   void* scratch) {
    if (!Solve && with_fixed_order({L.rows, A.cols}, [&](auto order) {
            (lower ? fixed_triangle<T, order, true> : fixed_triangle<T, order, false>)(L, A, X, begin, end);
        }))
        return;
    Vec<T>* triangle_buffer = lane_buffer<T>(scratch);
    Vec<T>* side_buffer = triangle_buffer + lane_limit * lane_limit;
    Vec<T>* reordered = side_buffer + lane_limit * lane_limit;
    for_groups<T>(begin, end, [&](Group<T> group) {
        // A triangle that all items share is gathered once.
        if (L.batch_stride != 0 || group.begin == begin) gather<T>(L, group, triangle_buffer);
        gather<T>(A, group, side_buffer);
        LaneView<T> l = lane_view<T>(triangle_buffer, L), x = lane_view<T>(side_buffer, A);
        if (!lower) {
            l = l.reversed();
            x = x.reversed_rows();
        }
        Solve ? substitute<T>(l, x) : multiply<T>(l, x);
        scatter<T>(reorder_for<T>(X, A, side_buffer, reordered), X, group);
    });
}

// The lower triangle of C := alpha A B; the upper one is mirrored if symmetric, else zero.
template <class T>
void lane_product(T alpha, Batch<const T> A, Batch<const T> B, Batch<T> C, bool symmetric, index_t begin, index_t end,
                  void* scratch) {
    if (with_fixed_order({C.rows, A.cols}, [&](auto order) {
            fixed_product<T, order>(alpha, A, B, C, symmetric, begin, end);
        }))
        return;
    Vec<T>* a_buffer = lane_buffer<T>(scratch);
    Vec<T>* b_buffer = a_buffer + lane_product_elements;
    Vec<T>* c_buffer = b_buffer + lane_product_elements;
    const LaneView<T> a = lane_view<T>(a_buffer, A), b = lane_view<T>(b_buffer, B), c = lane_view<T>(c_buffer, C);
    const Vec<T> factor = Simd<T>::fill(alpha);
    const index_t n = C.rows, k = A.cols;
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, a_buffer);
        gather<T>(B, group, b_buffer);
        for (index_t i = 0; i < n; ++i) {
            for (index_t j = 0; j <= i; j += chains) {
                Vec<T> acc[chains] = {};
                const index_t width = i + 1 - j < chains ? i + 1 - j : chains;
                if (width == chains)
                    for (index_t p = 0; p < k; ++p) {
                        const Vec<T> x = a(i, p);
#pragma GCC unroll 4
                        for (int r = 0; r < chains; ++r) acc[r] += x * b(p, j + r);
                    }
                else
                    for (index_t r = 0; r < width; ++r)
                        for (index_t p = 0; p < k; ++p) acc[r] += a(i, p) * b(p, j + r);
                for (index_t r = 0; r < width; ++r) c(i, j + r) = factor * acc[r];
            }
            for (index_t j = 0; j < i; ++j) c(j, i) = symmetric ? c(i, j) : Vec<T>{};
        }
        scatter<T>(c_buffer, C, group);
    });
}
