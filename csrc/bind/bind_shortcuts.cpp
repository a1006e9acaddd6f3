// Binds shortcuts: operators on ordinary tensors from Python's call to the result without Python in between.
//
// One small matrix takes a fraction of a microsecond, and each Python function before it a tenth of one. A shortcut takes the
// arguments of an operator, allocates and returns its results. It returns None where anything is out of the ordinary: transforms,
// modes and subclasses of torch, gradients to be recorded, other dtypes and devices, shapes that do not fit or broadcast, matrices
// that cannot be solved with. The Python code of the operator then computes, explains or raises.
#include <cmath>

#include "base/buffer.h"
#include "bind/device_shortcuts.h"
#include "bind/shortcut.h"
#include "ops/cho_solve.h"
#include "ops/copyltu.h"
#include "ops/gelqf.h"
#include "ops/gesv.h"
#include "ops/gesvd.h"
#include "ops/lu.h"
#include "ops/packing.h"
#include "ops/potrf.h"
#include "ops/potri.h"
#include "ops/products.h"
#include "ops/sumlogdiag.h"
#include "ops/syevd.h"

namespace lapgrad::binding {
namespace {

// X = t(L)^-1 A, or t(L) A; from the right with `rightside`.
template <bool Solve>
nb::object triangle(nb::handle l, nb::handle a, nb::handle lower, nb::handle transpose, nb::handle rightside) {
    TensorOperand L, A;
    if (!is_plain_eager() || !describe_tensor(l, L) || !describe_tensor(a, A) || !have_one_kind(L, A)) return nb::none();
    const bool is_lower = is_true(lower), transposed = is_true(transpose), right = is_true(rightside);
    const index_t n = right ? A.cols : A.rows, m = right ? A.rows : A.cols, count = A.count;
    if (L.rows != n || L.cols != n) return nb::none();
    const NewTensor x = allocate_like(A);
    const bool solved = compute(A, double(n) * double(n) * double(m), [&](auto type) {
        using T = decltype(type);
        if (Solve && find_zero_diagonal<T>(L.memory.as<const T>(count, n, n)) >= 0) return false;
        apply_triangle<T, Solve>(L.memory, is_lower, transposed, right, A.memory, make_dense(x, A.rows, A.cols), count, A.rows, A.cols);
        return true;
    });
    return solved ? nb::object(x) : nb::none();
}

// B = A A', or A' A.
nb::object syrk(nb::handle a, nb::handle transpose) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A)) return nb::none();
    const bool flipped = is_true(transpose);
    const index_t n = flipped ? A.cols : A.rows, k = flipped ? A.rows : A.cols, count = A.count;
    const NewTensor b = allocate_matrix(A, n, n);
    const Operand B = make_dense(b, n, n), left = A.flip_if(flipped), right = A.flip_if(!flipped);
    compute(A, double(n) * double(n) * double(k), [&](auto type) {
        using T = decltype(type);
        gemmt_batch<T>(T(1), left.as<const T>(count, n, k), right.as<const T>(count, k, n), B.as<T>(count, n, n), true);
    });
    return b;
}

// One triangle of alpha ta(A) tb(B), zeros in the other. The upper triangle of A B is the lower one of B' A'.
nb::object gemmt(nb::handle a, nb::handle b, nb::handle lower, nb::handle transpose_a, nb::handle transpose_b, nb::handle scale) {
    TensorOperand A, B;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B) || !have_one_kind(A, B)) return nb::none();
    const bool flip_a = is_true(transpose_a), flip_b = is_true(transpose_b);
    if (!PyFloat_CheckExact(scale.ptr())) return nb::none();
    const double alpha = PyFloat_AsDouble(scale.ptr());
    const index_t n = flip_a ? A.cols : A.rows, k = flip_a ? A.rows : A.cols, count = A.count;
    if ((flip_b ? B.cols : B.rows) != k || (flip_b ? B.rows : B.cols) != n) return nb::none();
    const NewTensor c = allocate_matrix(A, n, n);
    const bool is_lower = is_true(lower);
    compute(A, double(n) * double(n) * double(k), [&](auto type) {
        using T = decltype(type);
        multiply_to_triangle<T>(alpha, A.flip_if(flip_a), B.flip_if(flip_b), make_dense(c, n, n), is_lower, count, n, k);
    });
    return c;
}

