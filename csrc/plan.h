// The choices that measurement made, in one table: which algorithm runs a routine at which size.
//
// Each number was chosen on a 2-core and a 16-core machine by `lapgrad bench`; `lapgrad info` prints them.
#pragma once

#include <algorithm>
#include <string>

#include "isa.h"

namespace lapgrad::plan {

// Batches up to this order go one matrix per lane.
template <class T>
constexpr index_t lane_order = sizeof(T) == 8 ? 24 : 32;

// Products whose largest side is at most this run on the own kernel, larger ones go to BLAS.
template <class T>
constexpr index_t own_product = 128;

// Orders up to this run on one thread, however many there are.
constexpr index_t serial_order(int threads) { return threads <= 4 ? 128 : 192; }

// Columns of a right-hand side that one thread takes at a time, at least.
constexpr index_t slice_columns = 32;

// Rows and columns of the tiles that a triangular product is cut into.
inline index_t triangle_tile(index_t n, int threads) {
    const index_t tile = n / (threads > 1 ? 2 * threads : 4);
    return std::clamp<index_t>((tile + 31) / 32 * 32, 64, 512);
}

inline std::string describe(int threads) {
    const auto row = [](const char* what, index_t f32, index_t f64) {
        return std::string(what) + ": " + std::to_string(f32) + " / " + std::to_string(f64) + "\n";
    };
    return "largest order (float32 / float64) that\n" +
           row("  batches run one matrix per vector lane", lane_order<float>, lane_order<double>) +
           row("  single matrices run without recursion", isa::leaf, isa::leaf) +
           row("  products run on the own kernel instead of BLAS", own_product<float>, own_product<double>) +
           row("  one matrix runs on one thread", serial_order(threads), serial_order(threads));
}

}  // namespace lapgrad::plan
