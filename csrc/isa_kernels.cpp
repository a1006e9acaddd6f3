// Compiled once per instruction set, with LAPGRAD_ISA naming it (see isa.h and CMakeLists.txt).
#include "isa.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>

#include "range.h"

namespace lapgrad::isa::LAPGRAD_ISA {

namespace {
#include "simd.h"

#include "product.h"

#include "reverse_blocks.h"

#include "leaves.h"

#include "fixed.h"

#include "lanes.h"

#include "lane_potri.h"

#include "lane_gesvd.h"

#include "reflectors.h"

#include "lane_gelqf.h"

#include "lane_lu.h"

#include "lane_syevd.h"

#include "series_numbers.h"

#include "lane_kalman.h"

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
