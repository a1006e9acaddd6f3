// Eigenvalues and eigenvectors of batches of small symmetric matrices, one matrix per lane. Included by isa_kernels.cpp
// alone, after lanes.h.
//
// Householder reflections to tridiagonal form, then implicit QL steps (the shifts of EISPACK's imtql2). All lanes run the same
// steps; a lane whose eigenvalue has converged, or whose block ends earlier, rotates by the identity.

template <class T>
Vec<T> larger(Vec<T> a, Vec<T> b) {
    return a > b ? a : b;
}

template <class T>
typename Simd<T>::Lane find_largest_lane(LaneMask<T> values) {
    typename Simd<T>::Lane most = values[0];
    for (int l = 1; l < Simd<T>::W; ++l) most = values[l] > most ? values[l] : most;
    return most;
}

// Returns the largest power of two <= x, by which scaling is exact; the smallest normal number for a subnormal x.
template <class T>
Vec<T> find_power_below(Vec<T> x) {
    using Lane = typename Simd<T>::Lane;
    constexpr Lane exponent = sizeof(T) == 8 ? static_cast<Lane>(0x7ff0000000000000) : static_cast<Lane>(0x7f800000);
    LaneMask<T> bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    bits &= LaneMask<T>{} + exponent;
    Vec<T> power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return larger<T>(power, Simd<T>::fill(std::numeric_limits<T>::min()));
}

// Squares below this have lost digits to underflow. Matrices are scaled to size 1, so a number with such a square counts as 0.
template <class T>
constexpr T negligible_square = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();

// Working storage of one group: vectors of length n beside the matrices.
template <class T>
struct Tridiagonal {
    Vec<T>*d, *e, *beta, *p;
};

// Lower A := reflectors below the subdiagonal, A = Q T Q'; T into d and e. H_j = 1 - beta_j v v', v = A(j+1:, j).
template <class T>
void tridiagonalise(const LaneView<T>& A, const Tridiagonal<T>& t) {
    using S = Simd<T>;
    const index_t n = A.rows;
    const Vec<T> one = S::fill(T(1)), half = S::fill(T(0.5)), negligible = S::fill(negligible_square<T>);
    for (index_t j = 0; j + 2 < n; ++j) {
        const index_t first = j + 1;
        Vec<T> tail{};
        for (index_t i = j + 2; i < n; ++i) tail += A(i, j) * A(i, j);
        const auto reflects = tail > negligible;
        const Vec<T> head = A(first, j), square = head * head + tail, norm = take_square_roots<T>(square);
        const Vec<T> image = head > Vec<T>{} ? -norm : norm;
        const Vec<T> beta = reflects ? one / (square - head * image) : Vec<T>{};
        A(first, j) = head - image;
        t.d[j] = A(j, j);
        t.e[j] = reflects ? image : head;
        t.beta[j] = beta;
        // p = beta A v, from the lower triangle.
        for (index_t i = first; i < n; ++i) {
            const Vec<T> v = A(i, j);
            Vec<T> sum = A(i, i) * v;
            for (index_t c = first; c < i; ++c) {
                const Vec<T> a = A(i, c);
                sum += a * A(c, j);
                t.p[c] += a * v;
            }
            t.p[i] = sum;
        }
        Vec<T> inner{};
        for (index_t i = first; i < n; ++i) {
            t.p[i] *= beta;
            inner += A(i, j) * t.p[i];
        }
        const Vec<T> shift = half * beta * inner;
        for (index_t i = first; i < n; ++i) t.p[i] -= shift * A(i, j);
        for (index_t i = first; i < n; ++i) {
            const Vec<T> v = A(i, j), q = t.p[i];
            for (index_t c = first; c <= i; ++c) A(i, c) -= v * t.p[c] + q * A(c, j);
        }
    }
    for (index_t j = n > 2 ? n - 2 : 0; j < n; ++j) {
        t.d[j] = A(j, j);
        t.e[j] = j + 1 < n ? A(j + 1, j) : Vec<T>{};
    }
}

// U := Q' = H_{n-3} ... H_0, starting with the last reflector, which touches the smallest block.
template <class T>
void form_vectors(const LaneView<T>& A, const Tridiagonal<T>& t, const LaneView<T>& U) {
    const index_t n = A.rows;
    const Vec<T> one = Simd<T>::fill(T(1));
    for (index_t i = 0; i < n; ++i)
        for (index_t k = 0; k < n; ++k) U(i, k) = i == k ? one : Vec<T>{};
    for (index_t j = n - 3; j >= 0; --j)
        for (index_t i = j + 1; i < n; ++i) {
            Vec<T> inner{};
            for (index_t k = j + 1; k < n; ++k) inner += U(i, k) * A(k, j);
            inner *= t.beta[j];
            for (index_t k = j + 1; k < n; ++k) U(i, k) -= inner * A(k, j);
        }
}

