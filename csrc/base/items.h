// How a batch runs: one matrix per lane, one item per thread, or all threads on one item.
#pragma once

#include <algorithm>

#include "base/blas.h"
#include "base/parallel.h"
#include "base/plan.h"
#include "base/scratch.h"

namespace lapgrad {

// body(item index, parallel inside the item?) for every item: the items side by side when there are enough of them,
// otherwise one after the other with all threads on each.
template <class F>
void for_items(index_t count, index_t order, index_t serial_order, F body) {
    const int team = parallel::threads();
    const bool inside = order > serial_order;
    const bool beside = count > 1 && (count >= team || !inside) && blas::serial_in_parallel_region;
    if (beside) {
        parallel::for_each(count, [&](index_t b) {
            // Inside a team LAPACK would plan for threads that it does not get, and getrf of MKL then waits for them.
            const blas::OneThread alone(true);
            body(b, false);
        });
        return;
    }
    const blas::OneThread serial(!inside || team == 1);
    for (index_t b = 0; b < count; ++b) body(b, inside && team > 1);
}

template <class F>
void for_items(index_t count, index_t order, F body) {
    for_items(count, order, plan::serial_order(parallel::threads()), body);
}

// Lanes pay from a few matrices on; items must be dense for the transposing loads.
template <class T, class... Batches>
bool fits_lanes(index_t count, index_t order, const Batches&... batches) {
    return count > 1 && order <= plan::lane_order<T>() && (batches.dense() && ...);
}

// body(begin, end) over groups of whole vectors.
template <class T, class F>
void for_lane_ranges(index_t count, index_t work_per_item, F body) {
    const index_t lanes = isa::kernels<T>().lanes;
    const index_t groups = (count + lanes - 1) / lanes;
    // About 20,000 operations make a range worth handing to another thread.
    const index_t grain = std::max<index_t>(1, 20000 / std::max<index_t>(1, work_per_item * lanes));
    parallel::for_ranges(groups, grain, [&](index_t begin, index_t end) {
        body(begin * lanes, std::min(count, end * lanes));
    });
}

}  // namespace lapgrad
