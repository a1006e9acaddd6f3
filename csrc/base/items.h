// How a batch is run: one matrix per vector lane, one item per thread, or all threads on one item after the other.
#pragma once

#include <algorithm>

#include "base/blas.h"
#include "base/parallel.h"
#include "base/plan.h"
#include "base/scratch.h"

namespace lapgrad {

// Returns how many of `count` large items are left over by rounds in which each thread takes one. All threads then work on each of them:
// otherwise most would wait while a few take the last ones. If many are left over, or there are many rounds, little is gained.
inline index_t count_left_over(index_t count, index_t team) {
    const index_t rest = count % team;
    return count < plan::uneven_rounds * team && rest <= std::max<index_t>(1, team / 4) ? rest : 0;
}

// Calls body(item, parallel) for every item: items in parallel if there are enough of them or they are small, otherwise one
// after the other with all threads on each (`parallel`).
template <class F>
void for_items(index_t count, plan::Work item, index_t serial_order, F body) {
    const bool inside = item.order > serial_order;
    const auto runs_in_parallel = [&](int team) { return count > 1 && (count >= team || !inside) && blas::serial_in_parallel_region; };
    const double work = double(count) * item.multiplications;
    const contention::LongLoop keep(work >= 2.0 * plan::long_multiplications && runs_in_parallel(parallel::pool_threads()));
    const int team = parallel::threads();
    index_t done = 0;
    if (runs_in_parallel(team)) {
        const bool is_worth_threads = work >= 2.0 * plan::parallel_operations;
        done = count - (inside ? count_left_over(count, team) : 0);
        // Several ranges per thread balance items that take different times.
        const index_t size = is_worth_threads ? std::max<index_t>(1, done / (8 * team)) : done;
        parallel::for_each((done + size - 1) / size, [&](index_t r) {
            // Inside a team LAPACK would plan for threads that it does not get, and MKL's getrf would wait for them.
            const blas::OneThread alone(true);
            for (index_t b = r * size; b < std::min(done, (r + 1) * size); ++b) body(b, false);
        });
        if (done == count) return;
    }
    const blas::ThreadLimit limit(!inside ? 1 : team < parallel::pool_threads() ? team : 0);
    for (index_t b = done; b < count; ++b) body(b, inside && team > 1);
}

template <class F>
void for_items(index_t count, plan::Work item, F body) {
    for_items(count, item, plan::serial_order(parallel::threads()), body);
}

// Calls body(first, number) for parts of a batch whose intermediate results, `elements` numbers per item, stay within the cache. Parts run
// in parallel; a batch that is one part runs with all threads at the disposal of the body. Parts of small items are whole vectors of
// lanes, if need be beyond the innermost cache: with a part of the lanes, kernels take as long.
template <class T, class F>
void for_parts(index_t count, index_t elements, F body) {
    const index_t lanes = isa::kernels<T>().lanes, fitting = plan::cached_elements / std::max<index_t>(1, elements);
    const index_t size = elements > plan::cached_elements ? 1 : fitting < lanes ? lanes : fitting / lanes * lanes;
    if (count <= size || !blas::serial_in_parallel_region) return body(index_t(0), count);
    parallel::for_ranges(count, size, [&](index_t begin, index_t end) {
        const blas::OneThread alone(true);
        for (index_t first = begin; first < end; first += size) body(first, std::min(size, end - first));
    });
}

// Whether a batch is computed with one matrix per lane. Items must be dense, because they are loaded by transposition.
template <class T, class... Batches>
bool fits_lanes(index_t count, index_t order, const Batches&... batches) {
    return count > 1 && order <= plan::lane_order<T>() && (batches.dense() && ...);
}

// The same for products of m x k and k x n matrices, which may have one long side.
template <class T, class... Batches>
bool fits_product_lanes(index_t count, index_t m, index_t n, index_t k, const Batches&... batches) {
    const index_t most = plan::lane_order<T>();
    return count > 1 && m * n * k <= most * most * most && std::max(m * n, std::max(m * k, k * n)) <= isa::lane_product_elements &&
           (batches.dense() && ...);
}

// Calls body(begin, end) for ranges of items that are whole vectors, in parallel where the work is worth it.
template <class T, class F>
void for_lane_ranges(index_t count, index_t work_per_item, F body) {
    const index_t lanes = isa::kernels<T>().lanes;
    const index_t groups = (count + lanes - 1) / lanes;
    const index_t grain = std::max<index_t>(1, plan::parallel_operations / std::max<index_t>(1, work_per_item * lanes));
    parallel::for_ranges(groups, grain, [&](index_t begin, index_t end) {
        body(begin * lanes, std::min(count, end * lanes));
    });
}

}  // namespace lapgrad