// d := eigenvalues of the tridiagonal matrix; the rows of U are rotated into its eigenvectors. Returns a mask of the lanes that
// did not converge.
template <class T, bool Vectors>
LaneMask<T> iterate(const Tridiagonal<T>& t, index_t n, const LaneView<T>& U) {
    using S = Simd<T>;
    using Lane = typename S::Lane;
    using Mask = typename S::Mask;
    constexpr T eps = std::numeric_limits<T>::epsilon();
    constexpr int most_steps = 60;
    const Vec<T> one = S::fill(T(1)), two = S::fill(T(2)), unit = S::fill(eps), floor = S::fill(eps * eps);
    const Vec<T> negligible = S::fill(negligible_square<T>);
    Vec<T>*const d = t.d, *const e = t.e;
    Mask failed{};
    for (index_t l = 0; l < n; ++l) {
        const Mask at = Mask{} + static_cast<Lane>(l);
        for (int step = 0;; ++step) {
            // The block that begins at l ends at the first negligible e.
            Mask last = Mask{} + static_cast<Lane>(n - 1);
            for (index_t i = n - 2; i >= l; --i) {
                const auto small = absolute<T>(e[i]) <= unit * (absolute<T>(d[i]) + absolute<T>(d[i + 1])) + floor;
                last = small ? Mask{} + static_cast<Lane>(i) : last;
            }
            last = failed ? at : last;
            const index_t end = static_cast<index_t>(find_largest_lane<T>(last));
            if (end == l) break;
            if (step == most_steps) {
                failed |= last > at;
                break;
            }
            Vec<T> d_last = d[l];
            for (index_t i = l + 1; i <= end; ++i) d_last = last == static_cast<Lane>(i) ? d[i] : d_last;
            const Vec<T> ratio = (d[l + 1] - d[l]) / (two * e[l]);
            const Vec<T> root = take_square_roots<T>(ratio * ratio + one);
            Vec<T> g = d_last - d[l] + e[l] / (ratio + (ratio < Vec<T>{} ? -root : root));
            Vec<T> s = one, c = one, p{};
            Mask going = last > at;
            for (index_t i = end - 1; i >= l; --i) {
                const Mask active = going & (last > static_cast<Lane>(i));
                const Vec<T> f = s * e[i], b = c * e[i], square = f * f + g * g;
                const Mask rotates = active & (square > negligible), stops = active & ~rotates;
                const Vec<T> inverse = one / take_square_roots<T>(square);
                const Vec<T> e_new = last == static_cast<Lane>(i + 1) ? Vec<T>{} : square * inverse;
                const Vec<T> s_new = f * inverse, c_new = g * inverse, below = d[i + 1] - p;
                const Vec<T> r = (d[i] - below) * s_new + two * c_new * b, p_new = s_new * r;
                e[i + 1] = rotates ? e_new : stops ? Vec<T>{} : e[i + 1];
                d[i + 1] = rotates ? below + p_new : stops ? below : d[i + 1];
                g = rotates ? c_new * r - b : g;
                p = rotates ? p_new : p;
                s = rotates ? s_new : s;
                c = rotates ? c_new : c;
                going &= ~stops;
                if constexpr (Vectors) {
                    const Vec<T> sine = rotates ? s_new : Vec<T>{}, cosine = rotates ? c_new : one;
                    Vec<T>*const upper = &U(i, 0), *const lower = &U(i + 1, 0);
                    for (index_t k = 0; k < n; ++k) {
                        const Vec<T> x = upper[k], y = lower[k];
                        lower[k] = sine * x + cosine * y;
                        upper[k] = cosine * x - sine * y;
                    }
                }
            }
            d[l] = going ? d[l] - p : d[l];
            e[l] = going ? g : e[l];
        }
    }
    return failed;
}

// Makes the leading entry of each row positive: the first whose size is within 1e-6 of the largest.
template <class T>
void fix_signs(const LaneView<T>& U) {
    using S = Simd<T>;
    const index_t n = U.rows;
    const Vec<T> nearly = S::fill(T(1) - T(1e-6));
    for (index_t i = 0; i < n; ++i) {
        Vec<T> most{};
        for (index_t k = 0; k < n; ++k) most = larger<T>(most, absolute<T>(U(i, k)));
        most *= nearly;
        Vec<T> decisive{};
        for (index_t k = n - 1; k >= 0; --k) decisive = absolute<T>(U(i, k)) >= most ? U(i, k) : decisive;
        const auto flips = decisive < Vec<T>{};
        for (index_t k = 0; k < n; ++k) U(i, k) = flips ? -U(i, k) : U(i, k);
    }
}

