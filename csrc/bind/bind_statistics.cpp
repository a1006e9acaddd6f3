// Binds functions of symmetric matrices, centring and multivariate statistics: shortcuts (see bind_shortcuts.cpp), and the kernels of
// centring. On small data they take microseconds, no longer than one call of torch.
#include <optional>
#include <utility>
#include <vector>

#include "bind/shortcut.h"
#include "bind/device_shortcuts.h"
#include "ops/eigh_fn.h"
#include "ops/statistics.h"

namespace lapgrad::binding {
namespace {

std::optional<MatrixFunction> find_function(nb::handle name) {
    constexpr std::pair<const char*, MatrixFunction> known[] = {{"exp", MatrixFunction::exp},
                                                                {"log", MatrixFunction::log},
                                                                {"sqrt", MatrixFunction::sqrt},
                                                                {"rsqrt", MatrixFunction::rsqrt},
                                                                {"inv", MatrixFunction::inv}};
    if (PyUnicode_Check(name.ptr()))
        for (const auto& [text, function] : known)
            if (PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0) return function;
    return std::nullopt;
}

// The rule for equal eigenvalues. "raise" and "quiet" compute what "mask" does.
std::optional<Degeneracy> find_policy(nb::handle name) {
    constexpr std::pair<const char*, Degeneracy> known[] = {{"mask", Degeneracy::mask},   {"lorentz", Degeneracy::lorentz},
                                                            {"clamp", Degeneracy::clamp}, {"nan", Degeneracy::nan},
                                                            {"raise", Degeneracy::mask},  {"quiet", Degeneracy::mask}};
    if (PyUnicode_Check(name.ptr()))
        for (const auto& [text, rule] : known)
            if (PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0) return rule;
    return std::nullopt;
}

// A number that Python passes; nothing for None, or anything else.
std::optional<double> read_number(nb::handle value) {
    if (!PyFloat_Check(value.ptr())) return std::nullopt;
    return PyFloat_AsDouble(value.ptr());
}

// The relative gap up to which computed eigenvalues may stem from equal ones: `lapgrad._formulas.gaps.choose_tolerance`.
template <class T>
T choose_tolerance(index_t n, std::optional<double> tol) {
    return T(tol ? *tol : 8.0 * (1.0 + std::sqrt(double(n))) * double(std::numeric_limits<T>::epsilon()));
}

bool is_small(const TensorOperand& A) { return A.rows * A.cols <= plan::composed_entries; }

// (f(A), U, eigenvalues).
nb::object eigh_fn(nb::handle a, nb::handle lower, nb::handle name, nb::handle, nb::handle tol) {
    TensorOperand A;
    const std::optional<MatrixFunction> f = find_function(name);
    if (!f || !is_plain_eager() || !describe_tensor(a, A) || A.rows != A.cols || !is_small(A)) return nb::none();
    const index_t n = A.rows, count = A.count;
    const NewTensor b = allocate_like(A), u = allocate_like(A), eigenvalues = allocate_vector(A, n);
    const Operand B = make_dense(b, n, n), U = make_dense(u, n, n), matrices = A.flip_if(!is_true(lower));
    const std::optional<double> given = read_number(tol);
    const bool done = compute(A, 10.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        T* const l = reinterpret_cast<T*>(eigenvalues.address);
        std::vector<std::int32_t> status(count);
        syevd_batch<T>(matrices.as<const T>(count, n, n), U.as<T>(count, n, n), l, status.data());
        return are_zero(status) &&
               eigh_fn_batch<T>(U.as<const T>(count, n, n), l, *f, choose_tolerance<T>(n, given), B.as<T>(count, n, n));
    });
    return done ? nb::object(nb::make_tuple(b, u, eigenvalues)) : nb::none();
}

// gA of f(A) with cotangent gB.
nb::object eigh_fn_vjp(nb::handle u, nb::handle eigenvalues, nb::handle cotangent, nb::handle name, nb::handle, nb::handle tol) {
    TensorOperand U, l, G;
    const std::optional<MatrixFunction> f = find_function(name);
    if (!f || !is_plain_eager() || !describe_tensor(u, U) || !describe_vectors(eigenvalues, l) || !describe_tensor(cotangent, G))
        return nb::none();
    const index_t n = U.rows, count = U.count;
    if (!is_small(U) || !have_one_kind(U, l) || !have_one_kind(U, G) || U.cols != n || l.cols != n || G.rows != n || G.cols != n || !l.is_contiguous)
        return nb::none();
    const NewTensor ga = allocate_like(U);
    const Operand gA = make_dense(ga, n, n);
    const std::optional<double> given = read_number(tol);
    compute(U, 6.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        eigh_fn_vjp_batch<T>(U.memory.as<const T>(count, n, n), reinterpret_cast<const T*>(l.memory.address),
                             G.memory.as<const T>(count, n, n), *f, choose_tolerance<T>(n, given), gA.as<T>(count, n, n));
    });
    return ga;
}

