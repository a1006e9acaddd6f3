// Determinants and inverses from P F = L U (LAPACK's getrf), in place.
//
// The inverse F^-1 = U^-1 L^-1 P replaces the factors, without a workspace: both triangles are inverted in place (n^3/3 each) and
// multiplied in place (2/3 n^3), then the columns are permuted:
//
//     [U11 U12]-1  =  [U11^-1  -U11^-1 U12 U22^-1]        [U11 U12] [L11    ]  =  [U11 L11 + U12 L21   U12 L22]
//     [    U22]       [             U22^-1       ]        [    U22] [L21 L22]     [     U22 L21        U22 L22]
//
// Both recursions touch each block only after its last use. L has ones on its diagonal, where U's diagonal is stored.
//
// Views called F are column-major (row stride 1), as LAPACK wants them. A row-major matrix is factorised as its transpose.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "base/items.h"
#include "base/lapack.h"
#include "base/range.h"
#include "base/triangle.h"
#include "ops/trmm.h"

namespace lapgrad {

using pivot_t = blas::blas_int;

// Returns the status of a factorisation: -k if pivot k (from 1) is the first that is NaN or infinite, else +k if pivot k is the
// first that is zero, else 0.
template <class T>
std::int32_t check_pivots(View<const T> F) {
    std::int32_t zero = 0;
    for (index_t k = 0; k < F.rows; ++k) {
        if (!std::isfinite(F(k, k))) return -std::int32_t(k + 1);
        if (F(k, k) == T(0) && !zero) zero = std::int32_t(k + 1);
    }
    return zero;
}

// F := L \ U; row k was exchanged with row pivots[k] (from 1). Returns the status of check_pivots.
template <class T>
std::int32_t factor_lu(View<T> F, pivot_t* pivots) {
    const blas::blas_int n = blas::narrow(F.rows), ld = blas::narrow(F.col_stride);
    blas::blas_int info = 0;
    lapack::routines<T>().getrf(&n, &n, F.data, &ld, pivots, &info);
    return check_pivots<T>(F);
}

// A determinant as mantissa * 2^exponent, 1/2 <= |mantissa| < 1 or 0, because partial products of pivots may overflow when the
// determinant does not.
template <class T>
struct Determinant {
    T mantissa = 1;
    int exponent = 0;

    T value() const { return std::scalbn(mantissa, exponent); }
    T sign() const { return T((mantissa > 0) - (mantissa < 0)); }
    T logarithm() const {
        const T size = std::abs(mantissa);
        // The mantissa is moved to [1/sqrt 2, sqrt 2), so that the logarithm of a determinant close to 1 keeps its digits.
        const bool low = size < T(0.70710678118654752440);
        return std::log(low ? 2 * size : size) + T(exponent - low) * T(0.69314718055994530942);
    }
};

// Returns the determinant from the factors F.
template <class T>
Determinant<T> multiply_pivots(View<const T> F, const pivot_t* pivots) {
    Determinant<T> found;
    for (index_t k = 0; k < F.rows; ++k) {
        int of_pivot = 0, of_product = 0;
        const T mantissa = std::frexp(F(k, k), &of_pivot);
        found.mantissa = std::frexp(pivots[k] == k + 1 ? found.mantissa * mantissa : -found.mantissa * mantissa, &of_product);
        found.exponent += of_pivot + of_product;
    }
    return found;
}

// While alive, the diagonal of F holds ones; then it is restored.
template <class T>
class UnitDiagonal {
  public:
    explicit UnitDiagonal(View<T> F) : F_(F), kept_(F.rows) {
        for (index_t i = 0; i < F.rows; ++i) {
            kept_[i] = F(i, i);
            F(i, i) = T(1);
        }
    }
    ~UnitDiagonal() {
        for (index_t i = 0; i < F_.rows; ++i) F_(i, i) = kept_[i];
    }
    UnitDiagonal(const UnitDiagonal&) = delete;
    UnitDiagonal& operator=(const UnitDiagonal&) = delete;

