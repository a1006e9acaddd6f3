// Binds shortcuts (see bind_shortcuts.cpp) for operators in torch's words: lapgrad._translation. Their results are stored by columns, as
// those of torch's own factorisations are.
#include <algorithm>
#include <utility>
#include <vector>

#include "bind/tensor.h"
#include "bind/device_shortcuts.h"
#include "ops/gemmt.h"
#include "ops/potrf.h"
#include "ops/trsm.h"

namespace lapgrad::binding {
namespace {

// A batch of matrices that was just allocated by columns.
Operand make_dense_by_columns(const NewTensor& tensor, index_t rows, index_t cols) { return {tensor.address, rows * cols, 1, rows}; }

// L with A = L L', or R with A = R' R. None if a matrix has no factor.
nb::object cholesky(nb::handle a, nb::handle upper) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const bool flipped = is_true(upper);
    const NewTensor l = allocate_by_columns(A, n, n);
    if (!l) return nb::none();
    Operand L = make_dense_by_columns(l, n, n);
    if (flipped) std::swap(L.row_stride, L.col_stride);
    std::int32_t single = 0;
    std::vector<std::int32_t> several(count > 1 ? count : 0);
    std::int32_t* const status = count > 1 ? several.data() : &single;
    compute(A, double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        potrf_batch<T>(A.flip_if(flipped).as<const T>(count, n, n), L.as<T>(count, n, n), status);
    });
    for (index_t b = 0; b < count; ++b)
        if (status[b]) return nb::none();
    return l;
}

// With this few right-hand sides a triangle is read at the speed of memory. Above this order torch's BLAS is faster at it than the core.
constexpr index_t few_columns = 4, largest_small_order = 32;

// X with A X = B, or X A = B. None if a triangle is singular, or if torch is faster.
nb::object solve_triangular(nb::handle a, nb::handle b, nb::handle upper, nb::handle left) {
    TensorOperand A, B;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B)) return nb::none();
    if (A.item_size != B.item_size || A.is_single != B.is_single || A.count != B.count) return nb::none();
    const bool right = !is_true(left), lower = is_true(upper) == right;
    const index_t n = right ? B.cols : B.rows, m = right ? B.rows : B.cols, count = B.count;
    if (A.rows != n || A.cols != n || (m <= few_columns && n > largest_small_order)) return nb::none();
    const NewTensor x = allocate_by_columns(B, B.rows, B.cols);
    if (!x) return nb::none();
    Operand X = make_dense_by_columns(x, B.rows, B.cols);
    if (right) std::swap(X.row_stride, X.col_stride);
    const bool solved = compute(B, double(n) * double(n) * double(m), [&](auto type) {
        using T = decltype(type);
        const Batch<const T> triangles = A.flip_if(right).as<const T>(count, n, n);
        if (find_zero_diagonal<T>(triangles) >= 0) return false;
        trsm_batch<T>(triangles, lower, B.flip_if(right).as<const T>(count, n, m), X.as<T>(count, n, m));
        return true;
    });
    return solved ? nb::object(x) : nb::none();
}

// (gA or None, gB) of X with A X = B, or X A = B, and cotangent gX: gB = A^-T gX and gA = -tri(gB X'), or gB = gX A^-T and
// gA = -tri(X' gB).
nb::object solve_triangular_vjp(nb::handle a, nb::handle x, nb::handle cotangent, nb::handle upper_flag, nb::handle left_flag) {
    TensorOperand A, X, gX;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(cotangent, gX)) return nb::none();
    const bool needs_a = !x.is_none();
    if (needs_a && (!describe_tensor(x, X) || X.rows != gX.rows || X.cols != gX.cols || X.count != gX.count)) return nb::none();
    if (A.item_size != gX.item_size || A.is_single != gX.is_single || A.count != gX.count) return nb::none();
    const bool right = !is_true(left_flag), upper = is_true(upper_flag);
    const index_t n = right ? gX.cols : gX.rows, m = right ? gX.rows : gX.cols, count = gX.count;
    if (A.rows != n || A.cols != n) return nb::none();
    const NewTensor b = allocate_like(gX), triangle = needs_a ? allocate_matrix(A, n, n) : NewTensor{};
    const Operand gB{b.address, gX.rows * gX.cols, gX.cols, 1};
    const auto flip_if = [](bool flipped, Operand operand) {
        if (flipped) std::swap(operand.row_stride, operand.col_stride);
        return operand;
    };
    const bool solved = compute(gX, 2.0 * double(n) * double(n) * double(m), [&](auto type) {
        using T = decltype(type);
        // From the left, all of this is in columns: A' gB = gX. From the right it is transposed: A gB' = gX'.
        const Batch<const T> triangles = A.flip_if(!right).template as<const T>(count, n, n);
        if (find_zero_diagonal<T>(triangles) >= 0) return false;
        const bool lower = upper != right;
        trsm_batch<T>(triangles, lower, gX.flip_if(right).template as<const T>(count, n, m), flip_if(right, gB).template as<T>(count, n, m));
        if (!needs_a) return true;
        // gB X' and X' gB, in n x m matrices U V' whose lower triangle is wanted. The upper triangle of U V' is the lower one of V U'.
        Operand U = right ? X.flip_if(true) : gB, V = right ? flip_if(true, gB) : X.memory;
        if (upper) std::swap(U, V);
        const Operand gA = flip_if(upper, {triangle.address, n * n, n, 1});
        gemmt_batch<T>(T(-1), U.template as<const T>(count, n, m), flip_if(true, V).template as<const T>(count, m, n),
                       gA.template as<T>(count, n, n), false);
        return true;
    });
    if (!solved) return nb::none();
    return nb::make_tuple(needs_a ? nb::object(triangle) : nb::none(), b);
}

// The status of factorisations that have all succeeded.
nb::object make_status(nb::handle a) {
    dlpack::Tensor header{};
    if (!is_plain_eager() || !is_ordinary(a) || !read_header(a, header)) return nb::none();
    if ((header.ndim != 2 && header.ndim != 3) || header.device_type != dlpack::cpu_device) return nb::none();
    TensorOperand A{};
    A.is_single = header.ndim == 2;
    A.count = A.is_single ? 1 : header.shape[0];
    const NewTensor status = allocate_status(A);
    std::fill_n(reinterpret_cast<std::int32_t*>(status.address), A.count, 0);
    return status;
}

}  // namespace

void bind_translation(nb::module_& m) {
    const auto any = nb::arg().none();
    m.def("cholesky_by_columns_shortcut", &cholesky, any, any);
    m.def("solve_triangular_by_columns_shortcut", &solve_triangular, any, any, any, any);
    m.def("solve_triangular_vjp_shortcut", &solve_triangular_vjp, any, any, any, any, any);
    m.def("status_of_success_shortcut", &make_status, any);
}

}  // namespace lapgrad::binding
