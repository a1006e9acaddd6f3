// The choices that measurement made, in one table: which algorithm runs a routine at which size.
//
// The defaults were chosen on a 2-core and a 16-core machine against `lapgrad bench ops`; `lapgrad info` prints the table,
// and tests set entries to reach every path with small matrices.
#pragma once

#include <algorithm>

#include "base/isa.h"

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
    // From this order on, triangular solves go to the library that gives BLAS; 0: never.
    index_t vendor_trsm_f32 = 0, vendor_trsm_f64 = 0;
    // The same for Cholesky factorisations on few and on many threads (on one thread: never).
    index_t vendor_potrf_few_f32 = 0, vendor_potrf_few_f64 = 0;
    index_t vendor_potrf_many_f32 = 0, vendor_potrf_many_f64 = 0;
    // A solve by that library up to this order runs on one thread.
    index_t vendor_trsm_serial = 96;
    // Rows of gelqf that are reduced together when Q is not wanted. Between 64 and 192 little changes; the recursion takes
    // 0.44 / 0.19 (512 x 4096) and 0.67 / 0.49 (1024 x 1024) of the time of MKL's geqrf, float64 / float32 on 2 threads. So
    // LAPACK is not called for it at any size.
    index_t lq_panel = 128;
};

// MKL on Intel CPUs, time of its routine over that of the recursion (16-core machine, float64 / float32):
//     trsm   n = 64: 1.0 to 1.5, n >= 128 on 1 and 2 threads 0.66 to 0.96 / 0.84 to 1.16, n = 256 on 16 threads 0.3 / 0.35 to 0.56
//     potrf  2 threads: n <= 512 0.95 to 1.9 / 1.3 to 4.2, n >= 1024 0.83 to 0.88 / 1.09 down to 0.85;
//            16 threads: n >= 256 0.61 to 0.85 / n >= 1024 0.67 to 0.88
// On other CPUs MKL's trsm reaches a third of the speed of its products: there the recursions stay.
inline void use_vendor_routines(Plan& plan) {
    plan.vendor_trsm_f32 = plan.vendor_trsm_f64 = 128;
    plan.vendor_potrf_few_f32 = 2048;
    plan.vendor_potrf_few_f64 = 1024;
    plan.vendor_potrf_many_f32 = 1024;
    plan.vendor_potrf_many_f64 = 256;
}

struct Entry {
    const char* name;
    index_t Plan::*field;
};
constexpr Entry entries[] = {
    {"lane_order_f32", &Plan::lane_order_f32},       {"lane_order_f64", &Plan::lane_order_f64},
    {"own_product_f32", &Plan::own_product_f32},     {"own_product_f64", &Plan::own_product_f64},
    {"serial_order_few", &Plan::serial_order_few},   {"serial_order_many", &Plan::serial_order_many},
    {"slice_columns", &Plan::slice_columns},         {"smallest_tile", &Plan::smallest_tile},
    {"largest_tile", &Plan::largest_tile},           {"vendor_trsm_f32", &Plan::vendor_trsm_f32},
    {"vendor_trsm_f64", &Plan::vendor_trsm_f64},     {"vendor_trsm_serial", &Plan::vendor_trsm_serial},
    {"vendor_potrf_few_f32", &Plan::vendor_potrf_few_f32},
    {"vendor_potrf_few_f64", &Plan::vendor_potrf_few_f64},
    {"vendor_potrf_many_f32", &Plan::vendor_potrf_many_f32},
    {"vendor_potrf_many_f64", &Plan::vendor_potrf_many_f64},
    {"lq_panel", &Plan::lq_panel},
};

inline Plan current;

// Slim products of at least so many multiplications are worth the threads.
constexpr index_t shared_work = 1 << 18;

template <class T>
index_t lane_order() {
    return std::min(sizeof(T) == 4 ? current.lane_order_f32 : current.lane_order_f64, isa::lane_limit);
}

template <class T>
index_t own_product() {
    return std::min(sizeof(T) == 4 ? current.own_product_f32 : current.own_product_f64, isa::product_limit);
}

inline bool few(int threads) { return threads <= 4; }

inline index_t serial_order(int threads) {
    return few(threads) ? current.serial_order_few : current.serial_order_many;
}

template <class T>
bool vendor_trsm(index_t n) {
    const index_t least = sizeof(T) == 4 ? current.vendor_trsm_f32 : current.vendor_trsm_f64;
    return least > 0 && n >= least;
}

template <class T>
bool vendor_potrf(index_t n, int threads) {
    const index_t least = few(threads)
                              ? (sizeof(T) == 4 ? current.vendor_potrf_few_f32 : current.vendor_potrf_few_f64)
                              : (sizeof(T) == 4 ? current.vendor_potrf_many_f32 : current.vendor_potrf_many_f64);
    return least > 0 && n >= least;
}

// Small enough for every thread to get some tiles, large enough for a product to run at speed.
inline index_t triangle_tile(index_t n, int threads) {
    const index_t tile = n / (threads > 1 ? 2 * threads : 4);
    return std::max(current.smallest_tile, std::min((tile + 31) / 32 * 32, current.largest_tile));
}

// Columns of an inverse that one thread solves for at a time: the first slices cost most, and short ones balance them.
inline index_t inverse_slice(index_t n, int threads) {
    return std::max<index_t>(64, std::min<index_t>(256, n / (2 * threads)));
}

}  // namespace lapgrad::plan
