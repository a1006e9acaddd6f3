// Binds shortcuts (see bind_shortcuts.cpp) for operators in torch's words: lapgrad._translation. Their results are stored by columns, as
// those of torch's own factorisations are.
#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "bind/device_shortcuts.h"
#include "bind/shortcut.h"
#include "ops/gelqf.h"
#include "ops/lu_factor.h"
#include "ops/potrf.h"

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
    const Operand L = flip_if(flipped, make_dense_by_columns(l, n, n));
    StatusArray status(count);
    compute(A, double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        potrf_batch<T>(A.flip_if(flipped).as<const T>(count, n, n), L.as<T>(count, n, n), status.data());
    });
    if (status.has_failed()) return nb::none();
    return l;
}

// A solve with up to few_columns right-hand sides takes as long as reading the triangle. Above largest_small_order torch's BLAS is faster at
// batches of them than the core, with one column as soon as there is not one matrix per lane; for a single matrix the call takes longer than
// BLAS saves.
constexpr index_t few_columns = 2, largest_small_order = 32;

bool is_slower_than_torch(const TensorOperand& A, index_t columns) {
    if (A.count == 1 || columns > few_columns) return false;
    const index_t lane_order = with_type(A.item_size, [](auto type) { return plan::lane_order<decltype(type)>(); });
    return A.rows > (columns == 1 ? std::min(lane_order, largest_small_order) : largest_small_order);
}

// X with A X = B, or X A = B. None if a triangle is singular, or if torch is faster.
nb::object solve_triangular(nb::handle a, nb::handle b, nb::handle upper, nb::handle left) {
    TensorOperand A, B;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B)) return nb::none();
    if (!have_one_kind(A, B)) return nb::none();
    const bool right = !is_true(left), lower = is_true(upper) == right;
    const index_t n = right ? B.cols : B.rows, m = right ? B.rows : B.cols, count = B.count;
    if (A.rows != n || A.cols != n || is_slower_than_torch(A, m)) return nb::none();
    const NewTensor x = allocate_by_columns(B, B.rows, B.cols);
    if (!x) return nb::none();
    const Operand X = flip_if(right, make_dense_by_columns(x, B.rows, B.cols));
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
    if (needs_a && (!describe_tensor(x, X) || X.item_size != gX.item_size || X.rows != gX.rows || X.cols != gX.cols || X.count != gX.count))
        return nb::none();
    if (!have_one_kind(A, gX)) return nb::none();
    const bool right = !is_true(left_flag), upper = is_true(upper_flag);
    const index_t n = right ? gX.cols : gX.rows, m = right ? gX.rows : gX.cols, count = gX.count;
    if (A.rows != n || A.cols != n) return nb::none();
    const NewTensor b = allocate_like(gX), triangle = needs_a ? allocate_matrix(A, n, n) : NewTensor{};
    const Operand gB = make_dense(b, gX.rows, gX.cols);
    const bool solved = compute(gX, 2.0 * double(n) * double(n) * double(m), [&](auto type) {
        using T = decltype(type);
        // From the left, all of this is in columns: A' gB = gX. From the right it is transposed: A gB' = gX'.
        const Batch<const T> triangles = A.flip_if(!right).as<const T>(count, n, n);
        if (find_zero_diagonal<T>(triangles) >= 0) return false;
        const bool lower = upper != right;
        trsm_batch<T>(triangles, lower, gX.flip_if(right).as<const T>(count, n, m), flip_if(right, gB).as<T>(count, n, m));
        if (!needs_a) return true;
        // gB X' and X' gB, in n x m matrices U V' whose lower triangle is wanted. The upper triangle of U V' is the lower one of V U'.
        Operand U = right ? X.flip_if(true) : gB, V = right ? flip_if(true, gB) : X.memory;
        if (upper) std::swap(U, V);
        const Operand gA = flip_if(upper, make_dense(triangle, n, n));
        gemmt_batch<T>(T(-1), U.as<const T>(count, n, m), flip_if(true, V).as<const T>(count, m, n),
                       gA.as<T>(count, n, n), false);
        return true;
    });
    if (!solved) return nb::none();
    return nb::make_tuple(needs_a ? nb::object(triangle) : nb::none(), b);
}

// Whether matrices lie one after the other, each by columns.
bool is_dense_by_columns(const TensorOperand& A) {
    const Operand& m = A.memory;
    return (A.rows == 1 || m.row_stride == 1) && (A.cols == 1 || m.col_stride == A.rows) && (A.is_single || m.batch_stride == A.rows * A.cols);
}

// The transposes of a batch by rows without gaps, as kernels for small matrices need them: in place, or in `memory`.
template <class T>
Batch<const T> transpose_to_dense(const TensorOperand& A, Buffer<T>& memory) {
    const index_t rows = A.cols, cols = A.rows;
    if (is_dense_by_columns(A)) return Operand{A.memory.address, rows * cols, cols, 1}.as<const T>(A.count, rows, cols);
    memory = allocate<T>(A.count * rows * cols);
    const Batch<T> dense{memory.get(), A.count, rows * cols, rows, cols, cols, 1};
    const Batch<const T> given = A.transposed().as<const T>(A.count, rows, cols);
    for (index_t b = 0; b < A.count; ++b) copy<T>(given[b], T(1), dense[b], false);
    return dense.readonly();
}