// (components, variance, mean, scores) for k components, of small or long data: centred data are needed one way or the other.
nb::object pca(nb::handle x, index_t k) {
    TensorOperand X;
    if (!is_plain_eager() || !describe_tensor(x, X) || (!is_small(X) && std::min(X.rows, X.cols) > plan::few_variables)) return nb::none();
    const index_t n = X.rows, d = X.cols, count = X.count;
    if (k < 1 || k > std::min(n, d)) return nb::none();
    const NewTensor components = allocate_matrix(X, k, d), variance = allocate_vector(X, k), mean = allocate_vector(X, d),
                    scores = allocate_matrix(X, n, k);
    const bool done = compute(X, 10.0 * double(n) * double(d) * double(std::min(n, d)), [&](auto type) {
        using T = decltype(type);
        return pca_batch<T>(X.memory.as<const T>(count, n, d), choose_tolerance<T>(n, std::nullopt),
                            make_dense(components, k, d).as<T>(count, k, d), reinterpret_cast<T*>(variance.address),
                            reinterpret_cast<T*>(mean.address), make_dense(scores, n, k).as<T>(count, n, k));
    });
    return done ? nb::object(nb::make_tuple(components, variance, mean, scores)) : nb::none();
}

// (correlations, W_x, W_y), k of each, for observations with enough rows.
nb::object cca(nb::handle x, nb::handle y, index_t k, double regularisation) {
    TensorOperand X, Y;
    if (!is_plain_eager() || !describe_tensor(x, X) || !describe_tensor(y, Y) || !have_one_kind(X, Y) || !is_small(X) || !is_small(Y))
        return nb::none();
    const index_t n = X.rows, p = X.cols, q = Y.cols, count = X.count;
    if (Y.rows != n || k < 1 || k > std::min(p, q)) return nb::none();
    const NewTensor s = allocate_vector(X, k), wx = allocate_matrix(X, p, k), wy = allocate_matrix(X, q, k);
    const bool done = compute(X, double(n) * double(p + q) * double(p + q), [&](auto type) {
        using T = decltype(type);
        return cca_batch<T>(X.memory.as<const T>(count, n, p), Y.memory.as<const T>(count, n, q), regularisation,
                            reinterpret_cast<T*>(s.address), make_dense(wx, p, k).as<T>(count, p, k), make_dense(wy, q, k).as<T>(count, q, k));
    });
    return done ? nb::object(nb::make_tuple(s, wx, wy)) : nb::none();
}

// Reads n labels, int64 in a row. Returns null if they are anything else.
const std::int64_t* read_labels(nb::handle labels, index_t n) {
    dlpack::Tensor header{};
    if (!is_ordinary(labels) || !read_header(labels, header)) return nullptr;
    const bool is_whole = header.dtype.code == dlpack::int_code && header.dtype.bits == 64 && header.dtype.lanes == 1;
    if (header.device_type != dlpack::cpu_device || !is_whole || header.ndim != 1 || header.shape[0] != n) return nullptr;
    if (n > 1 && (!header.strides || header.strides[0] != 1)) return nullptr;
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(header.data) + header.byte_offset;
    if (!has_memory(labels, address) || is_negated(labels)) return nullptr;
    return reinterpret_cast<const std::int64_t*>(address);
}