  private:
    View<T> F_;
    std::vector<T> kept_;
};

// Replaces the upper triangle of F, or with `lower` the unit lower one, by its inverse; the other one is not changed.
template <class T>
void invert_triangle(View<T> F, bool lower, bool parallel) {
    const index_t n = F.rows;
    if (n <= isa::leaf) {
        const LeafTriangle<T> triangle(F, lower, lower);
        alignas(64) T entries[isa::leaf * isa::leaf];
        const View<T> inverse{entries, n, n, isa::leaf, 1};
        set_identity<T>(inverse);
        solve_triangle<T>(triangle.view, lower, inverse);
        for (index_t j = 0; j < n; ++j)
            for (index_t i = lower ? j + 1 : 0; i < (lower ? n : j + 1); ++i) F(i, j) = inverse(i, j);
        return;
    }
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    const index_t first = split_order(n), second = n - first;
    const View<T> F11 = F.block(0, 0, first, first), F22 = F.block(first, first, second, second);
    if (lower) {
        const View<T> F21 = F.block(first, 0, second, first);
        trsm<T>(F22, true, F21, parallel, true);
        trsm<T>(F11.t(), false, F21.t(), parallel, true);
        copy<T>(F21, T(-1), F21, parallel);
    } else {
        const View<T> F12 = F.block(0, first, first, second);
        trsm<T>(F11, false, F12, parallel);
        trsm<T>(F22.t(), true, F12.t(), parallel);
        copy<T>(F12, T(-1), F12, parallel);
    }
    invert_triangle<T>(F11, lower, parallel);
    invert_triangle<T>(F22, lower, parallel);
}

// F := its upper triangle times its unit lower triangle.
template <class T>
void multiply_triangles(View<T> F, bool parallel) {
    const index_t n = F.rows;
    if (n <= isa::leaf) {
        const LeafTriangle<T> upper(F, false, false), lower(F, true, true);
        // The product kernel writes rows: (U L)' = L' U'.
        isa::kernels<T>().product(T(1), lower.view.readonly().t(), upper.view.readonly().t(), false, F.t(), scratch<T>());
        return;
    }
    const blas::OneThread small(parallel && n <= plan::serial_order(parallel::threads()));
    parallel = parallel && !small.is_active();
    const index_t first = split_order(n), second = n - first;
    const View<T> F11 = F.block(0, 0, first, first), F22 = F.block(first, first, second, second);
    const View<T> F12 = F.block(0, first, first, second), F21 = F.block(first, 0, second, first);
    multiply_triangles<T>(F11, parallel);
    gemm<T>(1, F12, F21, true, F11);
    {
        const UnitDiagonal<T> unit(F22);
        trmm<T>(F22.t(), false, F12.t(), parallel);
    }
    trmm<T>(F22, false, F21, parallel);
    multiply_triangles<T>(F22, parallel);
}

// F := F P for the P of the row exchanges, in strips of rows that stay within the cache; then calls scale(numbers, count) on the
// contiguous runs of each strip.
template <class T, class Scale>
void exchange_columns(View<T> F, const pivot_t* pivots, bool parallel, Scale scale) {
    for_strips(F.rows, F.cols, parallel, [&](index_t begin, index_t end) {
        if (F.col_stride == 1) {
            for (index_t i = begin; i < end; ++i) {
                T* row = F.at(i, 0);
                for (index_t k = F.cols - 1; k >= 0; --k) std::swap(row[k], row[pivots[k] - 1]);
                scale(row, F.cols);
            }
            return;
        }
        for (index_t k = F.cols - 1; k >= 0; --k) {
            const index_t other = pivots[k] - 1;
            if (other == k) continue;
            T *a = F.at(begin, k), *b = F.at(begin, other);
            for (index_t i = 0; i < end - begin; ++i) std::swap(a[i], b[i]);
        }
        for (index_t k = 0; k < F.cols; ++k) scale(F.at(begin, k), end - begin);
    });
}

// Replaces the factors F by the inverse; `scale` as in exchange_columns.
template <class T, class Scale>
void invert_factors(View<T> F, const pivot_t* pivots, bool parallel, Scale scale) {
    // The triangles are independent of each other: with few threads, one thread inverts each.
    const bool in_parallel = parallel && plan::is_few(parallel::threads()) && blas::serial_in_parallel_region;
    if (in_parallel)
        parallel::for_each(2, [&](index_t which) { invert_triangle<T>(F, which == 0, false); });
    else
        for (const bool lower : {true, false}) invert_triangle<T>(F, lower, parallel);
    multiply_triangles<T>(F, parallel);
    exchange_columns<T>(F, pivots, parallel, scale);
}

// X := the inverse from the factors F, which are not changed: the columns of the identity are solved with L and U, slice by slice.
// The zeros of L^-1 above its diagonal are not computed. `scale` as in exchange_columns.
template <class T, class Scale>
void invert_from_factors(View<const T> F, const pivot_t* pivots, View<T> X, bool parallel, Scale scale) {
    const index_t n = F.rows, width = parallel ? plan::inverse_slice(n, parallel::threads()) : std::min(n, plan::largest_slice);
    const auto slice = [&](index_t s) {
        const index_t begin = s * width, cols = std::min(width, n - begin);
        const View<T> part = X.columns(begin, cols);
        set_zero<T>(part.row_major() ? part : part.t());
        for (index_t j = 0; j < cols; ++j) part(begin + j, j) = T(1);
        trsm<T>(F.block(begin, begin, n - begin, n - begin), true, part.block(begin, 0, n - begin, cols), false, true);
        trsm<T>(F, false, part, false);
    };
    const index_t slices = (n + width - 1) / width;
    if (parallel)
        parallel::for_each(slices, slice);
    else
        for (index_t s = 0; s < slices; ++s) slice(s);
    exchange_columns<T>(X, pivots, parallel, scale);
}

// Returns A, or its transpose, whichever is column-major as LAPACK needs it.
template <class T>
View<T> view_column_major(View<T> A) {
    return A.row_major() ? A.t() : A;
}

// Lanes are taken up to their limit, also in float64: at orders 25 to 32 they take a third of the time of LAPACK item by item.
template <class T, class... Batches>
bool fits_lu_lanes(index_t count, index_t order, const Batches&... batches) {
    const index_t most = plan::lane_order<T>() > 0 ? isa::lane_limit : 0;
    return (count > 1 || order <= plan::lone_lane_order) && order <= most && (batches.dense() && ...);
}

// F := scale F^-1. Returns the status of its factorisation, or n + 1 if the inverse is not finite.
template <class T>
std::int32_t invert_in_place(View<T> F, T scale, bool parallel) {
    std::vector<pivot_t> pivots(F.rows);
    const std::int32_t status = factor_lu<T>(F, pivots.data());
    if (status) return status;
    std::atomic<bool> finite{true};
    invert_factors<T>(F, pivots.data(), parallel, [&](T* x, index_t count) {
        T nothing = 0;
        for (index_t i = 0; i < count; ++i) {
            x[i] *= scale;
            nothing += x[i] * T(0);  // NaN as soon as an entry is infinite or NaN
        }
        if (nothing != nothing) finite = false;
    });
    return finite ? 0 : std::int32_t(F.rows + 1);
}

// B := A^-1, status per item: that of its factorisation, or n + 1 if the inverse is not finite. Failed items become the
// identity. Intermediate results of a matrix with very large or small entries can overflow although its inverse does not: such
// an item is scaled and retried once. B may be A's own memory.
template <class T>
void inverse_batch(Batch<const T> A, Batch<T> B, std::int32_t* status) {
    const index_t n = A.rows;
    if (n == 0) return std::fill(status, status + A.count, 0), void();
    if (fits_lu_lanes<T>(A.count, n, A, B)) {
        for_lane_ranges<T>(A.count, 2 * n * n * (n + 8), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_inverse(A, B, nullptr, false, status, begin, end, thread_scratch());
        });
        for (index_t b = 0; b < A.count; ++b)
            if (status[b]) set_identity<T>(B[b]);
        return;
    }
    for_items(A.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        copy<T>(A[b], T(1), B[b], parallel);
        const View<T> F = view_column_major<T>(B[b]);
        const T scale = range_scale<T>(find_largest_entry<T>(F));
        std::vector<T> kept;  // B may be A's own memory
        if (scale != T(1)) {
            kept.resize(n * n);
            copy<T>(F, T(1), View<T>{kept.data(), n, n, 1, n}, parallel);
        }
        status[b] = invert_in_place<T>(F, T(1), parallel);
        if (status[b] && scale != T(1)) {
            copy<T>(View<const T>{kept.data(), n, n, 1, n}, scale, F, parallel);
            status[b] = invert_in_place<T>(F, scale, parallel);
        }
        if (status[b]) set_identity<T>(B[b]);
    });
}