// Stores row i of each item in row places[i], the rank of its eigenvalue in ascending order.
template <class T>
void scatter_sorted(const LaneView<T>& U, const LaneMask<T>* places, const Batch<T>& target, Group<T> group) {
    using S = Simd<T>;
    constexpr index_t W = S::W;
    const index_t n = U.rows;
    for (index_t i = 0; i < n; ++i) {
        T* row[W];
        for (index_t l = 0; l < group.filled; ++l)
            row[l] = target.data + (group.begin + l) * target.batch_stride + places[i][l] * n;
        index_t k = 0;
        for (; k + W <= n; k += W) {
            Vec<T> x[W];
#pragma GCC unroll 16
            for (int l = 0; l < W; ++l) x[l] = U(i, k + l);
            S::transpose(x);
            for (index_t l = 0; l < group.filled; ++l) S::store(row[l] + k, x[l]);
        }
        for (; k < n; ++k)
            for (index_t l = 0; l < group.filled; ++l) row[l][k] = U(i, k)[l];
    }
}

// Eigenvalues, ascending, and rows of eigenvectors (if U.data) of the lower triangles of A. info: 0; -1: NaN or infinity
// in the triangle, or eigenvalues out of range; 1: no convergence.
template <class T>
void lane_syevd(Batch<const T> A, Batch<T> U, T* eigenvalues, std::int32_t* info, index_t begin, index_t end,
                void* scratch) {
    using S = Simd<T>;
    using Mask = typename S::Mask;
    const index_t n = A.rows;
    Vec<T>* const buffer = lane_buffer<T>(scratch);
    Vec<T>* const rest = buffer + 2 * n * n;
    Mask* const places = reinterpret_cast<Mask*>(rest + 4 * n);
    const LaneView<T> lower = lane_view<T>(buffer, A), rows{buffer + n * n, n, n, n, 1};
    const Tridiagonal<T> t{rest, rest + n, rest + 2 * n, rest + 3 * n};
    const Vec<T> one = S::fill(T(1)), largest = S::fill(std::numeric_limits<T>::max());
    for_groups<T>(begin, end, [&](Group<T> group) {
        gather<T>(A, group, buffer);
        Vec<T> most{};
        Mask finite = ~Mask{};
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) {
                const Vec<T> size = absolute<T>(lower(i, j));
                most = larger<T>(most, size);
                finite &= size <= largest;
            }
        const Vec<T> scale = find_power_below<T>(most), inverse = finite ? one / scale : Vec<T>{};
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) lower(i, j) = finite ? lower(i, j) * inverse : Vec<T>{};
        tridiagonalise<T>(lower, t);
        Mask failed;
        if (U.data) {
            form_vectors<T>(lower, t, rows);
            failed = iterate<T, true>(t, n, rows);
            fix_signs<T>(rows);
        } else {
            failed = iterate<T, false>(t, n, rows);
        }
        for (index_t i = 0; i < n; ++i) {
            Mask place{};
            for (index_t j = 0; j < n; ++j) place -= j < i ? t.d[j] <= t.d[i] : t.d[j] < t.d[i];
            places[i] = place;
        }
        if (U.data) scatter_sorted<T>(rows, places, U, group);
        for (index_t i = 0; i < n; ++i) {
            t.d[i] *= scale;
            finite &= absolute<T>(t.d[i]) <= largest;
        }
        for (index_t l = 0; l < group.filled; ++l) {
            T* const target = eigenvalues + (group.begin + l) * n;
            for (index_t i = 0; i < n; ++i) target[places[i][l]] = t.d[i][l];
            info[group.begin + l] = !finite[l] ? -1 : failed[l] ? 1 : 0;
        }
    });
}

