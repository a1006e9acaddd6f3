// Eigenvalues and eigenvectors of symmetric matrices, and their gradient.
//
// LAPACK leaves eigenvectors in the columns of a column-major matrix: in the same memory they are the rows of the
// row-major U. So it runs in place, and nothing is transposed.
#pragma once

#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "base/items.h"
#include "base/lapack.h"
#include "ops/gemmt.h"

namespace lapgrad {

template <class T>
bool is_lower_finite(View<const T> A) {
    // A sum of zeros is NaN as soon as one of them came from a NaN or an infinity.
    T sum = 0;
    if (A.col_stride == 1)
        for (index_t i = 0; i < A.rows; ++i)
            for (index_t j = 0; j <= i; ++j) sum += A(i, j) * T(0);
    else
        for (index_t j = 0; j < A.cols; ++j)
            for (index_t i = j; i < A.rows; ++i) sum += A(i, j) * T(0);
    return sum == T(0);
}

// Makes the leading entry of each row positive: the first whose size is within 1e-6 of the largest.
template <class T>
void fix_signs(View<T> U, bool parallel) {
    for_strips(U.rows, U.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
            T* const row = U.at(i, 0);
            const T most = find_largest_entry<T>(U.block(i, 0, 1, U.cols).readonly()) * (T(1) - T(1e-6));
            index_t first = 0;
            while (first + 1 < U.cols && !(std::abs(row[first]) >= most)) ++first;
            if (!(row[first] < T(0))) continue;
            for (index_t k = 0; k < U.cols; ++k) row[k] = -row[k];
        }
    });
}

// The sizes of the workspace that LAPACK's syevd needs.
template <class T>
struct WorkspaceSize {
    blas::blas_int reals, integers;

    WorkspaceSize(const char* job, index_t order) {
        const blas::blas_int n = blas::narrow(order), query = -1;
        T best = 0;
        blas::blas_int best_integers = 0, info = 0;
        lapack::routines<T>().syevd(job, "U", &n, nullptr, &n, nullptr, &best, &query, &best_integers, &query, &info);
        // LAPACK returns the size as a T, and a float does not hold large integers exactly: so at least the documented minimum is taken.
        const bool vectors = job[0] == 'V';
        const index_t least = vectors ? 1 + 6 * order + 2 * order * order : 2 * order + 1;
        reals = blas::narrow(std::max<index_t>(static_cast<index_t>(best), least));
        integers = blas::narrow(std::max<index_t>(best_integers, vectors ? 3 + 5 * order : 1));
    }
};

// Decomposes the symmetric matrix in the lower triangle of Z: Z receives the eigenvectors as rows. Returns LAPACK's info.
template <class T>
int decompose(const char* job, View<T> Z, T* eigenvalues, const WorkspaceSize<T>& size) {
    const blas::blas_int n = blas::narrow(Z.rows), ld = blas::narrow(Z.row_stride);
    const Buffer<T> work = allocate<T>(size.reals);
    const Buffer<blas::blas_int> integers = allocate<blas::blas_int>(size.integers);
    blas::blas_int info = 0;
    // A row-major lower triangle is a column-major upper one.
    lapack::routines<T>().syevd(job, "U", &n, Z.data, &ld, eigenvalues, work.get(), &size.reals, integers.get(),
                                &size.integers, &info);
    return info;
}

// Whether a batch of order n runs faster with one matrix per lane than on LAPACK. Up to lane_limit it does: the reduction to
// tridiagonal form has too little work for LAPACK's blocks. Beyond, the time of the busiest thread decides, with
// plan::eigen_group_cost for a group of lanes.
template <class T>
bool prefers_lanes(index_t count, index_t n) {
    if (count <= 1 || plan::lane_order<T>() == 0 || n > isa::lane_eigen_limit) return false;
    if (n <= isa::lane_limit) return true;
    const index_t lanes = isa::kernels<T>().lanes, team = parallel::threads();
    const auto share = [team](index_t tasks) { return (tasks + team - 1) / team; };
    return share((count + lanes - 1) / lanes) * plan::eigen_group_cost(lanes) <= share(count);
}