// gA := -B' gB B'.
template <class T>
void inverse_vjp_batch(Batch<const T> B, Batch<const T> gB, Batch<T> gA) {
    const index_t n = B.rows;
    if (n == 0) return;
    if (fits_lu_lanes<T>(B.count, n, B, gB, gA)) {
        for_lane_ranges<T>(B.count, 4 * n * n * (n + 4), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_inverse_vjp(B, gB, gA, begin, end, thread_scratch());
        });
        return;
    }
    const contention::LongLoop keep(double(n) * double(n) * double(n) >= plan::long_multiplications);
    for_items(B.count, plan::measure_cube(n), [&](index_t b, bool) {
        const Buffer<T> entries = allocate<T>(n * n);
        const View<T> middle{entries.get(), n, n, n, 1};
        gemm<T>(1, B[b].t(), gB[b], false, middle);
        gemm<T>(-1, middle, B[b].t(), false, gA[b]);
    });
}

// first := det A; or, with `second`, first := its sign and second := log |det A|. F (column-major, so that a row-major A is copied
// without transposition) and pivots receive the factors of A'. If F.data is null, which is allowed up to order isa::leaf, the
// factors are discarded.
template <class T>
void determinant_batch(Batch<const T> A, T* first, T* second, Batch<T> F, pivot_t* pivots, std::int32_t* status) {
    const index_t n = A.rows;
    if (F.data == nullptr && n > 0 && fits_lu_lanes<T>(A.count, n, A)) {
        for_lane_ranges<T>(A.count, n * n * (n + 12), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_determinant(A, first, second, status, begin, end, thread_scratch());
        });
        return;
    }
    for_items(A.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        alignas(64) T local_factors[isa::leaf * isa::leaf];
        pivot_t local_pivots[isa::leaf];
        const View<T> factors = F.data ? F[b] : View<T>{local_factors, n, n, 1, std::max<index_t>(n, 1)};
        pivot_t* const exchanges = F.data ? pivots + b * n : local_pivots;
        copy<T>(A[b].t(), T(1), factors, parallel);
        status[b] = n == 0 ? 0 : factor_lu<T>(factors, exchanges);
        const Determinant<T> found = status[b] > 0 ? Determinant<T>{0, 0} : multiply_pivots<T>(factors, exchanges);
        first[b] = second ? found.sign() : found.value();
        if (second) second[b] = status[b] > 0 ? -std::numeric_limits<T>::infinity() : found.logarithm();
    });
}

