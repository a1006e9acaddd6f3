// The kernels that are compiled once per instruction set, and the choice among them at run time.
//
// small/isa_kernels.cpp is compiled several times, each time with other compiler flags and LAPGRAD_ISA set to another
// name. It shares only this table of function pointers with the rest of the core: an inline function compiled with
// AVX-512 must never be the copy that the linker keeps for code that runs on every machine.
#pragma once

#include "base/gaps.h"
#include "base/gesvd_types.h"
#include "base/kalman_types.h"
#include "base/plan.h"
#include "base/view.h"

namespace lapgrad {

// phi(S) of a stationary covariance function: exp(-S / 2), and the Matern functions of smoothness 1/2, 3/2 and 5/2.
enum class Profile { rbf, matern12, matern32, matern52 };

}  // namespace lapgrad

namespace lapgrad::isa {

template <class T>
struct Kernels {
    // Numbers in a vector: items that a lane kernel computes together.
    index_t lanes;
    // dst := scale * src; dst has unit column stride, src any strides.
    void (*copy)(View<const T> src, T scale, View<T> dst);
    // close (contiguous) := which entries of A, stored by rows, are close to those of B: see simd.h.
    void (*compare_close)(View<const T> A, View<const T> B, T rtol, T atol, bool* close);
    // Sums of columns, and observations less a row: see simd.h.
    void (*add_rows)(const T* x, index_t rows, index_t step, index_t width, double* total);
    void (*subtract_row)(const T* x, index_t rows, index_t step, index_t width, const T* row, T* out, index_t out_step, T* largest,
                         bool* has_nan);
    // C := alpha A B (+ C if accumulate). C has unit column stride, A and B any strides.
    void (*product)(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, T* scratch);
    // The same for one triangle of a square C. The other triangle is overwritten near the diagonal.
    void (*product_triangle)(T alpha, View<const T> A, View<const T> B, bool accumulate, View<T> C, bool lower,
                             T* scratch);
    // Lower Cholesky factor in place, order <= leaf. Returns 0, or +k / -k as potrf's info. May overwrite the
    // strict upper triangle.
    int (*potrf)(View<T> A, T* scratch);
    // Reverse sweep in place, order <= leaf: lower G in, symmetric S out (see potrf.h).
    void (*potrf_reverse)(View<const T> L, View<T> G, T* scratch);
    // X := L^-1 X and X := L X with L lower, order <= leaf; strides may be negative.
    void (*solve)(View<const T> L, View<T> X, T* scratch);
    void (*multiply)(View<const T> L, View<T> X, T* scratch);

    // A = L Q of at most lq_leaf contiguous rows: see reflectors.h.
    void (*lq_leaf)(View<T> A, View<T> mixed, T* diagonal);

    // K := covariances of the rows of F and of points (columns of a matrix with leading dimension ld); their gradients: see covariances.h.
    void (*covariances)(Profile profile, T variance, View<const T> F, const T* G, index_t ld, View<T> K);
    double (*covariances_reverse)(Profile profile, T variance, View<const T> F, const T* G, index_t ld, View<const T> C,
                                  View<T> of_F, T* of_G, T* sums);