// (Q, R) with A = Q R: A' = L Q' and R = L'. None if an entry is not finite.
nb::object qr(nb::handle a) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A)) return nb::none();
    const index_t m = A.rows, n = A.cols, r = std::min(m, n), count = A.count;
    const NewTensor q = allocate_by_columns(A, m, r), triangle = allocate_by_columns(A, r, n);
    if (!q || !triangle) return nb::none();
    const Operand Qt{q.address, r * m, m, 1}, L{triangle.address, n * r, r, 1};
    const bool is_finite = compute(A, 4.0 * double(m) * double(n) * double(r), [&](auto type) {
        using T = decltype(type);
        Buffer<T> memory;
        const Batch<const T> transposed = A.is_single ? A.transposed().as<const T>(1, n, m) : transpose_to_dense<T>(A, memory);
        return gelqf_batch<T>(transposed, Qt.as<T>(count, r, m), L.as<T>(count, n, r), false).first < 0;
    });
    return is_finite ? nb::object(nb::make_tuple(q, triangle)) : nb::none();
}

// gA of A = Q R. A cotangent may be None.
nb::object qr_vjp(nb::handle q, nb::handle triangle, nb::handle of_q, nb::handle of_triangle) {
    TensorOperand Q, R, gQ{}, gR{};
    if (!is_plain_eager() || !describe_tensor(q, Q) || !describe_tensor(triangle, R)) return nb::none();
    const index_t m = Q.rows, r = Q.cols, n = R.cols, count = Q.count;
    const auto describe_cotangent = [&](nb::handle given, const TensorOperand& of, TensorOperand& g) {
        return given.is_none() || (describe_tensor(given, g) && g.item_size == of.item_size && g.is_single == of.is_single &&
                                   g.count == count && g.rows == of.rows && g.cols == of.cols);
    };
    if (R.rows != r || R.count != count || !describe_cotangent(of_q, Q, gQ) || !describe_cotangent(of_triangle, R, gR)) return nb::none();
    const NewTensor gradient = allocate_by_columns(Q, m, n);
    if (!gradient) return nb::none();
    compute(Q, 4.0 * double(m) * double(n) * double(r), [&](auto type) {
        using T = decltype(type);
        Buffer<T> memory[4];
        const auto prepare = [&](const TensorOperand& X, index_t rows, index_t cols, Buffer<T>& own) {
            return X.count ? transpose_to_dense<T>(X, own) : Operand{}.as<const T>(count, rows, cols);
        };
        gelqf_vjp_batch<T>(prepare(Q, r, m, memory[0]), prepare(R, n, r, memory[1]), prepare(gQ, r, m, memory[2]),
                           prepare(gR, n, r, memory[3]), Operand{gradient.address, n * m, m, 1}.as<T>(count, n, m));
    });
    return gradient;
}

// gA of the factors of linalg_lu_factor_ex, square.
nb::object lu_factor_vjp(nb::handle factors, nb::handle pivots, nb::handle cotangent) {
    TensorOperand LU, G;
    dlpack::Tensor p{};
    if (!is_plain_eager() || !describe_tensor(factors, LU) || !describe_tensor(cotangent, G)) return nb::none();
    const index_t n = LU.rows, count = LU.count;
    if (LU.cols != n || G.rows != n || G.cols != n || G.count != count || G.is_single != LU.is_single || G.item_size != LU.item_size)
        return nb::none();
    if (!is_ordinary(pivots) || is_wrapped(pivots) || !read_header(pivots, p) || p.device_type != dlpack::cpu_device) return nb::none();
    const int last = LU.is_single ? 0 : 1;
    if (p.dtype.code != dlpack::int_code || p.dtype.bits != 32 || p.ndim != last + 1 || p.shape[last] != n) return nb::none();
    if ((n > 1 && p.strides[last] != 1) || (count > 1 && p.strides[0] != n)) return nb::none();
    const auto* const exchanged = reinterpret_cast<const std::int32_t*>(static_cast<const char*>(p.data) + p.byte_offset);
    // Programs that read them through NumPy, to count rows from 0, may have changed them: then torch raises an error.
    if (std::any_of(exchanged, exchanged + count * n, [&](std::int32_t row) { return row < 1 || row > n; })) return nb::none();
    const NewTensor gradient = allocate_matrix(LU, n, n);
    compute(LU, 4.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        lu_factor_vjp_batch<T>(LU.memory.as<const T>(count, n, n), exchanged, G.memory.as<const T>(count, n, n),
                               Operand{gradient.address, n * n, n, 1}.as<T>(count, n, n));
    });
    return gradient;
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
    m.def("qr_by_columns_shortcut", &qr, any);
    m.def("qr_vjp_shortcut", &qr_vjp, any, any, any, any);
    m.def("lu_factor_vjp_shortcut", &lu_factor_vjp, any, any, any);
    m.def("status_of_success_shortcut", &make_status, any);
}

}  // namespace lapgrad::binding