// gA := weight A^-T, or with `by_determinant` weight det(A) A^-T, status per item. F and pivots hold the factors of A' if F.data is
// not null. A singular item becomes zero. With `by_determinant`, an item whose inverse is not finite has status n + 1.
template <class T>
void determinant_vjp_batch(Batch<const T> A, Batch<const T> F, const pivot_t* pivots, const T* weight,
                           bool by_determinant, Batch<T> gA, std::int32_t* status) {
    const index_t n = A.rows;
    if (n == 0) return std::fill(status, status + A.count, 0), void();
    if (n == 1 && by_determinant) {  // The determinant is the entry: neither division nor an exception for zeros.
        for (index_t b = 0; b < A.count; ++b) gA.data[b * gA.batch_stride] = weight[b];
        return std::fill(status, status + A.count, 0), void();
    }
    const Batch<T> transposed = gA.t();
    if (F.data == nullptr && fits_lu_lanes<T>(A.count, n, A, gA)) {
        for_lane_ranges<T>(A.count, 2 * n * n * (n + 8), [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_inverse(A, transposed, weight, by_determinant, status, begin, end, thread_scratch());
        });
        for (index_t b = 0; b < A.count; ++b)
            if (status[b]) set_zero<T>(gA[b]);
        return;
    }
    for_items(A.count, plan::measure_cube(n), [&](index_t b, bool parallel) {
        const View<T> G = transposed[b];
        pivot_t local_pivots[isa::leaf];
        const pivot_t* exchanges = F.data ? pivots + b * n : local_pivots;
        if (!F.data) copy<T>(A[b], T(1), G, parallel);
        status[b] = F.data ? check_pivots<T>(F[b]) : factor_lu<T>(G, local_pivots);
        if (status[b]) return set_zero<T>(gA[b]);
        Determinant<T> found;
        if (by_determinant) found = multiply_pivots<T>(F.data ? F[b] : G.readonly(), exchanges);
        const T factor = weight[b] * found.mantissa;
        const int exponent = found.exponent;
        // The determinant may overflow although its product with an entry of the inverse does not.
        const bool in_range = std::abs(exponent) < std::numeric_limits<T>::max_exponent - 2;
        const T whole = in_range ? std::scalbn(factor, exponent) : factor;
        std::atomic<bool> finite{true};
        const auto scale = [&](T* x, index_t count) {
            T nothing = 0;
            for (index_t i = 0; i < count; ++i) {
                nothing += x[i] * T(0);  // NaN as soon as an entry is infinite or NaN
                x[i] *= whole;
                if (!in_range) x[i] = std::scalbn(x[i], exponent);
            }
            if (nothing != nothing) finite = false;
        };
        if (F.data)
            invert_from_factors<T>(F[b], exchanges, gA[b], parallel, scale);
        else
            invert_factors<T>(G, exchanges, parallel, scale);
        if (by_determinant && !finite) status[b] = std::int32_t(n + 1);
    });
}

}  // namespace lapgrad