// gA := U' M U from the eigenvectors and the cotangents (either may be missing); see syevd.h. `uneven` receives per item
// whether the loss depends on vectors that the matrix does not determine, and so has no derivative.
template <class T>
void lane_syevd_vjp(Batch<const T> U, const T* eigenvalues, Batch<const T> gU, const T* g_eigenvalues,
                    Degeneracy rule, T tol, Batch<T> gA, std::int32_t* uneven, index_t begin, index_t end, void* scratch) {
    using S = Simd<T>;
    using Mask = typename S::Mask;
    constexpr index_t square = lane_limit * lane_limit;
    constexpr T tiny = std::numeric_limits<T>::min();
    const index_t n = U.rows;
    Vec<T>* const buffer = lane_buffer<T>(scratch);
    const Vec<T> half = S::fill(T(0.5)), suspicious = S::fill(square_root(std::numeric_limits<T>::epsilon()));
    for_groups<T>(begin, end, [&](Group<T> group) {
        Vec<T> lambda[lane_limit], slope[lane_limit];
        const auto load = [&](const T* source, Vec<T>* target) {
            for (index_t l = 0; l < S::W; ++l) {
                const T* item = source + (group.begin + (l < group.filled ? l : group.filled - 1)) * n;
                for (index_t i = 0; i < n; ++i) target[i][l] = item[i];
            }
        };
        load(eigenvalues, lambda);
        gather<T>(U, group, buffer);
        const LaneView<T> rows = lane_view<T>(buffer, U);
        const LaneView<T> M{buffer + 2 * square, n, n, n, 1}, W{buffer + square, n, n, n, 1};
        const Vec<T> scale = larger<T>(larger<T>(absolute<T>(lambda[0]), absolute<T>(lambda[n - 1])), S::fill(tiny));
        const Vec<T> threshold = larger<T>(scale * S::fill(tol), S::fill(tiny));
        Mask broken{};
        if (g_eigenvalues) load(g_eigenvalues, slope);
        if (gU.data) {
            gather<T>(gU, group, buffer + square);
            const LaneView<T> G = lane_view<T>(buffer + square, gU);
            const Vec<T> close = scale * S::fill(close_gap<T>);
            Mask some{};
            for (index_t i = 1; i < n; ++i) some |= lambda[i] - lambda[i - 1] < close;
            const bool discards = rule == Degeneracy::mask && any_lane<T>(some);
            Vec<T> noise[lane_limit];
            for (index_t i = 0; i < n && discards; ++i) {
                noise[i] = Vec<T>{};
                for (index_t k = 0; k < n; ++k) noise[i] = larger<T>(noise[i], absolute<T>(G(i, k)));
                noise[i] *= rounding_units<T>(double(n));
            }
            Vec<T> most{}, skew{};
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < n; ++j) {
                    Vec<T> sum{};
                    for (index_t k = 0; k < n; ++k) sum += G(i, k) * rows(j, k);
                    M(i, j) = sum;
                    most = larger<T>(most, absolute<T>(sum));
                }
            for (index_t i = 0; i < n; ++i) {
                for (index_t j = 0; j < i; ++j) {
                    const Vec<T> gap = lambda[i] - lambda[j], difference = M(i, j) - M(j, i);
                    skew = larger<T>(skew, gap > threshold ? Vec<T>{} : absolute<T>(difference));
                    Vec<T> quotient = half * difference * invert_gap<Vec<T>>(rule, gap, threshold, scale);
                    if (discards) {
                        const Vec<T> step = g_eigenvalues ? slope[i] - slope[j] : Vec<T>{};
                        const Mask rounding = is_only_rounding<Vec<T>>(difference, noise[i] + noise[j], gap, close, step);
                        quotient = rounding ? Vec<T>{} : quotient;
                    }
                    M(i, j) = M(j, i) = quotient;
                }
                M(i, i) = Vec<T>{};
            }
            broken |= skew > suspicious * most;
        } else {
            for (index_t i = 0; i < n * n; ++i) M.data[i] = Vec<T>{};
        }
        if (g_eigenvalues) {
            Vec<T> most{}, step{};
            for (index_t i = 0; i < n; ++i) {
                M(i, i) = slope[i];
                most = larger<T>(most, absolute<T>(slope[i]));
                if (i == 0) continue;
                const Vec<T> jump = absolute<T>(slope[i] - slope[i - 1]);
                step = larger<T>(step, lambda[i] - lambda[i - 1] > threshold ? Vec<T>{} : jump);
            }
            broken |= step > suspicious * most;
        }
        for (index_t i = 0; i < n; ++i)
            for (index_t k = 0; k < n; ++k) {
                Vec<T> sum{};
                for (index_t j = 0; j < n; ++j) sum += M(i, j) * rows(j, k);
                W(i, k) = sum;
            }
        for (index_t a = 0; a < n; ++a)
            for (index_t b = 0; b <= a; ++b) {
                Vec<T> sum{};
                for (index_t i = 0; i < n; ++i) sum += rows(i, a) * W(i, b);
                M(a, b) = M(b, a) = sum;
            }
        scatter<T>(M.data, gA, group);
        for (index_t l = 0; l < group.filled; ++l) uneven[group.begin + l] = broken[l] ? 1 : 0;
    });
}
