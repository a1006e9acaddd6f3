// Which entries of two matrices are close: torch.isclose in one pass over both, whatever their order in memory.
#pragma once

#include <algorithm>

#include "base/isa.h"
#include "base/parallel.h"
#include "base/view.h"

namespace lapgrad {

// close (contiguous) := |A - B| <= atol + |rtol B| where that is finite, or A = B. A is stored by rows.
template <class T>
void isclose_batch(Batch<const T> A, Batch<const T> B, T rtol, T atol, bool* close) {
    constexpr index_t side = 16, grain = 16384;  // columns of a strip of B stay within the cache
    const index_t rows = A.rows, cols = A.cols, strips = (rows + side - 1) / side;
    parallel::for_ranges(A.count * strips, 1 + grain / (std::min(rows, side) * cols), [&](index_t begin, index_t end) {
        for (index_t strip = begin; strip < end; ++strip) {
            const index_t item = strip / strips, first = strip % strips * side, height = std::min(rows - first, side);
            isa::kernels<T>().compare_close(A[item].block(first, 0, height, cols), B[item].block(first, 0, height, cols), rtol, atol,
                                            close + (item * rows + first) * cols);
        }
    });
}

}  // namespace lapgrad