// L with A = L L', or R with A = R' R.
nb::object potrf(nb::handle a, nb::handle lower) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const bool flipped = !is_true(lower);
    const NewTensor l = allocate_like(A);
    const Operand L = flip_if(flipped, make_dense(l, n, n));
    StatusArray status(count);
    compute(A, double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        potrf_batch<T>(A.flip_if(flipped).as<const T>(count, n, n), L.as<T>(count, n, n), status.data());
    });
    if (status.has_failed()) return nb::none();
    return l;
}

// gA of the factorisation with cotangent gL. Items with a status are left to Python.
nb::object potrf_vjp(nb::handle l, nb::handle cotangent, nb::handle info, nb::handle lower) {
    TensorOperand L, gL;
    if (!info.is_none() || !is_plain_eager() || !describe_tensor(l, L) || !describe_tensor(cotangent, gL) || !have_one_kind(L, gL))
        return nb::none();
    const index_t n = L.rows, count = L.count;
    if (L.cols != n || gL.rows != n || gL.cols != n) return nb::none();
    const bool flipped = !is_true(lower);
    const NewTensor a = allocate_like(L);
    const Operand gA = flip_if(flipped, make_dense(a, n, n));
    compute(L, 2.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        potrf_vjp_batch<T>(L.flip_if(flipped).as<const T>(count, n, n), gL.flip_if(flipped).as<const T>(count, n, n),
                           gA.as<T>(count, n, n), nullptr);
    });
    return a;
}

// (L, info), info 0 where an item could be factorised. Others become the identity.
nb::object potrf_ex(nb::handle a, nb::handle lower) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const bool flipped = !is_true(lower);
    const NewTensor l = allocate_like(A), info = allocate_status(A);
    const Operand L = flip_if(flipped, make_dense(l, n, n));
    std::int32_t* const status = reinterpret_cast<std::int32_t*>(info.address);
    compute(A, double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        potrf_batch<T>(A.flip_if(flipped).as<const T>(count, n, n), L.as<T>(count, n, n), status);
    });
    return nb::make_tuple(l, info);
}

// X = (L L')^-1 B, or (R' R)^-1 B.
nb::object cho_solve(nb::handle l, nb::handle b, nb::handle lower) {
    TensorOperand L, B;
    if (!is_plain_eager() || !describe_tensor(l, L) || !describe_tensor(b, B) || !have_one_kind(L, B)) return nb::none();
    const index_t n = B.rows, m = B.cols, count = B.count;
    if (L.rows != n || L.cols != n) return nb::none();
    const NewTensor x = allocate_like(B);
    const Operand X = make_dense(x, n, m), factor = L.flip_if(!is_true(lower));
    const bool solved = compute(B, 2.0 * double(n) * double(n) * double(m), [&](auto type) {
        using T = decltype(type);
        const Batch<const T> factors = factor.as<const T>(count, n, n);
        if (find_zero_diagonal<T>(factors) >= 0) return false;
        cho_solve_batch<T>(factors, B.memory.as<const T>(count, n, m), X.as<T>(count, n, m));
        return true;
    });
    return solved ? nb::object(x) : nb::none();
}

// (L L')^-1, or (R' R)^-1.
nb::object potri(nb::handle l, nb::handle lower) {
    TensorOperand L;
    if (!is_plain_eager() || !describe_tensor(l, L) || L.rows != L.cols) return nb::none();
    const index_t n = L.rows, count = L.count;
    const bool flipped = !is_true(lower);
    const NewTensor b = allocate_like(L);
    const Operand B = flip_if(flipped, make_dense(b, n, n));
    const bool inverted = compute(L, double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        const Batch<const T> factors = L.flip_if(flipped).as<const T>(count, n, n);
        if (find_zero_diagonal<T>(factors) >= 0) return false;
        const PotriUpdate<T> none{L.memory.as<const T>(count, n, 0), nullptr, T(1), T(0)};
        potri_batch<T>(factors, none, B.as<T>(count, n, n));
        return true;
    });
    return inverted ? nb::object(b) : nb::none();
}

// A^-1.
nb::object inverse(nb::handle a) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const NewTensor b = allocate_like(A);
    const Operand B = make_dense(b, n, n);
    StatusArray status(count);
    compute(A, 2.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        inverse_batch<T>(A.memory.as<const T>(count, n, n), B.as<T>(count, n, n), status.data());
    });
    if (status.has_failed()) return nb::none();
    return b;
}

