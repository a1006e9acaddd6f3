// Eigenvalues and eigenvectors of symmetric matrices, and their gradient.
//
// LAPACK leaves eigenvectors in the columns of a column-major matrix: in the same memory they are the rows of the
// row-major U. So it runs in place, and nothing is transposed.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "gemmt.h"
#include "items.h"
#include "lapack.h"

namespace lapgrad {

// Memory that nobody has touched yet.
template <class T>
std::unique_ptr<T[]> uninitialised(index_t count) {
    return std::unique_ptr<T[]>(new T[static_cast<std::size_t>(count)]);
}

template <class T>
bool finite_lower(View<const T> A) {
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

// Of each row the first entry that is within 1e-6 of the largest becomes positive.
template <class T>
void fix_signs(View<T> U, bool parallel) {
    for_strips(U.rows, U.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
            T* const row = U.at(i, 0);
            T most = 0;
            for (index_t k = 0; k < U.cols; ++k) most = std::max(most, std::abs(row[k]));
            most *= T(1) - T(1e-6);
            index_t first = 0;
            while (first + 1 < U.cols && !(std::abs(row[first]) >= most)) ++first;
            if (!(row[first] < T(0))) continue;
            for (index_t k = 0; k < U.cols; ++k) row[k] = -row[k];
        }
    });
}

template <class T>
struct Workspace {
    blas::blas_int reals, integers;

    Workspace(const char* job, index_t order) {
        const blas::blas_int n = blas::narrow(order), query = -1;
        T best = 0;
        blas::blas_int best_integers = 0, info = 0;
        lapack::routines<T>().syevd(job, "U", &n, nullptr, &n, nullptr, &best, &query, &best_integers, &query, &info);
        // float32 cannot say large sizes exactly: the documented minimum is added up again.
        const bool vectors = job[0] == 'V';
        const index_t least = vectors ? 1 + 6 * order + 2 * order * order : 2 * order + 1;
        reals = blas::narrow(std::max<index_t>(static_cast<index_t>(best), least));
        integers = blas::narrow(std::max<index_t>(best_integers, vectors ? 3 + 5 * order : 1));
    }
};

// In place on Z, whose lower triangle holds the matrix: eigenvalues, and eigenvectors as rows. Returns LAPACK's info.
template <class T>
int decompose(const char* job, View<T> Z, T* eigenvalues, const Workspace<T>& size) {
    const blas::blas_int n = blas::narrow(Z.rows), ld = blas::narrow(Z.row_stride);
    const std::unique_ptr<T[]> work = uninitialised<T>(size.reals);
    const std::unique_ptr<blas::blas_int[]> integers = uninitialised<blas::blas_int>(size.integers);
    blas::blas_int info = 0;
    // A row-major lower triangle is a column-major upper one.
    lapack::routines<T>().syevd(job, "U", &n, Z.data, &ld, eigenvalues, work.get(), &size.reals, integers.get(),
                                &size.integers, &info);
    return info;
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
    // The tridiagonal form has too little work for LAPACK's blocks: lanes pay up to the largest order they take.
    if (A.count > 1 && plan::lane_order<T>() > 0 && n <= isa::lane_limit && A.dense()) {
        for_lane_ranges<T>(A.count, (U.data ? 12 : 4) * n * n * (n + 8), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_syevd(A, U, eigenvalues, info, begin, end, thread_scratch());
        });
        return;
    }
    const char* const job = U.data ? "V" : "N";
    const Workspace<T> size(job, n);
    for_items(A.count, n, [&](index_t b, bool parallel) {
        T* const lambda = eigenvalues + b * n;
        if (!finite_lower<T>(A[b])) {
            info[b] = -1;
            return;
        }
        std::unique_ptr<T[]> own;
        View<T> Z = U.data ? U[b] : View<T>{(own = uninitialised<T>(n * n)).get(), n, n, n, 1};
        copy_lower<T>(A[b], T(1), Z, parallel);
        info[b] = decompose<T>(job, Z, lambda, size) ? 1 : 0;
        for (index_t i = 0; i < n && !info[b]; ++i)
            if (!std::isfinite(lambda[i])) info[b] = -1;
        if (U.data) fix_signs<T>(Z, parallel);
    });
}

