// Binds shortcuts for gradients: all gradients of an operator on ordinary tensors in one call (see bind_shortcuts.cpp).
//
// torch's own gradients of one small matrix take about a microsecond each, and so does each call of an operator from Python. Operands
// were checked by the forward call. Like all shortcuts, these return None where anything is out of the ordinary.

#include "base/buffer.h"
#include "bind/shortcut.h"
#include "bind/device_shortcuts.h"
#include "ops/cho_solve.h"
#include "ops/copyltu.h"
#include "ops/lu.h"
#include "ops/packing.h"
#include "ops/potri.h"

namespace lapgrad::binding {
namespace {

double count_product(index_t m, index_t n, index_t k) { return double(m) * double(n) * double(k); }

// Describes operands that have one dtype and one batch. Returns false if they are out of the ordinary.
bool describe_all(std::initializer_list<std::pair<nb::handle, TensorOperand*>> operands) {
    if (!is_plain_eager()) return false;
    const TensorOperand& first = *operands.begin()->second;
    for (const auto& [tensor, operand] : operands)
        if (!describe_tensor(tensor, *operand) || !have_one_kind(*operand, first)) return false;
    return true;
}

bool have_shape(const TensorOperand& A, index_t rows, index_t cols) { return A.rows == rows && A.cols == cols; }

// (gL, gA) of B = t(L) A, or of X = t(L)^-1 A. `given` is A, or X.
template <bool Solve>
nb::object triangle_vjp(nb::handle l, nb::handle given, nb::handle cotangent, nb::handle lower_flag, nb::handle transpose,
                        nb::handle rightside) {
    TensorOperand L, Y, G;
    if (!describe_all({{l, &L}, {given, &Y}, {cotangent, &G}})) return nb::none();
    const bool lower = is_true(lower_flag), transposed = is_true(transpose), right = is_true(rightside);
    const index_t rows = Y.rows, cols = Y.cols, n = right ? cols : rows, m = right ? rows : cols, count = Y.count;
    if (!have_shape(L, n, n) || !have_shape(G, rows, cols)) return nb::none();
    const NewTensor gl = allocate_like(L), ga = allocate_like(Y);
    const Operand gA = make_dense(ga, rows, cols);
    compute(Y, 2.0 * count_product(n, n, m), [&](auto type) {
        using T = decltype(type);
        apply_triangle<T, Solve>(L.memory, lower, !transposed, right, G.memory, gA, count, rows, cols);
        // B = L A: gB A'.   B = L' A: A gB'.   B = A L: A' gB.   B = A L': gB' A.   For a solve gA takes the place of gB, and X of A.
        const Operand &known = Y.memory, &moved = Solve ? gA : G.memory;
        const bool known_first = transposed != right;
        const Operand &first = known_first ? known : moved, &second = known_first ? moved : known;
        multiply_to_triangle<T>(Solve ? -1.0 : 1.0, flip_if(right, first), flip_if(!right, second), make_dense(gl, n, n), lower, count, n, m);
    });
    return nb::make_tuple(gl, ga);
}

// (gA, gB) of C = alpha tri(ta(A) tb(B)): with G = tri(gC) the gradient of ta(A) is alpha G tb(B)', that of tb(B) alpha ta(A)' G.
nb::object gemmt_vjp(nb::handle a, nb::handle b, nb::handle cotangent, nb::handle lower_flag, nb::handle transpose_a,
                     nb::handle transpose_b) {
    TensorOperand A, B, G;
    if (!describe_all({{a, &A}, {b, &B}, {cotangent, &G}})) return nb::none();
    const bool lower = is_true(lower_flag), flip_a = is_true(transpose_a), flip_b = is_true(transpose_b);
    const index_t n = G.rows, k = flip_a ? A.rows : A.cols, count = G.count;
    if (!have_shape(G, n, n) || !have_shape(A, flip_a ? k : n, flip_a ? n : k) || !have_shape(B, flip_b ? n : k, flip_b ? k : n))
        return nb::none();
    const NewTensor ga = allocate_like(A), gb = allocate_like(B);
    compute(A, 2.0 * count_product(n, n, k), [&](auto type) {
        using T = decltype(type);
        // Both as n x k matrices: ta(A) from the left, and tb(B)' from the left.
        apply_triangle<T, false>(G.memory, lower, false, false, flip_if(!flip_b, B.memory), flip_if(flip_a, make_dense(ga, A.rows, A.cols)),
                                 count, n, k);
        apply_triangle<T, false>(G.memory, lower, true, false, flip_if(flip_a, A.memory), flip_if(!flip_b, make_dense(gb, B.rows, B.cols)),
                                 count, n, k);
    });
    return nb::make_tuple(ga, gb);
}

// (gA, gB) of C = alpha ta(A) tb(B).
nb::object gemm2_vjp(nb::handle a, nb::handle b, nb::handle cotangent, nb::handle transpose_a, nb::handle transpose_b, nb::handle scale) {
    TensorOperand A, B, G;
    if (!describe_all({{a, &A}, {b, &B}, {cotangent, &G}}) || !PyFloat_CheckExact(scale.ptr())) return nb::none();
    const double alpha = PyFloat_AsDouble(scale.ptr());
    const bool flip_a = is_true(transpose_a), flip_b = is_true(transpose_b);
    const index_t m = G.rows, n = G.cols, k = flip_a ? A.rows : A.cols, count = G.count;
    if (!have_shape(A, flip_a ? k : m, flip_a ? m : k) || !have_shape(B, flip_b ? n : k, flip_b ? k : n)) return nb::none();
    if (!serves_products(A.item_size, count, m, n, k)) return nb::none();
    const NewTensor ga = allocate_like(A), gb = allocate_like(B);
    compute(A, 2.0 * count_product(m, n, k), [&](auto type) {
        using T = decltype(type);
        const Batch<const T> left = A.flip_if(flip_a).as<const T>(count, m, k), right = B.flip_if(flip_b).as<const T>(count, k, n),
                             g = G.memory.as<const T>(count, m, n);
        gemm_batch<T>(T(alpha), g, right.t(), T(0), g, flip_if(flip_a, make_dense(ga, A.rows, A.cols)).as<T>(count, m, k));
        gemm_batch<T>(T(alpha), left.t(), g, T(0), g, flip_if(flip_b, make_dense(gb, B.rows, B.cols)).as<T>(count, k, n));
    });
    return nb::make_tuple(ga, gb);
}

// gA of A A', or of A' A.
nb::object syrk_vjp(nb::handle a, nb::handle cotangent, nb::handle transpose) {
    TensorOperand A, G;
    if (!describe_all({{a, &A}, {cotangent, &G}})) return nb::none();
    const bool flipped = is_true(transpose);
    const index_t n = flipped ? A.cols : A.rows, k = flipped ? A.rows : A.cols, count = A.count;
    if (!have_shape(G, n, n)) return nb::none();
    const NewTensor ga = allocate_like(A);
    const Operand gA = flip_if(flipped, make_dense(ga, A.rows, A.cols));
    compute(A, 2.0 * count_product(n, n, k), [&](auto type) {
        using T = decltype(type);
        syrk_vjp_batch<T>(A.flip_if(flipped).as<const T>(count, n, k), G.memory.as<const T>(count, n, n), gA.as<T>(count, n, k));
    });
    return ga;
}

// gA of the symmetric matrix with a triangle of A.
nb::object copyltu_vjp(nb::handle cotangent, nb::handle lower) {
    TensorOperand G;
    if (!describe_all({{cotangent, &G}}) || G.rows != G.cols) return nb::none();
    const index_t n = G.rows, count = G.count;
    const bool flipped = !is_true(lower);
    const NewTensor ga = allocate_like(G);
    const Operand gA = flip_if(flipped, make_dense(ga, n, n));
    compute(G, double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        copyltu_vjp_batch<T>(G.flip_if(flipped).as<const T>(count, n, n), gA.as<T>(count, n, n));
    });
    return ga;
}

// gL of (L L')^-1, or gR of (R' R)^-1.
nb::object potri_vjp(nb::handle l, nb::handle cotangent, nb::handle lower) {
    TensorOperand L, G;
    if (!describe_all({{l, &L}, {cotangent, &G}})) return nb::none();
    const index_t n = L.rows, count = L.count;
    if (!have_shape(L, n, n) || !have_shape(G, n, n)) return nb::none();
    const bool flipped = !is_true(lower);
    const NewTensor gl = allocate_like(L);
    const Operand gL = flip_if(flipped, make_dense(gl, n, n));
    compute(L, 2.0 * count_product(n, n, n), [&](auto type) {
        using T = decltype(type);
        potri_vjp_batch<T>(L.flip_if(flipped).as<const T>(count, n, n), G.memory.as<const T>(count, n, n), gL.as<T>(count, n, n));
    });
    return gl;
}

// gA of the inverse B; with `Symmetric` for a symmetric B, up to middle orders.
template <bool Symmetric>
nb::object inverse_vjp(nb::handle b, nb::handle cotangent) {
    TensorOperand B, G;
    if (!describe_all({{b, &B}, {cotangent, &G}})) return nb::none();
    const index_t n = B.rows, count = B.count;
    if (!have_shape(B, n, n) || !have_shape(G, n, n) || (Symmetric && n > plan::buffered_congruence)) return nb::none();
    const NewTensor ga = allocate_like(B);
    const Operand gA = make_dense(ga, n, n);
    compute(B, 4.0 * count_product(n, n, n), [&](auto type) {
        using T = decltype(type);
        (Symmetric ? congruence_batch<T> : inverse_vjp_batch<T>)(B.memory.as<const T>(count, n, n), G.memory.as<const T>(count, n, n),
                                                                  gA.as<T>(count, n, n));
    });
    return ga;
}

// gA of det A, or of log |det A|, for matrices whose factors are not kept. Items without a plain formula are left to Python.
template <bool ByDeterminant>
nb::object determinant_vjp(nb::handle a, nb::handle, nb::handle, nb::handle weight) {
    TensorOperand A, w;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_numbers(weight, w) || !have_one_kind(A, w)) return nb::none();
    const index_t n = A.rows, count = A.count;
    if (A.cols != n || n > isa::leaf || (count > 1 && w.memory.batch_stride != 1)) return nb::none();
    const NewTensor ga = allocate_like(A);
    if (ByDeterminant && n == 1) {  // The determinant is the entry.
        compute(A, 1.0, [&](auto type) {
            using T = decltype(type);
            copy_entries<T>(reinterpret_cast<const T*>(w.memory.address), 1, count, reinterpret_cast<T*>(ga.address));
        });
        return ga;
    }
    const Operand gA = make_dense(ga, n, n);
    StatusArray status(count);
    compute(A, 2.0 * count_product(n, n, n), [&](auto type) {
        using T = decltype(type);
        determinant_vjp_batch<T>(A.memory.as<const T>(count, n, n), Batch<const T>{}, nullptr, reinterpret_cast<const T*>(w.memory.address),
                                 ByDeterminant, gA.as<T>(count, n, n), status.data());
    });
    if (status.has_failed()) return nb::none();
    return ga;
}