// (ratios, W) for labels from 0 to the number of classes less one, each of which occurs. `k` None: as many as there are.
nb::object lda(nb::handle x, nb::handle labels, nb::handle most, nb::handle added) {
    TensorOperand X;
    const double regularisation = read_number(added).value_or(-1.0);
    if (!is_plain_eager() || !describe_tensor(x, X)) return nb::none();
    const index_t n = X.rows, p = X.cols, count = X.count;
    const std::int64_t* const classes = read_labels(labels, n);
    if (!classes || !(regularisation >= 0.0)) return nb::none();
    index_t c = 0;
    for (index_t i = 0; i < n; ++i) {
        if (classes[i] < 0 || classes[i] >= n) return nb::none();
        c = std::max<index_t>(c, classes[i] + 1);
    }
    std::vector<bool> occurs(c, false);
    for (index_t i = 0; i < n; ++i) occurs[classes[i]] = true;
    for (const bool one : occurs)
        if (!one) return nb::none();
    if (c < 2 || n - c < 1 || (n - c < p && regularisation == 0.0)) return nb::none();
    if (!most.is_none() && !PyLong_CheckExact(most.ptr())) return nb::none();
    const index_t side = std::min(p, c - 1), k = most.is_none() ? side : index_t(PyLong_AsLongLong(most.ptr()));
    if (k < 1 || k > side) return nb::none();
    const NewTensor ratios = allocate_vector(X, k), w = allocate_matrix(X, p, k);
    const bool done = compute(X, double(n) * double(p) * double(p), [&](auto type) {
        using T = decltype(type);
        return lda_batch<T>(X.memory.as<const T>(count, n, p), classes, c, regularisation, reinterpret_cast<T*>(ratios.address),
                            make_dense(w, p, k).as<T>(count, p, k));
    });
    return done ? nb::object(nb::make_tuple(ratios, w)) : nb::none();
}

// (X, Q, L) of the least squares problem A X = B.
nb::object lstsq(nb::handle a, nb::handle b, nb::handle rcond) {
    TensorOperand A, B;
    if (!is_plain_eager() || !describe_tensor(a, A) || !describe_tensor(b, B) || !have_one_kind(A, B)) return nb::none();
    const std::optional<double> given = read_number(rcond);
    if (!given && !rcond.is_none()) return nb::none();
    const index_t m = A.rows, n = A.cols, columns = B.cols, rank = std::min(m, n), longest = std::max(m, n), count = A.count;
    if (B.rows != m) return nb::none();
    const NewTensor x = allocate_matrix(A, n, columns), q = allocate_matrix(A, rank, longest), l = allocate_matrix(A, rank, rank);
    const bool done = compute(A, 4.0 * double(m) * double(n) * double(rank), [&](auto type) {
        using T = decltype(type);
        const T tolerance = T(given ? *given : double(longest) * double(std::numeric_limits<T>::epsilon()));
        return lstsq_batch<T>(A.memory.as<const T>(count, m, n), B.memory.as<const T>(count, m, columns), tolerance, given.has_value(),
                              make_dense(x, n, columns).as<T>(count, n, columns), make_dense(q, rank, longest).as<T>(count, rank, longest),
                              make_dense(l, rank, rank).as<T>(count, rank, rank));
    });
    return done ? nb::object(nb::make_tuple(x, q, l)) : nb::none();
}

// gA of the eigendecomposition for cotangents of the last k eigenvectors and eigenvalues, either of which may be None. Items on which
// the loss has no derivative are left to Python, and so are the last k of large matrices.
nb::object syevd_vjp(nb::handle u, nb::handle eigenvalues, nb::handle of_vectors, nb::handle of_values, nb::handle policy, nb::handle tol) {
    TensorOperand U, l, G, slope;
    const std::optional<Degeneracy> rule = find_policy(policy);
    if (!rule || !is_plain_eager() || !describe_tensor(u, U) || !describe_vectors(eigenvalues, l) || !have_one_kind(U, l)) return nb::none();
    const index_t n = U.rows, count = U.count;
    const bool has_vectors = !of_vectors.is_none(), has_values = !of_values.is_none();
    if (has_vectors && (!describe_tensor(of_vectors, G) || !have_one_kind(U, G) || G.cols != n || G.rows > n)) return nb::none();
    if (has_values && (!describe_vectors(of_values, slope) || !have_one_kind(U, slope) || slope.cols > n)) return nb::none();
    if (U.cols != n || l.cols != n || !U.is_contiguous || !l.is_contiguous || (!has_vectors && !has_values)) return nb::none();
    const index_t vectors = has_vectors ? G.rows : n, values = has_values ? slope.cols : n;
    if ((vectors < n || values < n) && n > plan::padded_order) return nb::none();
    const bool copies_values = has_values && (values < n || !slope.is_contiguous);
    const NewTensor ga = allocate_like(U);
    const Operand gA = make_dense(ga, n, n);
    const std::optional<double> given = read_number(tol);
    const bool done = compute(U, 5.0 * double(n) * double(n) * double(n), [&](auto type) {
        using T = decltype(type);
        const BatchBuffer<T> all(vectors < n ? count : 0, n, n), all_values(copies_values ? count : 0, 1, n);
        Batch<const T> g = has_vectors ? G.memory.as<const T>(count, vectors, n) : Batch<const T>{};
        const T* s = has_values ? reinterpret_cast<const T*>(slope.memory.address) : nullptr;
        if (vectors < n) {  // filled up with zeros
            for (index_t b = 0; b < count; ++b) {
                set_zero<T>(all.all()[b].block(0, 0, n - vectors, n));
                copy<T>(g[b], T(1), all.all()[b].block(n - vectors, 0, vectors, n), false);
            }
            g = all.readonly();
        }
        if (copies_values) {
            const Batch<const T> some = slope.memory.as<const T>(count, 1, values);
            for (index_t b = 0; b < count; ++b)
                for (index_t i = 0; i < n; ++i) all_values.all()[b](0, i) = i < n - values ? T(0) : some[b](0, i - (n - values));
            s = all_values.readonly().data;
        }
        std::vector<std::int32_t> uneven(count);
        syevd_vjp_batch<T>(U.memory.as<const T>(count, n, n), reinterpret_cast<const T*>(l.memory.address), g, s, *rule,
                           choose_tolerance<T>(n, given), gA.as<T>(count, n, n), uneven.data());
        return are_zero(uneven);
    });
    return done ? nb::object(ga) : nb::none();
}

