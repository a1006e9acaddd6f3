// Singular value decompositions A = U' diag(S) V, where the rows of U and V are the singular vectors.
#pragma once

#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "base/gesvd_types.h"
#include "base/items.h"
#include "base/lapack.h"
#include "base/triangle.h"

namespace lapgrad {

template <class T>
bool is_finite(View<const T> A) {
    if (A.col_stride != 1) A = A.t();
    // Several sums, so that an addition does not wait for the one before it.
    constexpr index_t chains = 16;
    for (index_t i = 0; i < A.rows; ++i) {
        const T* const row = A.at(i, 0);
        T nothing[chains] = {}, sum = 0;
        index_t j = 0;
        for (; j + chains <= A.cols; j += chains)
            for (index_t c = 0; c < chains; ++c) nothing[c] += row[j + c] * T(0);
        for (; j < A.cols; ++j) sum += A(i, j) * T(0);
        for (const T part : nothing) sum += part;
        if (sum != T(0)) return false;
    }
    return true;
}

// Makes the leading entry of row i of U positive, and changes the sign of row i of V with it. The leading entry is the first whose
// size is at least svd_same_size times the largest.
template <class T>
void fix_sign(View<T> U, View<T> V, index_t i) {
    const T largest = find_largest_entry<T>(U.block(i, 0, 1, U.cols)) * T(svd_same_size);
    for (index_t r = 0; r < U.cols; ++r) {
        if (!(std::abs(U(i, r)) >= largest)) continue;
        if (U(i, r) >= T(0)) return;
        break;
    }
    for (index_t r = 0; r < U.cols; ++r) U(i, r) = -U(i, r);
    for (index_t r = 0; r < V.cols; ++r) V(i, r) = -V(i, r);
}

template <class T>
void fix_signs(View<T> U, View<T> V, bool parallel) {
    for_strips(U.rows, U.cols + V.cols, parallel, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) fix_sign<T>(U, V, i);
    });
}

// How much memory LAPACK's gesdd has asked for.
struct WorkspaceOfGesdd {
    blas::blas_int m = 0, n = 0;
    bool vectors = false;
    blas::blas_int size = 0;
};

// Calls LAPACK's divide and conquer and returns its info. A row-major m x n matrix is the column-major n x m matrix
// A' = V' diag(S) U: LAPACK's u is V' by columns, which is V by rows; its vt is U by columns, and has to be transposed. If U is as
// large as A, its memory holds the copy of A that LAPACK overwrites. If U.data is null, only values are computed.
template <class T>
blas::blas_int call_gesdd(View<const T> A, View<T> U, T* S, View<T> V, bool parallel) {
    using blas::narrow;
    const index_t k = std::min(A.rows, A.cols);
    const blas::blas_int m = narrow(A.cols), n = narrow(A.rows), small = narrow(k);
    const bool vectors = U.data != nullptr;
    const bool copies_into_U = vectors && U.rows * U.cols >= A.rows * A.cols;
    auto copy_of_A = allocate<T>(copies_into_U ? 0 : A.rows * A.cols), transposed_U = allocate<T>(vectors ? U.rows * U.cols : 0);
    auto integers = allocate<blas::blas_int>(8 * k);
    T* const copied = copies_into_U ? U.data : copy_of_A.get();
    copy<T>(A, T(1), View<T>{copied, A.rows, A.cols, A.cols, 1}, parallel);
    const char* job = vectors ? "S" : "N";
    const blas::blas_int ldu = vectors ? m : 1, ldvt = vectors ? small : 1;
    blas::blas_int info = 0, size = -1;
    const auto call = [&](T* work) {
        lapack::routines<T>().gesdd(job, &m, &n, copied, &m, S, V.data, &ldu, transposed_U.get(), &ldvt, work, &size,
                                    integers.get(), &info);
    };
    // The items of a batch need the same workspace, and to ask for its size takes as long as a small matrix.
    thread_local WorkspaceOfGesdd known;
    if (known.m != m || known.n != n || known.vectors != vectors) {
        T wanted = 0;
        call(&wanted);
        if (info != 0) return info;
        // LAPACK returns the size as a T. A float holds integers up to 2^24 exactly; larger sizes may have been rounded down.
        known = {m, n, vectors, narrow(static_cast<index_t>(wanted * (1 + std::numeric_limits<T>::epsilon())) + 1)};
    }
    size = known.size;
    call(allocate<T>(size).get());
    if (info == 0 && vectors) copy<T>(View<const T>{transposed_U.get(), k, U.cols, 1, k}, T(1), U, parallel);
    return info;
}