// (gL, gB) of X = (L L')^-1 B; with `Symmetric` (gA, gB) of X = A^-1 B, of whose factor L is.
template <bool Symmetric>
nb::object cho_solve_vjp(nb::handle l, nb::handle x, nb::handle cotangent, nb::handle lower) {
    TensorOperand L, X, G;
    if (!describe_all({{l, &L}, {x, &X}, {cotangent, &G}})) return nb::none();
    const index_t n = X.rows, m = X.cols, count = X.count;
    if (!have_shape(L, n, n) || !have_shape(G, n, m)) return nb::none();
    const bool flipped = !is_true(lower);
    const NewTensor gl = allocate_like(L), gb = allocate_like(X);
    const Operand gL = flip_if(flipped, make_dense(gl, n, n)), gB = make_dense(gb, n, m);
    compute(X, 4.0 * count_product(n, n, m), [&](auto type) {
        using T = decltype(type);
        const Batch<const T> factor = L.flip_if(flipped).as<const T>(count, n, n), solution = X.memory.as<const T>(count, n, m),
                             g = G.memory.as<const T>(count, n, m), of_right = gB.as<const T>(count, n, m);
        if (Symmetric) {
            cho_solve_batch<T>(factor, g, gB.as<T>(count, n, m));
            gemmt_sum_batch<T>(T(-0.5), of_right, solution.t(), solution, of_right.t(), gL.as<T>(count, n, n), true);
        } else {
            cho_solve_vjp_batch<T>(factor, solution, g, gL.as<T>(count, n, n), gB.as<T>(count, n, m));
        }
    });
    return nb::make_tuple(gl, gb);
}

