// Compiled once per instruction set, with LAPGRAD_ISA naming it (see isa.h and CMakeLists.txt).
#include "base/isa.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/range.h"

namespace lapgrad::isa::LAPGRAD_ISA {

namespace {
#include "small/simd.h"

#include "small/product.h"

#include "small/reverse_blocks.h"

#include "small/leaves.h"

#include "small/fixed.h"

#include "small/lanes.h"

#include "small/lane_products.h"

#include "small/covariances.h"

#include "small/lane_potri.h"

#include "small/lane_gesvd.h"

#include "small/reflectors.h"

#include "small/lane_gelqf.h"

#include "small/lane_lu.h"

#include "small/lane_syevd.h"

#include "small/series_numbers.h"

#include "small/flat_prior.h"

#include "small/lane_kalman.h"

#include "small/single_kalman.h"

#include "small/kalman_groups.h"

// Fills a table of kernels member by member. The compiler rejects a member that is set twice or with another signature, and
// make_table one that is missing.
template <class T>
struct TableFiller {
    using Table = Kernels<T>;
    Table table{};
    std::size_t bytes = 0;

    template <class Member>
    constexpr void set(Member Table::*member, std::remove_reference_t<Member> value) {
        if (table.*member != Member{}) throw "this member is set twice";
        table.*member = value;
        bytes += sizeof(Member);
    }
};

template <class T>
constexpr Kernels<T> make_table() {
    using Table = Kernels<T>;
    TableFiller<T> fill;
    fill.set(&Table::lanes, lanes_of<T>);
    fill.set(&Table::copy, &copy<T>);
    fill.set(&Table::compare_close, &compare_close<T>);
    fill.set(&Table::add_rows, &add_rows<T>);
    fill.set(&Table::subtract_row, &subtract_row<T>);
    fill.set(&Table::product, &product<T>);
    fill.set(&Table::product_triangle, &product_triangle<T>);
    fill.set(&Table::potrf, &potrf_leaf<T>);
    fill.set(&Table::potrf_reverse, &potrf_reverse_leaf<T>);
    fill.set(&Table::solve, &triangle_leaf<T, true>);
    fill.set(&Table::multiply, &triangle_leaf<T, false>);
    fill.set(&Table::lq_leaf, &lq_leaf_rows<T>);
    fill.set(&Table::covariances, &covariances<T>);
    fill.set(&Table::covariances_reverse, &covariances_reverse<T>);
    fill.set(&Table::lane_potrf, &lane_potrf<T>);
    fill.set(&Table::lane_potrf_reverse, &lane_potrf_reverse<T>);
    fill.set(&Table::lane_solve, &lane_triangle<T, true>);
    fill.set(&Table::lane_multiply, &lane_triangle<T, false>);
    fill.set(&Table::lane_product, &lane_product<T>);
    fill.set(&Table::lane_gemm, &lane_gemm<T>);
    fill.set(&Table::lane_sum_logs, &lane_sum_logs<T>);
    fill.set(&Table::lane_cho_solve, &lane_cho_solve<T>);
    fill.set(&Table::lane_potri, &lane_potri<T>);
    fill.set(&Table::lane_potri_reverse, &lane_potri_reverse<T>);
    fill.set(&Table::lane_gesvd, &lane_gesvd<T>);
    fill.set(&Table::lane_gesvd_vjp, &lane_gesvd_vjp<T>);
    fill.set(&Table::lane_gelqf, &lane_gelqf<T>);
    fill.set(&Table::lane_gelqf_vjp, &lane_gelqf_vjp<T>);
    fill.set(&Table::lane_gelqf_l_vjp, &lane_gelqf_l_vjp<T>);
    fill.set(&Table::lane_determinant, &lane_determinant<T>);
    fill.set(&Table::lane_inverse, &lane_inverse<T>);
    fill.set(&Table::lane_inverse_vjp, &lane_inverse_vjp<T>);
    fill.set(&Table::lane_gesv, &lane_gesv<T>);
    fill.set(&Table::lane_syevd, &lane_syevd<T>);
    fill.set(&Table::lane_syevd_vjp, &lane_syevd_vjp<T>);
    fill.set(&Table::kalman_forward, &kalman_forward<T>);
    fill.set(&Table::kalman_reverse, &kalman_reverse<T>);
    if (fill.bytes != sizeof(Table)) throw "a member is missing";
    return fill.table;
}
}  // namespace

// Constant expressions, so that an incomplete table does not compile.
constexpr Kernels<float> table_f32 = make_table<float>();
constexpr Kernels<double> table_f64 = make_table<double>();
extern const Kernels<float> kernels_f32 = table_f32;
extern const Kernels<double> kernels_f64 = table_f64;

}  // namespace lapgrad::isa::LAPGRAD_ISA
