// LQ factorisation and its reverse on batches, run as items.h says.
#pragma once

#include <atomic>
#include <utility>

#include "ops/gelqf.h"
#include "base/items.h"

namespace lapgrad {

// One matrix per lane, for as many elements as a square of the largest order has.
template <class T, class... Batches>
bool fits_lq_lanes(index_t count, index_t rows, index_t cols, const Batches&... batches) {
    const index_t order = plan::lane_order<T>();
    const auto row_major = [](const auto& b) { return !b.data || (b.col_stride == 1 && b.row_stride == b.cols); };
    return count > 1 && rows * cols <= order * order && (row_major(batches) && ...);
}

// The order of a cube with as much work, which decides about threads.
inline index_t lq_order(index_t m, index_t n) {
    const index_t r = std::min(m, n), other = std::max(m, n);
    return std::max(r, std::min(other, 2 * r));
}

// The first item for which `found(item)` holds, -1 if there is none; many items are looked at side by side.
template <class F>
index_t first_item(index_t count, index_t elements, F found) {
    std::atomic<index_t> first{count};
    parallel::for_ranges(count, parallel_elements / std::max<index_t>(1, 4 * elements), [&](index_t begin, index_t end) {
        for (index_t b = begin; b < end && b < first; ++b) {
            if (!found(b)) continue;
            for (index_t seen = first; b < seen && !first.compare_exchange_weak(seen, b);) {
            }
        }
    });
    return first < count ? first.load() : -1;
}

// Q, L := factors of A; L alone when Q is without data. Returns the first item with a NaN or an infinity, and its row.
template <class T>
std::pair<index_t, int> gelqf_batch(Batch<const T> A, Batch<T> Q, Batch<T> L, bool positive) {
    const index_t m = A.rows, n = A.cols, r = std::min(m, n);
    if (r > 0 && fits_lq_lanes<T>(A.count, m, n, A, Q, L))
        for_lane_ranges<T>(A.count, (Q.data ? 4 : 2) * r * m * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gelqf(A, Q, L, positive, begin, end, thread_scratch());
        });
    else if (r > 0)
        for_items(A.count, lq_order(m, n), [&](index_t b, bool parallel) {
            if (Q.data) return factor_lq<T>(A[b], Q[b], L[b], positive, parallel);
            // A tall matrix is reduced in the memory of L.
            const Buffer<T> memory = uninitialised<T>(m > n ? 0 : m * n);
            const View<T> work = m > n ? L[b] : View<T>{memory.get(), m, n, n, 1};
            copy<T>(A[b], T(1), work, parallel);
            factor_l<T>(work, L[b], positive, parallel);
        });
    const index_t item = first_item(A.count, m * r, [&](index_t b) { return first_spoilt_row<T>(L[b]) != 0; });
    return {item, item < 0 ? 0 : first_spoilt_row<T>(L[item])};
}

// The first item that has a dependent row, and that row; {-1, -1} if there is none.
template <class T>
std::pair<index_t, index_t> dependent_row_batch(Batch<const T> L, T tolerance, bool relative_to_largest) {
    const index_t items = L.batch_stride == 0 && L.count > 0 ? 1 : L.count;
    const auto row = [&](index_t b) { return first_dependent_row<T>(L[b], tolerance, relative_to_largest); };
    const index_t item = first_item(items, L.cols * L.cols, [&](index_t b) { return row(b) >= 0; });
    return {item, item < 0 ? -1 : row(item)};
}

// gQ or gL may be without data.
template <class T>
void gelqf_vjp_batch(Batch<const T> Q, Batch<const T> L, Batch<const T> gQ, Batch<const T> gL, Batch<T> gA) {
    const index_t m = gA.rows, n = gA.cols;
    if (m == 0 || n == 0) return;
    if (fits_lq_lanes<T>(gA.count, m, n, Q, L, gQ, gL, gA))
        return for_lane_ranges<T>(gA.count, 4 * std::min(m, n) * m * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gelqf_vjp(Q, L, gQ, gL, gA, begin, end, thread_scratch());
        });
    for_items(gA.count, lq_order(m, n), [&](index_t b, bool parallel) {
        reverse_lq<T>(Q[b], L[b], gQ.data ? gQ[b] : gQ[0], gL.data ? gL[b] : gL[0], gA[b], parallel);
    });
}

template <class T>
void gelqf_l_vjp_batch(Batch<const T> A, Batch<const T> L, Batch<const T> gL, Batch<T> gA) {
    const index_t m = A.rows, n = A.cols;
    if (m == 0 || n == 0) return;
    if (fits_lq_lanes<T>(A.count, m, n, A, L, gL, gA))
        return for_lane_ranges<T>(A.count, 3 * std::min(m, n) * m * n, [&](index_t begin, index_t end) {
            isa::kernels<T>().lane_gelqf_l_vjp(A, L, gL, gA, begin, end, thread_scratch());
        });
    for_items(A.count, lq_order(m, n),
              [&](index_t b, bool parallel) { reverse_l<T>(A[b], L[b], gL[b], gA[b], parallel); });
}

}  // namespace lapgrad