// gA of sum_i log |a_ii|: the weight over each a_ii, zeros elsewhere.
nb::object sumlogdiag_vjp(nb::handle a, nb::handle weight) {
    TensorOperand A, w;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_numbers(weight, w) || !have_one_kind(A, w)) return nb::none();
    const index_t n = A.rows, step = A.memory.row_stride + A.memory.col_stride;
    if (A.cols != n) return nb::none();
    const NewTensor ga = allocate_like(A);
    const std::uintptr_t target = ga.address;
    compute(A, double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        T* const out = reinterpret_cast<T*>(target);
        const T *const in = reinterpret_cast<const T*>(A.memory.address), *const weights = reinterpret_cast<const T*>(w.memory.address);
        parallel::for_ranges(A.count * n, plan::parallel_elements / n + 1, [&](index_t begin, index_t end) {
            clear_numbers<T>(out + begin * n, (end - begin) * n);
            for (index_t b = begin / n, i = begin % n, row = begin; row < end; ++row) {
                out[row * n + i] = weights[b * w.memory.batch_stride] / in[b * A.memory.batch_stride + i * step];
                if (++i == n) i = 0, ++b;
            }
        });
    });
    return ga;
}

}  // namespace

void bind_gradients(nb::module_& m) {
    const auto any = nb::arg().none();
    m.def("trmm_vjp_shortcut", &triangle_vjp<false>, any, any, any, any, any, any);
    m.def("trsm_vjp_shortcut", &triangle_vjp<true>, any, any, any, any, any, any);
    m.def("gemmt_vjp_shortcut", &gemmt_vjp, any, any, any, any, any, any);
    m.def("gemm2_vjp_shortcut", &gemm2_vjp, any, any, any, any, any, any);
    m.def("syrk_vjp_shortcut", &OnEitherDevice<&syrk_vjp, device_shortcuts::syrk_vjp>::call, any, any, any);
    m.def("copyltu_vjp_shortcut", &copyltu_vjp, any, any);
    m.def("potri_vjp_shortcut", &OnEitherDevice<&potri_vjp, device_shortcuts::potri_vjp>::call, any, any, any);
    m.def("inverse_vjp_shortcut", &OnEitherDevice<&inverse_vjp<false>, device_shortcuts::inverse_vjp>::call, any, any);
    m.def("inverse_psd_vjp_shortcut", &inverse_vjp<true>, any, any);
    m.def("det_vjp_shortcut", &determinant_vjp<true>, any, any, any, any);
    m.def("slogdet_vjp_shortcut", &determinant_vjp<false>, any, any, any, any);
    m.def("cho_solve_vjp_shortcut", &cho_solve_vjp<false>, any, any, any, any);
    m.def("solve_psd_vjp_shortcut", &cho_solve_vjp<true>, any, any, any, any);
    m.def("sumlogdiag_vjp_shortcut", &OnEitherDevice<&sumlogdiag_vjp, device_shortcuts::sumlogdiag_vjp>::call, any, any);
}

}  // namespace lapgrad::binding