// What the gradient learns on its way: the largest entry, and the largest of those that have to be zero.
template <class T>
struct Evenness {
    T most = 0, uneven = 0;

    void join(const Evenness& other) {
        most = std::max(most, other.most);
        uneven = std::max(uneven, other.uneven);
    }
    bool broken() const { return uneven > std::sqrt(std::numeric_limits<T>::epsilon()) * most; }
};

template <class T>
struct GapRule {
    Degeneracy gaps;
    T threshold, scale;

    GapRule(Degeneracy rule, T tol, const T* lambda, index_t n) : gaps(rule) {
        constexpr T tiny = std::numeric_limits<T>::min();
        scale = std::max(std::max(std::abs(lambda[0]), std::abs(lambda[n - 1])), tiny);
        threshold = std::max(tol * scale, tiny);
    }
};

// M := sym(P o F) in place, F_ij = 1 / (l_i - l_j): half of the skew part of P, divided by the gaps.
template <class T>
Evenness<T> divide_by_gaps(View<T> P, const T* lambda, const GapRule<T>& rule, bool parallel) {
    std::vector<Evenness<T>> found((P.rows + strip - 1) / strip);
    for_strips(P.rows, P.cols, parallel, [&](index_t begin, index_t end) {
        Evenness<T> here;
        for (index_t first = 0; first < end; first += strip)
            for (index_t i = begin; i < end; ++i) {
                const index_t last = std::min(i, first + strip);
                for (index_t j = first; j < last; ++j) {
                    const T x = P(i, j), y = P(j, i), gap = lambda[i] - lambda[j];
                    here.most = std::max(here.most, std::max(std::abs(x), std::abs(y)));
                    if (!(gap > rule.threshold)) here.uneven = std::max(here.uneven, std::abs(x - y));
                    P(i, j) = P(j, i) =
                        T(0.5) * (x - y) * inverse_gap<T>(rule.gaps, gap, rule.threshold, rule.scale);
                }
                if (first + strip > i && first <= i) {
                    here.most = std::max(here.most, std::abs(P(i, i)));
                    P(i, i) = T(0);
                }
            }
        found[begin / strip] = here;
    });
    Evenness<T> all;
    for (const Evenness<T>& one : found) all.join(one);
    return all;
}

template <class T>
bool uneven_slope(const T* lambda, const T* slope, index_t n, const GapRule<T>& rule) {
    Evenness<T> found;
    for (index_t i = 0; i < n; ++i) {
        found.most = std::max(found.most, std::abs(slope[i]));
        if (i > 0 && !(lambda[i] - lambda[i - 1] > rule.threshold))
            found.uneven = std::max(found.uneven, std::abs(slope[i] - slope[i - 1]));
    }
    return found.broken();
}

// gA := U' M U, M = sym((gU U') o F) + diag(g_eigenvalues); either cotangent may be missing. M is symmetric: the last
// product is computed on one triangle. `uneven` receives per item whether the loss tells apart what the decomposition
// cannot: then it has no derivative.
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
    for_items(U.count, n, [&](index_t b, bool parallel) {
        const T *const lambda = eigenvalues + b * n, *const slope = g_eigenvalues ? g_eigenvalues + b * n : nullptr;
        const GapRule<T> rule(gaps, tol, lambda, n);
        const std::unique_ptr<T[]> buffer = uninitialised<T>(n * n);
        const View<T> gradient = gA[b], W{buffer.get(), n, n, n, 1};
        bool broken = slope && uneven_slope<T>(lambda, slope, n, rule);
        if (gU.data) {
            gemm<T>(T(1), gU[b], U[b].t(), false, gradient);
            broken |= divide_by_gaps<T>(gradient, lambda, rule, parallel).broken();
            for (index_t i = 0; i < n && slope; ++i) gradient(i, i) = slope[i];
            gemm<T>(T(1), gradient.readonly(), U[b], false, W);
        } else {
            for_strips(n, n, parallel, [&](index_t begin, index_t end) {
                for (index_t i = begin; i < end; ++i)
                    for (index_t k = 0; k < n; ++k) W(i, k) = slope[i] * U[b](i, k);
            });
        }
        gemmt<T>(T(1), U[b].t(), W.readonly(), false, gradient, Upper::mirror, parallel);
        uneven[b] = broken;
    });
}

}  // namespace lapgrad