// Eigenvalues, ascending, and rows of eigenvectors (if U.data) of the lower triangles of A. info per item: 0; -1: NaN or
// infinity in the triangle, or eigenvalues out of range; 1: no convergence.
template <class T>
void syevd_batch(Batch<const T> A, Batch<T> U, T* eigenvalues, std::int32_t* info) {
    const index_t n = A.rows;
    if (n == 0) {
        std::fill(info, info + A.count, 0);
        return;
    }
    if (prefers_lanes<T>(A.count, n) && A.dense()) {
        for_lane_ranges<T>(A.count, (U.data ? 12 : 4) * n * n * (n + 8), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_syevd(A, U, eigenvalues, info, begin, end, thread_scratch());
        });
        return;
    }
    const char* const job = U.data ? "V" : "N";
    const WorkspaceSize<T> size(job, n);
    const index_t serial_order = plan::serial_order(parallel::threads());
    for_items(A.count, plan::measure_cube(n), A.count == 1 ? std::min(serial_order, plan::serial_eigen_order) : serial_order, [&](index_t b, bool parallel) {
        T* const lambda = eigenvalues + b * n;
        if (!is_lower_finite<T>(A[b])) {
            info[b] = -1;
            return;
        }
        Buffer<T> own;
        View<T> Z = U.data ? U[b] : View<T>{(own = allocate<T>(n * n)).get(), n, n, n, 1};
        copy_lower<T>(A[b], T(1), Z, parallel);
        info[b] = decompose<T>(job, Z, lambda, size) ? 1 : 0;
        for (index_t i = 0; i < n && !info[b]; ++i)
            if (!std::isfinite(lambda[i])) info[b] = -1;
        if (U.data) fix_signs<T>(Z, parallel);
    });
}

// Decides whether the loss has a derivative. `most` is the largest entry of gU U' or slope. `uneven` is the largest of the differences that
// belong to equal eigenvalues: where there is a derivative, they are zero up to rounding.
template <class T>
struct DegeneracyCheck {
    T most = 0, uneven = 0;

    void join(const DegeneracyCheck& other) {
        most = std::max(most, other.most);
        uneven = std::max(uneven, other.uneven);
    }
    bool fails() const { return uneven > std::sqrt(std::numeric_limits<T>::epsilon()) * most; }
};

// The rule for small gaps of one item. noise and slope hold the arguments of is_only_rounding per row: zeros if no gap is close, or
// there are no slopes.
template <class T>
struct GapRule {
    Degeneracy gaps;
    T threshold, scale, close;
    std::vector<T> noise, slope;

    GapRule(Degeneracy rule, T tol, const T* lambda, index_t n) : gaps(rule) {
        constexpr T tiny = std::numeric_limits<T>::min();
        scale = std::max(std::max(std::abs(lambda[0]), std::abs(lambda[n - 1])), tiny);
        threshold = std::max(tol * scale, tiny);
        close = close_gap<T> * scale;
    }
    void measure_noise(View<const T> gU, const T* lambda, const T* slopes, bool parallel) {
        const index_t n = gU.rows;
        noise.assign(n, T(0));
        slope.assign(n, T(0));
        bool some = false;
        for (index_t i = 1; i < n; ++i) some |= lambda[i] - lambda[i - 1] < close;
        if (gaps != Degeneracy::mask || !some) return;
        measure_rows<T>(gU, rounding_units<T>(double(gU.cols)), noise.data(), parallel);
        if (slopes) std::copy(slopes, slopes + n, slope.begin());
    }
};

// Replaces two blocks of P, X = P(i, j) and Y = P(j, i)', i > j, by half of X - Y divided by the gaps.
template <Degeneracy Rule, class T>
void divide_block(View<T> X, View<T> Y, const T* lambda, index_t first_i, index_t first_j, const GapRule<T>& rule,
                  DegeneracyCheck<T>& found) {
    const T *const lambda_i = lambda + first_i, *const lambda_j = lambda + first_j;
    const T *const noise_i = rule.noise.data() + first_i, *const noise_j = rule.noise.data() + first_j;
    const T *const slope_i = rule.slope.data() + first_i, *const slope_j = rule.slope.data() + first_j;
    T most = found.most, uneven = found.uneven;
    for (index_t i = 0; i < X.rows; ++i) {
        T *const x = X.at(i, 0), *const y = Y.at(i, 0);
        for (index_t j = 0; j < X.cols; ++j) {
            const T difference = x[j] - y[j], gap = lambda_i[i] - lambda_j[j];
            most = std::max(most, std::max(std::abs(x[j]), std::abs(y[j])));
            uneven = std::max(uneven, gap > rule.threshold ? T(0) : std::abs(difference));
            T quotient = T(0.5) * difference * invert_gap<T>(Rule, gap, rule.threshold, rule.scale);
            if constexpr (Rule == Degeneracy::mask)
                quotient = is_only_rounding<T>(difference, noise_i[i] + noise_j[j], gap, rule.close, slope_i[i] - slope_j[j])
                               ? T(0)
                               : quotient;
            x[j] = y[j] = quotient;
        }
    }
    found.most = most;
    found.uneven = uneven;
}

