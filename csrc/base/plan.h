// Every size and threshold of the CPU core, in one table: which algorithm runs at which size, on how many threads.
//
// There are three kinds: sizes that kernels are compiled for, thresholds that are fixed, and thresholds that can be set at
// run time (Plan). The values were measured on a 2-core and a 16-core machine with `lapgrad bench ops`.
//
// Functions are always inlined for the reason that view.h gives: isa_kernels.cpp includes this file as well.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/view.h"

// Sizes that the kernels per instruction set (small/) are compiled for.
namespace lapgrad::isa {

// Largest order of the kernels that end a recursion, for one matrix on one thread.
constexpr index_t leaf = 32;
// Largest side of an operand of the product kernel, so that packed operands fit the scratch buffer of a thread.
constexpr index_t product_limit = 256;
// Largest order of the batch kernels that hold one matrix per vector lane.
constexpr index_t lane_limit = 32;
// Largest order of the eigenvalue kernel, which holds only two matrices per lane.
constexpr index_t lane_eigen_limit = 64;
// Most numbers in an operand, or in the result, of a product on lanes.
constexpr index_t lane_product_elements = 2 * lane_limit * lane_limit;
// Rows that the leaf of the LQ factorisation reduces: enough independent sums to hide the latency of an addition.
constexpr index_t lq_leaf = 8;

// Vectors of covariances that are computed together, to hide the latency of a polynomial.
constexpr int covariance_vectors = 4;
// Columns of a matrix of covariances that are computed for a strip of rows at a time.
constexpr index_t covariance_columns = 256;

// Size of the scratch buffer that a kernel receives (one per thread): numbers for leaves and products, bytes for lanes.
constexpr index_t scratch_elements = product_limit * (product_limit + 8) + product_limit * 64;
constexpr index_t lane_scratch_bytes = 9 * lane_limit * lane_limit * 64 + 64;
static_assert(lane_scratch_bytes >= 4 * lane_product_elements * 64 + 64);
static_assert(lane_scratch_bytes >= (2 * lane_eigen_limit + 5) * lane_eigen_limit * 64 + 64);

// Independent sums that a lane kernel computes at a time, to hide the latency of an addition.
constexpr index_t chains = 4;
// Rows that the kernels for triangles compute at a time.
constexpr index_t rows_at_once = 4;
// From this many elements on, the rest of an item after its whole vectors is transposed like these, and not moved number by number.
constexpr index_t transposed_rest = 3;
// Rows (or columns) of a product that are computed as sums over vectors, if these are at least this many vectors long, which is worth the
// additions over the lanes; and rows that are computed together, with vectors of columns.
constexpr index_t few_lines = 16, least_sum_vectors = 2, few_rows = 4;
// The next items of a batch are prefetched up to this many bytes per item: the hardware does not predict that many short streams.
constexpr std::size_t prefetched_item_bytes = 512;
// A leaf reads a matrix in place if its rows are at most this many bytes apart; rows farther apart share cache sets.
constexpr std::size_t in_place_row_bytes = 1024;
// With at most this many rows below the pivot, all are exchanged by blending: finding the ones needed would take longer.
constexpr index_t blended_rows = 4;

}  // namespace lapgrad::isa

