// Compiled once per instruction set, with LAPGRAD_ISA naming it (see isa.h and CMakeLists.txt).
#include "base/isa.h"

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

#include "small/lane_potri.h"

#include "small/lane_gesvd.h"

#include "small/reflectors.h"

#include "small/lane_gelqf.h"

#include "small/lane_lu.h"

#include "small/lane_syevd.h"

#include "small/series_numbers.h"

#include "small/lane_kalman.h"

template <class T>
constexpr Kernels<T> make_table() {
    return {lanes_of<T>,
            &copy<T>,
            &product<T>,
            &product_triangle<T>,
            &potrf_leaf<T>,
            &potrf_reverse_leaf<T>,
            &triangle_leaf<T, true>,
            &triangle_leaf<T, false>,
            &lq_leaf_rows<T>,
            &lane_potrf<T>,
            &lane_potrf_reverse<T>,
            &lane_triangle<T, true>,
            &lane_triangle<T, false>,
            &lane_product<T>,
            &lane_cho_solve<T>,
            &lane_potri<T>,
            &lane_potri_reverse<T>,
            &lane_gesvd<T>,
            &lane_gesvd_vjp<T>,
            &lane_gelqf<T>,
            &lane_gelqf_vjp<T>,
            &lane_gelqf_l_vjp<T>,
            &lane_determinant<T>,
            &lane_inverse<T>,
            &lane_inverse_vjp<T>,
            &lane_syevd<T>,
            &lane_syevd_vjp<T>,
            &kalman_forward<T>,
            &kalman_reverse<T>};
}
}  // namespace

extern const Kernels<float> kernels_f32 = make_table<float>();
extern const Kernels<double> kernels_f64 = make_table<double>();

}  // namespace lapgrad::isa::LAPGRAD_ISA
