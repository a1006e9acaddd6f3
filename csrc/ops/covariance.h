// Matrices of stationary covariance functions, K = s phi(|f - g|^2) for rows f of F and g of G, and their gradients. Each entry is computed
// from the differences of coordinates: exact at any offset, and s where points coincide.
#pragma once

#include <algorithm>
#include <vector>

#include "base/buffer.h"
#include "base/isa.h"
#include "base/scratch.h"
#include "base/triangle.h"

namespace lapgrad {

// Coordinates of points (m x d) as rows, filled up with zeros.
template <class T>
class PointColumns {
  public:
    explicit PointColumns(View<const T> points)
        : stride(std::max<index_t>(1, (points.rows + isa::covariance_columns - 1) / isa::covariance_columns) * isa::covariance_columns),
          memory_(allocate<T>(stride * std::max<index_t>(1, points.cols))) {
        for (index_t k = 0; k < points.cols; ++k) {
            T* const row = memory_.get() + k * stride;
            for (index_t j = 0; j < points.rows; ++j) row[j] = points(j, k);
            std::fill(row + points.rows, row + stride, T(0));
        }
    }
    const T* from(index_t column) const { return memory_.get() + column; }

    const index_t stride;

  private:
    Buffer<T> memory_;
};

// Calls body(first, number) for blocks of columns, whose coordinates stay within the cache for a strip of rows.
template <class F>
void for_covariance_columns(index_t columns, F body) {
    for (index_t j = 0; j < columns; j += isa::covariance_columns) body(j, std::min(isa::covariance_columns, columns - j));
}

// K := s phi. Without data in G, of F with itself.
template <class T>
void covariance_item(Profile profile, T variance, View<const T> F, View<const T> G, View<T> K, bool parallel) {
    const bool symmetric = G.data == nullptr;
    const PointColumns<T> columns(symmetric ? F : G);
    for_strips(K.rows, K.cols, parallel, [&](index_t begin, index_t end) {
        for_covariance_columns(symmetric ? end : K.cols, [&](index_t j, index_t number) {
            isa::kernels<T>().covariances(profile, variance, F.block(begin, 0, end - begin, F.cols), columns.from(j), columns.stride,
                                          K.block(begin, j, end - begin, number));
        });
    });
    if (symmetric) mirror_lower<T>(K, parallel);
}

// The cotangents of both triangles, for rows [begin, end) and the columns up to `end`, with zeros above the diagonal.
template <class T>
void fold_cotangents(View<const T> C, index_t begin, View<T> folded) {
    add_transpose<T>(C, begin, folded, false);
    for (index_t i = 0; i < folded.rows; ++i) {
        folded(i, begin + i) *= T(0.5);
        for (index_t j = begin + i + 1; j < folded.cols; ++j) folded(i, j) = T(0);
    }
}

// Gradients of <C, K>: of_F and (without data in G: not) of_G are overwritten. Returns that of the variance.
template <class T>
double covariance_item_vjp(Profile profile, T variance, View<const T> F, View<const T> G, View<const T> C, View<T> of_F, View<T> of_G,
                           bool parallel) {
    const bool symmetric = G.data == nullptr;
    const index_t n = C.rows, m = C.cols, d = F.cols, strips = (n + strip_rows - 1) / strip_rows;
    const PointColumns<T> columns(symmetric ? F : G);
    const index_t numbers = columns.stride * std::max<index_t>(1, d);
    set_zero<T>(of_F);
    // Each part of the strips has sums of its own for the columns; rows belong to one part.
    const index_t parts = parallel && n * m >= plan::parallel_elements ? std::min<index_t>(strips, parallel::threads()) : 1;
    const Buffer<T> of_columns = allocate<T>(parts * numbers);
    std::fill(of_columns.get(), of_columns.get() + parts * numbers, T(0));
    std::vector<double> of_variance(parts, 0.0);
    parallel::for_each(parts, [&](index_t p) {
        const Buffer<T> folded = allocate<T>(symmetric ? strip_rows * m : 0), sums = allocate<T>(isa::kernels<T>().lanes * d);
        for (index_t s = p; s < strips; s += parts) {
            const index_t begin = s * strip_rows, rows = std::min(strip_rows, n - begin), wide = symmetric ? begin + rows : m;
            const View<T> lower{folded.get(), rows, wide, wide, 1};
            if (symmetric) fold_cotangents<T>(C, begin, lower);
            const View<const T> here = symmetric ? lower.readonly() : C.block(begin, 0, rows, m);
            for_covariance_columns(wide, [&](index_t j, index_t number) {
                of_variance[p] += isa::kernels<T>().covariances_reverse(
                    profile, variance, F.block(begin, 0, rows, d), columns.from(j), columns.stride, here.columns(j, number),
                    of_F.block(begin, 0, rows, d), of_columns.get() + p * numbers + j, sums.get());
            });
        }
    });
    const View<T> target = symmetric ? of_F : of_G;
    if (!symmetric) set_zero<T>(of_G);
    for (index_t p = 0; p < parts; ++p)
        for (index_t k = 0; k < d; ++k)
            for (index_t j = 0; j < m; ++j) target(j, k) -= of_columns[p * numbers + k * columns.stride + j];
    double total = 0;
    for (const double part : of_variance) total += part;
    return total;
}

template <class T>
void covariance_batch(Profile profile, const T* variance, index_t variance_stride, Batch<const T> F, Batch<const T> G, Batch<T> K) {
    for_passes(K.count, K.rows * K.cols, [&](index_t b, bool parallel) {
        covariance_item<T>(profile, variance[b * variance_stride], F[b], G[b], K[b], parallel);
    });
}

// of_variance has one number per item.
template <class T>
void covariance_vjp_batch(Profile profile, const T* variance, index_t variance_stride, Batch<const T> F, Batch<const T> G,
                          Batch<const T> C, Batch<T> of_F, Batch<T> of_G, T* of_variance) {
    for_passes(C.count, C.rows * C.cols, [&](index_t b, bool parallel) {
        of_variance[b] = static_cast<T>(
            covariance_item_vjp<T>(profile, variance[b * variance_stride], F[b], G[b], C[b], of_F[b], of_G[b], parallel));
    });
}

}  // namespace lapgrad