namespace lapgrad::plan {

// Rows of a memory pass (copy, mirror, fill) that one task takes. A strip of a transposed source stays within the cache.
constexpr index_t strip_rows = 32;
// A memory pass over fewer elements runs on the calling thread.
constexpr index_t parallel_elements = 1 << 15;
// Numbers of intermediate results that stay within the cache of a core.
constexpr index_t cached_elements = 1 << 14;
// The least number of arithmetic operations that is worth a task for another thread.
constexpr index_t parallel_operations = 20000;
// A product with one long side is shared among the threads if it has at least this many multiplications.
constexpr index_t parallel_multiplications = 1 << 18;
// A product in blocks of the core's own kernel is shared among the threads if it has at least this many multiplications, and its columns
// are then cut into pieces of at least this width.
constexpr index_t shared_multiplications = 1 << 22, shared_columns = 48;
// A loop with at least this many multiplications (about 20 ms on one thread) keeps its threads while other programs use the cores:
    // see contention.h.
constexpr double long_multiplications = 4e8;
// From this order on LAPACK's syevd of one matrix chooses its threads by itself: 6 to 24 % less time at orders 48 to 120.
constexpr index_t serial_eigen_order = 32;
// Up to this many rounds of items, one per thread, the items that are left over are shared by all threads.
constexpr index_t uneven_rounds = 8;
// Short rows of observations that are next to each other are taken together, as rows of about this many numbers.
constexpr index_t long_row = 256;
// Slices of a right-hand side per thread while other programs use the cores.
constexpr index_t contended_slices = 4;
// Up to this many threads the algorithms for "few" threads run.
constexpr int few_threads = 4;
// LU kernels with one matrix per lane are faster than LAPACK up to this order even for one matrix.
constexpr index_t lone_lane_order = 8;
// Up to this order gesv factorises and substitutes by plain loops: a call of LAPACK or trsm takes longer.
constexpr index_t loop_order = 16;
// Rows of a column of the pivoted Cholesky factor that one task computes: they stay in the innermost cache while
// the columns before it are subtracted.
constexpr index_t pivoted_strip = 512;
// A column of the pivoted Cholesky factor is shared among the threads if it takes at least this many operations: there is one fork per
// column, and a fork that waits for a busy core takes as long as many columns.
constexpr index_t pivoted_parallel_elements = 1 << 19;
// The rest of the matrix is updated after each block of this many columns of the pivoted Cholesky factor; or never, if at most n /
// few_columns_share columns are wanted.
constexpr index_t pivoted_block = 64, few_columns_share = 8;
// Singular values on lanes: up to this side a group of lanes takes as long as one item on LAPACK; above it, as long as this many items.
constexpr index_t small_svd_side = 8, svd_group_cost = 4;
// Up to this many operations a shortcut keeps the interpreter lock: releasing and acquiring it would take longer.
constexpr index_t locked_operations = 50000;
// Multiplications up to which one product is computed by the core's own kernel, and up to which each of a batch. Above, BLAS has threads
// for one, and torch's batches are as fast. Time of torch.bmm divided by that of the core (AMD EPYC, 1 thread, float64 / float32): orders
// 26 to 48 1.4 to 2.7 / 1.4 to 2.2.
constexpr index_t small_product = 48 * 48 * 48, batched_product = 128 * 128 * 128;
// Up to this many bytes of a row of A both triangles of A A' are computed: copying one would take longer.
constexpr index_t short_sum_bytes = 64;
// A product with one long side is computed by the core's own kernel if it has at most this many rows or columns. Time of MKL divided by that
// of the core (AMD EPYC, 1 thread): 2502 x 9 times 9 x 3 2.5.
constexpr index_t narrow_side = 8;
// The entries of a product are summed one by one if it has at most this many rows and columns, and sums of at least this length.
constexpr index_t few_sums = 4, long_sum = 64;
// Order up to which cotangents of some eigenvectors are filled up with zeros: one kernel for all takes less time than the dozens of
// functions of torch that the formula for some of them is made of.
constexpr index_t padded_order = 256;
// Functions that consist of several operators are one call of the core for matrices of up to this many entries. For larger ones the
// memory of that call counts more than the time that it saves.
constexpr index_t composed_entries = 1 << 14;
// Rows or columns of data up to which principal components are one call, however many columns or rows there are.
constexpr index_t few_variables = 64;
// Order up to which the gradient of a symmetric inverse is computed in buffers of the core; beyond, memory counts more than calls.
constexpr index_t buffered_congruence = 128;
// Runs of a packed triangle up to this many numbers are copied in a loop, longer ones by memcpy.
constexpr index_t short_run = 64;
// Factors of a sum of logarithms that are multiplied before one logarithm is taken of the product.
constexpr index_t log_run = 512;
// Columns of a triangular product in the LQ factorisation that are computed at a time, because they need a copy.
constexpr index_t copied_columns = 64;
// Widths of products that are split among threads are multiples of this.
constexpr index_t width_multiple = 64;
// Bounds of the number of columns of Q, or of an inverse, that one task computes.
constexpr index_t smallest_inverse_slice = 64, largest_slice = 256;
// Series of a Kalman filter are split into at most this many parts, independent of the number of threads. Gradients that series share
// are summed part by part, so that the result does not depend on the order in which threads finish.
constexpr index_t most_kalman_parts = 16;
// With at least this many states, series of single numbers are filtered one after the other, and not one per lane.
constexpr index_t single_kalman_order = 6;
// The adjoint of a single series keeps the results of all steps up to this many bytes. Longer series are processed in segments.
constexpr index_t kept_single_bytes = 32 << 20;
// The adjoint of the Kalman filter keeps predicted moments of up to this many bytes, but of at least this many steps, at a time.
constexpr index_t kept_moment_bytes = 1 << 19, fewest_kept_steps = 8;

// Thresholds that can be set at run time: `lapgrad info` prints them, and tests set them to reach every path with small
// matrices.
struct Plan {
    // Batches up to this order are computed with one matrix per vector lane.
    index_t lane_order_f32 = 32, lane_order_f64 = 24;
    // Products with at most one side larger than this run on the core's own kernel, the others on BLAS.
    index_t own_product_f32 = 128, own_product_f64 = 128;
    // Whether larger products are computed in blocks by the core's own kernel, too (1), or by BLAS (0).
    index_t own_blocks = 0;
    // One matrix up to this order runs on one thread, with few and with many threads.
    index_t serial_order_few = 128, serial_order_many = 256;
    // Columns of a right-hand side that one thread takes at a time, at least.
    index_t slice_columns = 32;
    // Bounds of the side of the tiles that a triangular product is cut into.
    index_t smallest_tile = 64, largest_tile = 512;
    // From this order on, the BLAS library's own triangular solve is called; 0: never.
    index_t vendor_trsm_f32 = 0, vendor_trsm_f64 = 0;
    // The same for Cholesky factorisations on few and on many threads (on one thread: never).
    index_t vendor_potrf_few_f32 = 0, vendor_potrf_few_f64 = 0;
    index_t vendor_potrf_many_f32 = 0, vendor_potrf_many_f64 = 0;
    // From this order on, solves with one column are the BLAS library's, on a column-major copy, and within some multiples of this order
    // those with more; 0: never.
    index_t narrow_solve = 64;
    // A solve by the BLAS library up to this order runs on one thread.
    index_t vendor_trsm_serial = 96;
    // Rows of gelqf that are reduced together when Q is not wanted. Between 64 and 192 little changes. The recursion takes
    // 0.44 / 0.19 (512 x 4096) and 0.67 / 0.49 (1024 x 1024) of the time of MKL's geqrf, float64 / float32 on 2 threads, so
    // LAPACK is not called for it at any size.
    index_t lq_panel = 128;
};

// Sets the thresholds for MKL on Intel CPUs. Time of MKL's routine divided by that of the recursion (16-core machine,
// float64 / float32):
//     trsm   n = 64: 1.0 to 1.5, n >= 128 on 1 and 2 threads 0.66 to 0.96 / 0.84 to 1.16, n = 256 on 16 threads 0.3 / 0.35 to 0.56
//     potrf  2 threads: n <= 512 0.95 to 1.9 / 1.3 to 4.2, n >= 1024 0.83 to 0.88 / 1.09 down to 0.85;
//            16 threads: n >= 256 0.61 to 0.85 / n >= 1024 0.67 to 0.88
// On other CPUs MKL's trsm reaches a third of the speed of its products, so the recursions are used there.
[[gnu::always_inline]] inline void use_vendor_routines(Plan& plan) {
    plan.vendor_trsm_f32 = plan.vendor_trsm_f64 = 128;
    plan.vendor_potrf_few_f32 = 2048;
    plan.vendor_potrf_few_f64 = 1024;
    plan.vendor_potrf_many_f32 = 1024;
    plan.vendor_potrf_many_f64 = 256;
}

// Sets the threshold for MKL on other CPUs with AVX-512, on which it runs code for AVX2: 57 to 61 Gflop/s on one thread in float64 (AMD
// EPYC, orders 512 to 1024), where the core's own kernel reaches 90 to 110.
[[gnu::always_inline]] inline void use_own_products(Plan& plan) { plan.own_blocks = 1; }

// The entries of Plan by name, for Python.
struct Entry {
    const char* name;
    index_t Plan::*field;
};
constexpr Entry entries[] = {
    {"lane_order_f32", &Plan::lane_order_f32},       {"lane_order_f64", &Plan::lane_order_f64},
    {"own_product_f32", &Plan::own_product_f32},     {"own_product_f64", &Plan::own_product_f64},
    {"own_blocks", &Plan::own_blocks},
    {"serial_order_few", &Plan::serial_order_few},   {"serial_order_many", &Plan::serial_order_many},
    {"slice_columns", &Plan::slice_columns},         {"smallest_tile", &Plan::smallest_tile},
    {"largest_tile", &Plan::largest_tile},           {"vendor_trsm_f32", &Plan::vendor_trsm_f32},
    {"vendor_trsm_f64", &Plan::vendor_trsm_f64},     {"vendor_trsm_serial", &Plan::vendor_trsm_serial},
    {"narrow_solve", &Plan::narrow_solve},
    {"vendor_potrf_few_f32", &Plan::vendor_potrf_few_f32},
    {"vendor_potrf_few_f64", &Plan::vendor_potrf_few_f64},
    {"vendor_potrf_many_f32", &Plan::vendor_potrf_many_f32},
    {"vendor_potrf_many_f64", &Plan::vendor_potrf_many_f64},
    {"lq_panel", &Plan::lq_panel},
};
static_assert(sizeof entries / sizeof(Entry) == sizeof(Plan) / sizeof(index_t), "every entry of Plan has a name");

// The plan in use: one for the process, because it depends on the CPU and on the BLAS library that was bound.
inline Plan current;

template <class T>
[[gnu::always_inline]] inline index_t lane_order() {
    return std::min(sizeof(T) == 4 ? current.lane_order_f32 : current.lane_order_f64, isa::lane_limit);
}

template <class T>
[[gnu::always_inline]] inline index_t own_product() {
    return std::min(sizeof(T) == 4 ? current.own_product_f32 : current.own_product_f64, isa::product_limit);
}

[[gnu::always_inline]] inline bool is_few(index_t threads) { return threads <= few_threads; }

[[gnu::always_inline]] inline index_t serial_order(int threads) {
    return is_few(threads) ? current.serial_order_few : current.serial_order_many;
}

template <class T>
[[gnu::always_inline]] inline bool uses_vendor_trsm(index_t n) {
    const index_t least = sizeof(T) == 4 ? current.vendor_trsm_f32 : current.vendor_trsm_f64;
    return least > 0 && n >= least;
}

template <class T>
[[gnu::always_inline]] inline bool uses_vendor_potrf(index_t n, int threads) {
    const index_t least = is_few(threads)
                              ? (sizeof(T) == 4 ? current.vendor_potrf_few_f32 : current.vendor_potrf_few_f64)
                              : (sizeof(T) == 4 ? current.vendor_potrf_many_f32 : current.vendor_potrf_many_f64);
    return least > 0 && n >= least;
}

// Whether a triangle of order n is solved with m columns by the BLAS library, on a copy of the columns that is column-major. Time of its
// routine divided by that of the recursion (AMD EPYC, 1 thread, float32 / float64):
//     with own blocks, and the kernels for few columns: m = 1, n = 64 to 1000 0.7 to 0.8; m = 2, n = 64 0.9 / 0.85, n = 200 0.92 / 1.2, n = 600
//     1.1 / 1.8; m = 4, n = 64 to 135 1.0, n >= 200 1.1 to 1.5 / 1.3 to 2.1
//     with MKL's products, before there were these kernels: m = 1, n >= 100 0.5 to 0.7; m = 2 to 8, n = 300 0.3 to 0.7 / 0.4 to 0.85,
//     n = 1000 0.3 to 0.4 / 0.4 to 0.6; m = 16 and 32, n = 1000 1.5 / 0.6 and 0.7
template <class T>
[[gnu::always_inline]] inline bool uses_narrow_trsm(index_t n, index_t m) {
    const index_t least = current.narrow_solve;
    if (least == 0 || n < least) return false;
    if (current.own_blocks) return m == 1 || (m == 2 && n < (sizeof(T) == 4 ? 6 : 3) * least);
    return m <= 2 || (m <= 8 && n >= 3 * least) || (sizeof(T) == 8 && m <= 32 && n >= 8 * least);
}

// Side of the tiles of a triangular product: every thread gets some tiles, and each is large enough for a fast product.
[[gnu::always_inline]] inline index_t triangle_tile(index_t n, int threads) {
    const index_t tile = n / (threads > 1 ? 2 * threads : 4);
    return std::max(current.smallest_tile, std::min((tile + 31) / 32 * 32, current.largest_tile));
}

// Columns of an inverse that one thread solves for at a time. The first slices cost most; short slices balance the threads.
[[gnu::always_inline]] inline index_t inverse_slice(index_t n, int threads) {
    return std::max(smallest_inverse_slice, std::min(largest_slice, n / (2 * threads)));
}

// Columns of Q that one task of gelqf computes.
[[gnu::always_inline]] inline index_t orthogonal_slice(index_t n) {
    return std::max(current.slice_columns, std::min(largest_slice, (n / 8 + 31) / 32 * 32));
}

// The work of an item of a batch. Its `order`, that of a cube with about as much work, is compared with serial_order to decide whether one
// item is worth several threads. Its multiplications decide whether a batch of such items is.
struct Work {
    index_t order;
    double multiplications;
};

[[gnu::always_inline]] inline Work measure_cube(index_t n) { return {n, double(n) * double(n) * double(n)}; }

// The work of a problem with an n x n matrix and m columns.
[[gnu::always_inline]] inline Work measure_columns(index_t n, index_t m) {
    return {std::max(n, std::min(m, 2 * n)), double(n) * double(n) * double(m)};
}
// The same for columns that are independent of each other: all threads can share any number of them.
[[gnu::always_inline]] inline Work measure_right_side(index_t n, index_t m) {
    const Work work = measure_columns(n, m);
    return {std::max(work.order, index_t(__builtin_cbrt(work.multiplications))), work.multiplications};
}

// The time of one group of matrices of order 64, one per lane, as a multiple of LAPACK's time for one of them. Above lane_limit a group no
// longer fits into the innermost cache.
[[gnu::always_inline]] inline index_t eigen_group_cost(index_t lanes) { return std::max<index_t>(4, lanes / 2); }

}  // namespace lapgrad::plan