// gX of centred data with the cotangents g_centred and, unless None, g_mean.
nb::object centre_gradient(nb::handle g_centred, nb::handle g_mean, nb::handle unit) {
    TensorOperand G, m, u;
    if (!is_plain_eager() || !describe_tensor(g_centred, G) || !describe_tensor(unit, u) || !have_one_kind(G, u)) return nb::none();
    const bool has_mean = !g_mean.is_none();
    if (has_mean && (!describe_vectors(g_mean, m) || !have_one_kind(G, m) || m.cols != G.cols || !m.is_contiguous)) return nb::none();
    if (u.rows != 1 || u.cols != 1 || !u.is_contiguous) return nb::none();
    const index_t n = G.rows, d = G.cols, count = G.count;
    const NewTensor gx = allocate_like(G);
    compute(G, 4.0 * double(n) * double(d), [&](auto type) {
        using T = decltype(type);
        centre_vjp_batch<T>(G.memory.as<const T>(count, n, d), has_mean ? reinterpret_cast<const T*>(m.memory.address) : nullptr,
                            reinterpret_cast<const T*>(u.memory.address), make_dense(gx, n, d).as<T>(count, n, d));
    });
    return gx;
}

// mean, centred and unit (contiguous) := those of X, n x d.
void centre(int item_size, const Operand& X, std::uintptr_t mean, std::uintptr_t centred, std::uintptr_t unit, index_t count,
            index_t n, index_t d, double least, index_t degrees) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        centre_batch<T>(X.as<const T>(count, n, d), reinterpret_cast<T*>(mean), make_dense<T>(centred, count, n, d), reinterpret_cast<T*>(unit), T(least),
                        degrees);
    });
}

// gX (contiguous) := the gradient of X. g_mean may be 0.
void centre_vjp(int item_size, const Operand& G, std::uintptr_t g_mean, std::uintptr_t unit, std::uintptr_t x, index_t count,
                index_t n, index_t d) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        centre_vjp_batch<T>(G.as<const T>(count, n, d), reinterpret_cast<const T*>(g_mean), reinterpret_cast<const T*>(unit),
                            make_dense<T>(x, count, n, d));
    });
}

}  // namespace

void bind_statistics(nb::module_& m) {
    const auto any = nb::arg().none();
    m.def("eigh_fn_shortcut", &eigh_fn, any, any, any, any, any);
    m.def("eigh_fn_vjp_shortcut", &eigh_fn_vjp, any, any, any, any, any, any);
    m.def("syevd_vjp_shortcut", &syevd_vjp, any, any, any, any, any, any);
    m.def("centre_vjp_shortcut", &centre_gradient, any, any, any);
    m.def("pca_shortcut", &pca, any, nb::arg());
    m.def("cca_shortcut", &cca, any, any, nb::arg(), nb::arg());
    m.def("lda_shortcut", &lda, any, any, any, any);
    m.def("lstsq_shortcut", &lstsq, any, any, any);
    m.def("centre", &centre);
    m.def("centre_vjp", &centre_vjp);
}

}  // namespace lapgrad::binding