// Fills rows [filled, V.rows) so that all rows are orthonormal. Each starts as the unit vector that is farthest from the span of
// the rows before, and is orthogonalised three times.
template <class T>
void complete_rows(View<T> V, index_t filled) {
    for (index_t i = filled; i < V.rows; ++i) {
        index_t best = 0;
        T least = std::numeric_limits<T>::max();
        for (index_t c = 0; c < V.cols; ++c) {
            T square = 0;
            for (index_t j = 0; j < i; ++j) square += V(j, c) * V(j, c);
            if (square < least) {
                least = square;
                best = c;
            }
        }
        for (index_t c = 0; c < V.cols; ++c) V(i, c) = T(c == best);
        for (int pass = 0; pass < 3; ++pass) {
            for (index_t j = 0; j < i; ++j) {
                T along = 0;
                for (index_t c = 0; c < V.cols; ++c) along += V(i, c) * V(j, c);
                for (index_t c = 0; c < V.cols; ++c) V(i, c) -= along * V(j, c);
            }
            T square = 0;
            for (index_t c = 0; c < V.cols; ++c) square += V(i, c) * V(i, c);
            const T inverse = T(1) / std::sqrt(square);
            for (index_t c = 0; c < V.cols; ++c) V(i, c) *= inverse;
        }
    }
}

// Decomposes a matrix of one row or one column: its length, and the unit vector along it. The zero vector gets the first unit vector.
template <class T>
void decompose_vector(View<const T> A, View<T> U, T* S, View<T> V) {
    const bool is_column = A.cols == 1;
    const View<const T> a = is_column ? A.t() : A;
    const T largest = find_largest_entry<T>(a);
    // Relative to the largest entry, squares neither overflow nor vanish.
    constexpr index_t chains = 8;
    T sums[chains] = {}, square = 0;
    for (index_t j = 0; j < a.cols && largest > T(0); ++j) sums[j % chains] += (a(0, j) / largest) * (a(0, j) / largest);
    for (const T sum : sums) square += sum;
    const T length = std::sqrt(square);
    *S = largest * length;
    if (!U.data) return;
    const View<T> direction = is_column ? U : V, one = is_column ? V : U;
    one(0, 0) = T(1);
    for (index_t j = 0; j < a.cols; ++j) direction(0, j) = largest > T(0) ? a(0, j) / largest / length : T(j == 0);
}

// Decomposes one item by LAPACK and returns its status. If LAPACK fails, the transpose, for which it takes other steps, is tried. If the
// matrix is nearly square, the tall one of both is tried first, because its copy fits into the result.
template <class T>
std::int32_t gesvd_item(View<const T> A, View<T> U, T* S, View<T> V, bool parallel) {
    if (!is_finite<T>(A)) return svd_not_finite;
    if (std::min(A.rows, A.cols) == 1) {
        decompose_vector<T>(A, U, S, V);
        if (U.data) fix_signs<T>(U, V, false);
        return svd_done;
    }
    const auto plain = [&] { return call_gesdd<T>(A, U, S, V, parallel) == 0; };
    const auto transposed = [&] { return call_gesdd<T>(A.t(), V, S, U, parallel) == 0; };
    // LAPACK takes a half to a third of the time for a long matrix if it is tall in its own, column-major order.
    const bool is_tall = A.rows >= A.cols, is_long = std::max(A.rows, A.cols) >= 2 * std::min(A.rows, A.cols);
    if (!(is_tall != is_long ? plain() || transposed() : transposed() || plain())) return svd_not_converged;
    if (U.data) fix_signs<T>(U, V, parallel);
    return svd_done;
}

// S, U and V of every item of A, status per item. S has one row per item. U and V are row-major; null data for values only.
template <class T>
void gesvd_batch(Batch<const T> A, Batch<T> U, Batch<T> S, Batch<T> V, std::int32_t* status) {
    const index_t k = std::min(A.rows, A.cols);
    std::fill(status, status + A.count, svd_done);
    if (k == 0) return;
    const index_t side = std::max(A.rows, A.cols);
    const auto on_lapack = [&](index_t b, bool parallel) {
        status[b] = gesvd_item<T>(A[b], U[b], S[b].data, V[b], parallel);
    };
    // If lanes are in use at all, Jacobi rotations on lanes are faster than LAPACK at every order that fits; a group of lanes takes as
    // long as up to four items on LAPACK.
    const bool has_group = side <= plan::small_svd_side || A.count >= plan::svd_group_cost;
    const index_t order = side <= isa::lane_limit && has_group && plan::lane_order<T>() > 0 ? 0 : side;
    if (fits_lanes<T>(A.count, order, A)) {
        for_lane_ranges<T>(A.count, 60 * k * k * (side + 12), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gesvd(A, U, S, V, status, begin, end, thread_scratch());
        });
        const bool tall = A.rows > A.cols;
        for (index_t b = 0; b < A.count; ++b) {
            if (status[b] == svd_not_converged) on_lapack(b, false);
            if (status[b] != svd_incomplete) continue;
            index_t filled = 0;
            while (filled < k && S[b](0, filled) > T(0)) ++filled;
            complete_rows<T>(tall ? U[b] : V[b], filled);
            fix_signs<T>(U[b], V[b], false);
            status[b] = svd_done;
        }
        return;
    }
    for_items(A.count, plan::measure_columns(k, side), on_lapack);
}

}  // namespace lapgrad