// A^-1 B, or A^-T B; the factors are not kept.
nb::object gesv(nb::handle a, nb::handle b, nb::handle transpose) {
    TensorOperand A, B;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B) || !have_one_kind(A, B)) return nb::none();
    const index_t n = B.rows, m = B.cols, count = B.count;
    if (A.rows != n || A.cols != n) return nb::none();
    const NewTensor x = allocate_like(B);
    const Operand X = make_dense(x, n, m);
    const bool transposed = is_true(transpose);
    StatusArray status(count);
    compute(B, double(n) * double(n) * double(n + 2 * m), [&](auto type) {
        using T = decltype(type);
        const Buffer<T> factors = allocate<T>(count * n * n);
        const Buffer<pivot_t> pivots = allocate<pivot_t>(count * (n + 1));
        gesv_batch<T>(A.memory.as<const T>(count, n, n), B.memory.as<const T>(count, n, m), X.as<T>(count, n, m), transposed,
                      Batch<T>{factors.get(), count, n * n, n, n, 1, n}, pivots.get(), status.data());
    });
    if (status.has_failed()) return nb::none();
    return x;
}

// The sum of the logarithms of |a_ii|.
nb::object sumlogdiag(nb::handle a) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const NewTensor s = allocate_scalar(A);
    const std::uintptr_t out = s.address;
    compute(A, 10.0 * double(n), [&](auto type) {
        using T = decltype(type);
        sumlogdiag_batch<T>(A.memory.as<const T>(count, n, n), A.memory.as<const T>(count, n, 0), 0.0, 1.0, 0.0,
                            reinterpret_cast<T*>(out));
    });
    return s;
}

// The matrix with the given diagonal.
nb::object makediag(nb::handle d) {
    TensorOperand D;
    if (!is_plain_eager() || !describe_vectors(d, D) || D.memory.col_stride != 1) return nb::none();
    const index_t n = D.cols;
    const NewTensor a = allocate_matrix(D, n, n);
    const std::uintptr_t target = a.address;
    compute(D, double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        makediag_batch<T>(reinterpret_cast<const T*>(D.memory.address), D.memory.batch_stride, n, D.count, reinterpret_cast<T*>(target));
    });
    return a;
}

// (U, eigenvalues) of the named triangle.
nb::object syevd(nb::handle a, nb::handle lower) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const NewTensor u = allocate_like(A), eigenvalues = allocate_vector(A, n);
    const Operand U = make_dense(u, n, n);
    const std::uintptr_t values = eigenvalues.address;
    StatusArray status(count);
    compute(A, 10.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        syevd_batch<T>(A.flip_if(!is_true(lower)).as<const T>(count, n, n), U.as<T>(count, n, n), reinterpret_cast<T*>(values),
                       status.data());
    });
    if (status.has_failed()) return nb::none();
    return nb::make_tuple(u, eigenvalues);
}

// (U, S, V) with A = U' diag(S) V.
nb::object gesvd(nb::handle a) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A)) return nb::none();
    const index_t m = A.rows, n = A.cols, k = std::min(m, n), count = A.count;
    const NewTensor u = allocate_matrix(A, k, m), s = allocate_vector(A, k), v = allocate_matrix(A, k, n);
    const Operand U = make_dense(u, k, m), S = make_dense(s, 1, k), V = make_dense(v, k, n);
    StatusArray status(count);
    compute(A, 20.0 * double(n) * double(m) * double(k), [&](auto type) {
        using T = decltype(type);
        gesvd_batch<T>(A.memory.as<const T>(count, m, n), U.as<T>(count, k, m), S.as<T>(count, 1, k), V.as<T>(count, k, n),
                       status.data());
    });
    if (status.has_failed()) return nb::none();
    return nb::make_tuple(u, s, v);
}

// (Q, L) with A = L Q.
nb::object gelqf(nb::handle a, nb::handle positive) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A)) return nb::none();
    // The kernels for batches of small matrices need row-major items: Python makes the copy.
    if (!A.is_single && !A.is_contiguous) return nb::none();
    const index_t m = A.rows, n = A.cols, r = std::min(m, n), count = A.count;
    const NewTensor q = allocate_matrix(A, r, n), l = allocate_matrix(A, m, r);
    const Operand Q = make_dense(q, r, n), L = make_dense(l, m, r);
    const bool wants_positive = is_true(positive);
    const bool is_finite = compute(A, 4.0 * double(m) * double(n) * double(r), [&](auto type) {
        using T = decltype(type);
        return gelqf_batch<T>(A.memory.as<const T>(count, m, n), Q.as<T>(count, r, n), L.as<T>(count, m, r), wants_positive).first < 0;
    });
    return is_finite ? nb::object(nb::make_tuple(q, l)) : nb::none();
}