    // One matrix per lane: items [begin, end) of dense batches of order <= lane_limit.
    void (*lane_potrf)(Batch<const T> A, Batch<T> L, std::int32_t* info, index_t begin, index_t end, void* scratch);
    void (*lane_potrf_reverse)(Batch<const T> L, Batch<const T> gL, Batch<T> gA, index_t begin, index_t end,
                               void* scratch);
    void (*lane_solve)(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> X, index_t begin, index_t end,
                       void* scratch);
    void (*lane_multiply)(Batch<const T> L, bool lower, Batch<const T> A, Batch<T> B, index_t begin, index_t end,
                          void* scratch);
    void (*lane_product)(T alpha, Batch<const T> A, Batch<const T> B, Batch<T> C, bool symmetric, index_t begin,
                         index_t end, void* scratch);
    // D := alpha A B + beta C, or with `symmetrise` alpha (A + A') B + beta C, of at most lane_product_elements numbers each.
    void (*lane_gemm)(T alpha, Batch<const T> A, bool symmetrise, Batch<const T> B, T beta, Batch<const T> C, Batch<T> D,
                      index_t begin, index_t end, void* scratch);
    // out[item - begin] := sum_i log |a_ii|; NaN for an item with an entry that is zero or not finite.
    void (*lane_sum_logs)(Batch<const T> A, double* out, index_t begin, index_t end);
    // X := (L L')^-1 A.
    void (*lane_cho_solve)(Batch<const T> L, Batch<const T> A, Batch<T> X, index_t begin, index_t end, void* scratch);
    // The inverse from the factor with its update (see PotriUpdate in potri.h; X has at most lane_limit columns), and its reverse.
    void (*lane_potri)(Batch<const T> L, Batch<const T> X, const T* weight, T scale, T ratio, Batch<T> B, index_t begin,
                       index_t end, void* scratch);
    void (*lane_potri_reverse)(Batch<const T> L, Batch<const T> gB, Batch<T> gL, index_t begin, index_t end,
                               void* scratch);
    void (*lane_gesvd)(Batch<const T> A, Batch<T> U, Batch<T> S, Batch<T> V, std::int32_t* status, index_t begin,
                       index_t end, void* scratch);
    void (*lane_gesvd_vjp)(const SvdGradient<T>& gradient, index_t begin, index_t end, void* scratch);
    // Matrices of at most lane_limit^2 elements, row-major. Q, gQ and gL may be without data.
    void (*lane_gelqf)(Batch<const T> A, Batch<T> Q, Batch<T> L, bool positive, index_t begin, index_t end,
                       void* scratch);
    void (*lane_gelqf_vjp)(Batch<const T> Q, Batch<const T> L, Batch<const T> gQ, Batch<const T> gL, Batch<T> gA,
                           index_t begin, index_t end, void* scratch);
    void (*lane_gelqf_l_vjp)(Batch<const T> A, Batch<const T> L, Batch<const T> gL, Batch<T> gA, index_t begin,
                             index_t end, void* scratch);
    // LU with partial pivoting; status per item as in lu.h.
    void (*lane_determinant)(Batch<const T> A, T* first, T* second, std::int32_t* status, index_t begin, index_t end,
                             void* scratch);
    void (*lane_inverse)(Batch<const T> A, Batch<T> B, const T* weight, bool by_determinant, std::int32_t* status,
                         index_t begin, index_t end, void* scratch);
    void (*lane_inverse_vjp)(Batch<const T> B, Batch<const T> gB, Batch<T> gA, index_t begin, index_t end,
                             void* scratch);
    // X := A^-1 B, or A^-T B, and the factors of A with pivots as in gesv.h; from the factors if A is without data.
    void (*lane_gesv)(Batch<const T> A, Batch<const T> B, Batch<T> X, bool transposed, Batch<T> F, std::int32_t* pivots,
                      std::int32_t* status, index_t begin, index_t end, void* scratch);
    // See lane_syevd.h. lane_syevd takes orders up to lane_eigen_limit.
    void (*lane_syevd)(Batch<const T> A, Batch<T> U, T* eigenvalues, std::int32_t* info, index_t begin, index_t end,
                       void* scratch);
    void (*lane_syevd_vjp)(Batch<const T> U, const T* eigenvalues, Batch<const T> gU, const T* g_eigenvalues,
                           Degeneracy rule, T tol, Batch<T> gA, std::int32_t* uneven, index_t begin, index_t end,
                           void* scratch);
    // Series [begin, end), one per lane (`wide`) or one after the other: see lane_kalman.h.
    void (*kalman_forward)(const KalmanForward<T>& task, bool wide, index_t begin, index_t end, void* memory);
    void (*kalman_reverse)(const KalmanReverse<T>& task, const KalmanOperands<T>& gradient, bool wide, index_t begin,
                           index_t end, void* memory);
};

// The table in use.
template <class T>
struct Choice {
    static const Kernels<T>* current;
};

template <class T>
const Kernels<T>& kernels() {
    return *Choice<T>::current;
}

// Variants are named "avx512", "avx2" and "baseline".
// Returns the name of the variant in use.
const char* selected_name();
bool is_supported(const char* name);
bool is_intel_cpu();
// Takes the named variant, or for "" the best one that this CPU runs. Returns false if there is none.
bool select(const char* name);

}  // namespace lapgrad::isa