// M := sym(P o F) in place, F_ij = 1 / (l_i - l_j): half of the skew part of P, divided by the gaps. A block and its mirror
// image are computed together; the latter is transposed in a copy, because reading it by columns would miss the cache.
template <Degeneracy Rule, class T>
DegeneracyCheck<T> divide_by_gaps(View<T> P, const T* lambda, const GapRule<T>& rule, bool parallel) {
    std::vector<DegeneracyCheck<T>> found((P.rows + strip_rows - 1) / strip_rows);
    for_strips(P.rows, P.cols, parallel, [&](index_t begin, index_t end) {
        DegeneracyCheck<T>& here = found[begin / strip_rows];
        T mirrored[strip_rows * strip_rows];
        for (index_t first = 0; first < begin; first += strip_rows) {
            const View<T> block = P.block(begin, first, end - begin, strip_rows);
            const View<T> mirror = P.block(first, begin, strip_rows, end - begin);
            const View<T> image{mirrored, end - begin, strip_rows, strip_rows, 1};
            copy_block<T>(mirror.readonly().t(), T(1), image);
            divide_block<Rule, T>(block, image, lambda, begin, first, rule, here);
            copy_block<T>(image.readonly().t(), T(1), mirror);
        }
        for (index_t i = begin; i < end; ++i) {
            for (index_t j = begin; j < i; ++j)
                divide_block<Rule, T>(P.block(i, j, 1, 1), P.block(j, i, 1, 1), lambda, i, j, rule, here);
            here.most = std::max(here.most, std::abs(P(i, i)));
            P(i, i) = T(0);
        }
    });
    DegeneracyCheck<T> all;
    for (const DegeneracyCheck<T>& one : found) all.join(one);
    return all;
}

template <class T>
DegeneracyCheck<T> divide_by_gaps(View<T> P, const T* lambda, const GapRule<T>& rule, bool parallel) {
    switch (rule.gaps) {
        case Degeneracy::mask: return divide_by_gaps<Degeneracy::mask, T>(P, lambda, rule, parallel);
        case Degeneracy::lorentz: return divide_by_gaps<Degeneracy::lorentz, T>(P, lambda, rule, parallel);
        case Degeneracy::clamp: return divide_by_gaps<Degeneracy::clamp, T>(P, lambda, rule, parallel);
        default: return divide_by_gaps<Degeneracy::nan, T>(P, lambda, rule, parallel);
    }
}

// Whether the cotangents of equal eigenvalues differ, so that the loss has no derivative.
template <class T>
bool has_uneven_slopes(const T* lambda, const T* slope, index_t n, const GapRule<T>& rule) {
    DegeneracyCheck<T> found;
    for (index_t i = 0; i < n; ++i) {
        found.most = std::max(found.most, std::abs(slope[i]));
        if (i > 0 && !(lambda[i] - lambda[i - 1] > rule.threshold))
            found.uneven = std::max(found.uneven, std::abs(slope[i] - slope[i - 1]));
    }
    return found.fails();
}

// gA := U' M U, M = sym((gU U') o F) + diag(g_eigenvalues); either cotangent may be missing. M is symmetric: the last
// product is computed on one triangle. `uneven` receives per item whether the loss depends on vectors that the matrix
// does not determine, and so has no derivative.
template <class T>
void syevd_vjp_batch(Batch<const T> U, const T* eigenvalues, Batch<const T> gU, const T* g_eigenvalues,
                     Degeneracy gaps, T tol, Batch<T> gA, std::int32_t* uneven) {
    const index_t n = U.rows;
    if (n == 0) {
        std::fill(uneven, uneven + U.count, 0);
        return;
    }
    if (fits_lanes<T>(U.count, n, U, gA) && (!gU.data || gU.dense())) {
        for_lane_ranges<T>(U.count, 5 * n * n * (n + 2), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_syevd_vjp(U, eigenvalues, gU, g_eigenvalues, gaps, tol, gA, uneven, begin, end,
                                             thread_scratch());
        });
        return;
    }
    for_items(U.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        const T *const lambda = eigenvalues + b * n, *const slope = g_eigenvalues ? g_eigenvalues + b * n : nullptr;
        GapRule<T> rule(gaps, tol, lambda, n);
        const Buffer<T> buffer = allocate<T>(n * n);
        const View<T> gradient = gA[b], W{buffer.get(), n, n, n, 1};
        bool broken = slope && has_uneven_slopes<T>(lambda, slope, n, rule);
        if (gU.data) {
            gemm<T>(T(1), gU[b], U[b].t(), false, gradient);
            rule.measure_noise(gU[b], lambda, slope, parallel);
            broken |= divide_by_gaps<T>(gradient, lambda, rule, parallel).fails();
            for (index_t i = 0; i < n && slope; ++i) gradient(i, i) = slope[i];
            // (U' M) U, not U' (M U): one triangle of a product is computed faster if both factors are row-major.
            gemm<T>(T(1), U[b].t(), gradient.readonly(), false, W);
            gemmt<T>(T(1), W.readonly(), U[b], false, gradient, Upper::mirror, parallel);
        } else {
            for_strips(n, n, parallel, [&](index_t begin, index_t end) {
                for (index_t i = begin; i < end; ++i)
                    for (index_t k = 0; k < n; ++k) W(i, k) = slope[i] * U[b](i, k);
            });
            gemmt<T>(T(1), U[b].t(), W.readonly(), false, gradient, Upper::mirror, parallel);
        }
        uneven[b] = broken;
    });
}

}  // namespace lapgrad
