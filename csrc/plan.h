// The choices that measurement made, in one table: which algorithm runs a routine at which size.
//
// The defaults were chosen on a 2-core and a 16-core machine against `lapgrad bench ops`; `lapgrad info` prints the table,
// and tests set entries to reach every path with small matrices.
#pragma once

#include <algorithm>

#include "isa.h"

namespace lapgrad::plan {

struct Plan {
    // Batches up to this order go one matrix per lane, float32 and float64.
    index_t lane_order_f32 = 32, lane_order_f64 = 24;
    // Products with at most one side larger than this run on the own kernel, the others go to BLAS.
    index_t own_product_f32 = 128, own_product_f64 = 128;
    // One matrix up to this order runs on one thread, with few (<= 4) and with many threads.
    index_t serial_order_few = 128, serial_order_many = 256;
    // Columns of a right-hand side that one thread takes at a time, at least.
    index_t slice_columns = 32;
    // Bounds of the side of the tiles that a triangular product is cut into.
    index_t smallest_tile = 64, largest_tile = 512;
};

struct Entry {
    const char* name;
    index_t Plan::*field;
};
constexpr Entry entries[] = {
    {"lane_order_f32", &Plan::lane_order_f32},       {"lane_order_f64", &Plan::lane_order_f64},
    {"own_product_f32", &Plan::own_product_f32},     {"own_product_f64", &Plan::own_product_f64},
    {"serial_order_few", &Plan::serial_order_few},   {"serial_order_many", &Plan::serial_order_many},
    {"slice_columns", &Plan::slice_columns},         {"smallest_tile", &Plan::smallest_tile},
    {"largest_tile", &Plan::largest_tile},
};

inline Plan current;

template <class T>
index_t lane_order() {
    return std::min(sizeof(T) == 4 ? current.lane_order_f32 : current.lane_order_f64, isa::lane_limit);
}

template <class T>
index_t own_product() {
    return std::min(sizeof(T) == 4 ? current.own_product_f32 : current.own_product_f64, isa::product_limit);
}

inline index_t serial_order(int threads) {
    return threads <= 4 ? current.serial_order_few : current.serial_order_many;
}

// Small enough for every thread to get some tiles, large enough for a product to run at speed.
inline index_t triangle_tile(index_t n, int threads) {
    const index_t tile = n / (threads > 1 ? 2 * threads : 4);
    return std::max(current.smallest_tile, std::min((tile + 31) / 32 * 32, current.largest_tile));
}

}  // namespace lapgrad::plan