// The symmetric matrix with the lower, or the upper, triangle of A.
nb::object copyltu(nb::handle a, nb::handle lower) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const bool flipped = !is_true(lower);
    const NewTensor b = allocate_like(A);
    const Operand B = flip_if(flipped, make_dense(b, n, n));
    compute(A, double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        copyltu_batch<T>(A.flip_if(flipped).as<const T>(count, n, n), B.as<T>(count, n, n));
    });
    return b;
}

// The diagonal, copied.
nb::object extractdiag(nb::handle a) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows;
    const NewTensor d = allocate_vector(A, n);
    const std::uintptr_t target = d.address;
    compute(A, 4.0 * double(n), [&](auto type) {
        using T = decltype(type);
        extractdiag_batch<T>(A.memory.as<const T>(A.count, n, n), reinterpret_cast<T*>(target));
    });
    return d;
}

// A B; large batches are left to torch.
nb::object gemm2(nb::handle a, nb::handle b, nb::handle transpose_a, nb::handle transpose_b, nb::handle scale) {
    TensorOperand A, B;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B) || !have_one_kind(A, B)) return nb::none();
    const bool flip_a = is_true(transpose_a), flip_b = is_true(transpose_b);
    if (!PyFloat_CheckExact(scale.ptr())) return nb::none();
    const double alpha = PyFloat_AsDouble(scale.ptr());
    const index_t m = flip_a ? A.cols : A.rows, k = flip_a ? A.rows : A.cols, n = flip_b ? B.rows : B.cols, count = A.count;
    if ((flip_b ? B.cols : B.rows) != k || !serves_products(A.item_size, count, m, n, k)) return nb::none();
    const NewTensor c = allocate_matrix(m == B.rows && n == B.cols && B.is_contiguous ? B : A, m, n);
    const Operand C = make_dense(c, m, n);
    compute(A, double(m) * double(n) * double(k), [&](auto type) {
        using T = decltype(type);
        gemm_batch<T>(T(alpha), A.flip_if(flip_a).as<const T>(count, m, k), B.flip_if(flip_b).as<const T>(count, k, n), T(0),
                      C.as<const T>(count, m, n), C.as<T>(count, m, n));
    });
    return c;
}

// alpha ta(A) tb(B) + beta C, as gemm2.
nb::object gemm(nb::handle a, nb::handle b, nb::handle c, nb::handle transpose_a, nb::handle transpose_b, nb::handle scale,
                nb::handle scale_c) {
    TensorOperand A, B, C;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B) || !describe_tensor(c, C)) return nb::none();
    if (!have_one_kind(A, B) || !have_one_kind(A, C)) return nb::none();
    if (!PyFloat_CheckExact(scale.ptr()) || !PyFloat_CheckExact(scale_c.ptr())) return nb::none();
    const double alpha = PyFloat_AsDouble(scale.ptr()), beta = PyFloat_AsDouble(scale_c.ptr());
    const bool flip_a = is_true(transpose_a), flip_b = is_true(transpose_b);
    const index_t m = C.rows, n = C.cols, k = flip_a ? A.rows : A.cols, count = C.count;
    if ((flip_a ? A.cols : A.rows) != m || (flip_b ? B.cols : B.rows) != k || (flip_b ? B.rows : B.cols) != n) return nb::none();
    if (!serves_products(A.item_size, count, m, n, k)) return nb::none();
    const NewTensor d = allocate_like(C);
    const Operand D = make_dense(d, m, n);
    compute(A, double(m) * double(n) * double(k), [&](auto type) {
        using T = decltype(type);
        gemm_batch<T>(T(alpha), A.flip_if(flip_a).as<const T>(count, m, k), B.flip_if(flip_b).as<const T>(count, k, n), T(beta),
                      C.memory.as<const T>(count, m, n), D.as<T>(count, m, n));
    });
    return d;
}

// A triangle from the main diagonal on as a vector; `n`, the order of A, is known.
nb::object extracttrian(nb::handle a, nb::handle lower) {
    TensorOperand A;
    if (!is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols) return nb::none();
    const index_t n = A.rows, count = A.count;
    const NewTensor v = allocate_vector(A, n * (n + 1) / 2);
    const std::uintptr_t target = v.address;
    const Operand source = A.flip_if(!is_true(lower));
    compute(A, double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        extracttrian_batch<T>(source.as<const T>(count, n, n), 0, reinterpret_cast<T*>(target));
    });
    return v;
}

// The triangular matrix of a packed vector.
nb::object maketrian(nb::handle v, nb::handle lower) {
    TensorOperand V;
    if (!is_plain_eager() || !describe_vectors(v, V) || V.memory.col_stride != 1) return nb::none();
    index_t n = static_cast<index_t>(std::sqrt(2.0 * double(V.cols)));
    while (n * (n + 1) / 2 < V.cols) ++n;
    if (n * (n + 1) / 2 != V.cols) return nb::none();
    const NewTensor a = allocate_matrix(V, n, n);
    const Operand A = flip_if(!is_true(lower), make_dense(a, n, n));
    compute(V, double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        maketrian_batch<T>({reinterpret_cast<const T*>(V.memory.address), 1}, V.memory.batch_stride, 0, A.as<T>(V.count, n, n));
    });
    return a;
}

}  // namespace

void bind_shortcuts(nb::module_& m) {
    m.def("bind_torch", &bind_torch);
    const auto any = nb::arg().none();  // every argument may be anything, also None
    m.def("trsm_shortcut", &OnEitherDevice<&triangle<true>, device_shortcuts::trsm>::call, any, any, any, any, any);
    m.def("trmm_shortcut", &OnEitherDevice<&triangle<false>, device_shortcuts::trmm>::call, any, any, any, any, any);
    m.def("syrk_shortcut", &OnEitherDevice<&syrk, device_shortcuts::syrk>::call, any, any);
    m.def("gemmt_shortcut", &OnEitherDevice<&gemmt, device_shortcuts::gemmt>::call, any, any, any, any, any, any);
    m.def("potrf_shortcut", &OnEitherDevice<&potrf, device_shortcuts::potrf>::call, any, any);
    m.def("potrf_vjp_shortcut", &OnEitherDevice<&potrf_vjp, device_shortcuts::potrf_vjp>::call, any, any, any, any);
    m.def("cho_solve_shortcut", &cho_solve, any, any, any);
    m.def("potri_shortcut", &OnEitherDevice<&potri, device_shortcuts::potri>::call, any, any);
    m.def("inverse_shortcut", &OnEitherDevice<&inverse, device_shortcuts::inverse>::call, any);
    m.def("gesv_shortcut", &OnEitherDevice<&gesv, device_shortcuts::gesv>::call, any, any, any);
    m.def("sumlogdiag_shortcut", &OnEitherDevice<&sumlogdiag, device_shortcuts::sumlogdiag>::call, any);
    m.def("makediag_shortcut", &OnEitherDevice<&makediag, device_shortcuts::makediag>::call, any);
    m.def("syevd_shortcut", &syevd, any, any);
    m.def("gesvd_shortcut", &gesvd, any);
    m.def("gelqf_shortcut", &gelqf, any, any);
    m.def("copyltu_shortcut", &OnEitherDevice<&copyltu, device_shortcuts::copyltu>::call, any, any);
    m.def("extractdiag_shortcut", &OnEitherDevice<&extractdiag, device_shortcuts::extractdiag>::call, any);
    m.def("potrf_ex_shortcut", &OnEitherDevice<&potrf_ex, device_shortcuts::potrf_ex>::call, any, any);
    m.def("gemm_shortcut", &OnEitherDevice<&gemm, device_shortcuts::gemm>::call, any, any, any, any, any, any, any);
    m.def("extracttrian_shortcut", &OnEitherDevice<&extracttrian, device_shortcuts::extracttrian>::call, any, any);
    m.def("maketrian_shortcut", &OnEitherDevice<&maketrian, device_shortcuts::maketrian>::call, any, any);
    m.def("gemm2_shortcut", &OnEitherDevice<&gemm2, device_shortcuts::gemm2>::call, any, any, any, any, any);
}

}  // namespace lapgrad::binding
