#include "bind/ways.h"

#include <cstring>
#include <string>

namespace lapgrad::binding {
namespace {

// What Python passes in. The references are kept for the life of the process.
struct Settings {
    int device_type = -1;                 // of DLPack
    PyObject* is_there = nullptr;         // name of the attribute that is true for tensors on the device; null: there is no device
    PyObject* find_way = nullptr;         // name -> (plain, recorded, whether it multiplies), or None
    PyObject* keeps_precision = nullptr;  // tensor -> whether torch rounds no products of its kind
};
Settings settings;
constexpr int kMostOperands = 4;

bool is_product(const DeviceOperand* o, PyObject* const* flags) {
    const bool ta = is_true(flags[0]), tb = is_true(flags[1]);
    return (ta ? o[0].rows : o[0].cols) == (tb ? o[1].cols : o[1].rows);
}

bool is_product_and_sum(const DeviceOperand* o, PyObject* const* flags) {
    const bool ta = is_true(flags[0]), tb = is_true(flags[1]);
    return is_product(o, flags) && (ta ? o[0].cols : o[0].rows) == o[2].rows && (tb ? o[1].rows : o[1].cols) == o[2].cols;
}

bool is_square_product(const DeviceOperand* o, PyObject* const* flags) {
    const bool ta = is_true(flags[1]), tb = is_true(flags[2]);
    return is_product(o, flags + 1) && (ta ? o[0].cols : o[0].rows) == (tb ? o[1].rows : o[1].cols);
}

bool is_triangle(const DeviceOperand* o, PyObject* const* flags) {
    return o[0].rows == o[0].cols && o[0].rows == (is_true(flags[2]) ? o[1].cols : o[1].rows);
}

bool is_anything(const DeviceOperand*, PyObject* const*) { return true; }

bool is_square(const DeviceOperand* o, PyObject* const*) { return o[0].rows == o[0].cols; }

bool are_alike(const DeviceOperand* o, PyObject* const*) {
    return o[0].rows == o[0].cols && o[1].rows == o[0].rows && o[1].cols == o[0].cols;
}

bool is_system(const DeviceOperand* o, PyObject* const*) { return o[0].rows == o[0].cols && o[1].rows == o[0].rows; }

bool is_gradient_of_syrk(const DeviceOperand* o, PyObject* const* flags) {
    return o[1].rows == o[1].cols && o[1].rows == (is_true(flags[0]) ? o[0].cols : o[0].rows);
}

bool has_same_batch(const DeviceOperand& A, const DeviceOperand& B) {
    return A.leading == B.leading && std::memcmp(A.header.shape, B.header.shape, sizeof(std::int64_t) * A.leading) == 0;
}

}  // namespace

bool Way::is_meant_for(nb::handle first) const {
    return settings.is_there && is_ordinary(first) && has_true_attribute(first.ptr(), settings.is_there);
}

nb::object Way::take(PyObject* const* arguments) {
    if (!is_known) {
        const nb::object found = nb::steal(PyObject_CallFunction(settings.find_way, "s", name));
        if (!found.is_valid()) throw nb::python_error();
        if (!found.is_none()) {
            const auto keep = [&](int i) -> PyObject* {
                const nb::object one = nb::borrow(PyTuple_GetItem(found.ptr(), i));
                return one.is_none() ? nullptr : nb::object(one).release().ptr();
            };
            plain = keep(0), recorded = keep(1), multiplies = nb::cast<bool>(nb::handle(PyTuple_GetItem(found.ptr(), 2)));
        }
        is_known = true;
    }
    if ((!plain && !recorded) || !is_plain_eager()) return nb::none();
    const int count = static_cast<int>(std::strlen(inner));
    DeviceOperand operands[kMostOperands];
    bool needs_gradient = false;
    for (int i = 0; i < count; ++i) {
        DeviceOperand& one = operands[i];
        const dlpack::Tensor &header = one.header, &first = operands[0].header;
        if (!is_ordinary(arguments[i])) return nb::none();
        const bool needs = requires_gradient(arguments[i]);
        if ((needs && is_wrapped(arguments[i])) || !read_header(arguments[i], one.header)) return nb::none();
        if (header.device_type != settings.device_type) return nb::none();
        const int dimensions = inner[i] - '0';
        one.leading = header.ndim - dimensions;
        if (one.leading < 0 || !header.data || !header.shape || header.dtype.lanes != 1) return nb::none();
        if (header.dtype.code != dlpack::float_code || (header.dtype.bits != 32 && header.dtype.bits != 64)) return nb::none();
        one.rows = dimensions > 1 ? header.shape[header.ndim - 2] : 1;
        one.cols = dimensions > 0 ? header.shape[header.ndim - 1] : 1;
        for (int k = 0; k < header.ndim; ++k)
            if (header.shape[k] == 0 || header.shape[k] > INT32_MAX) return nb::none();
        if (header.dtype.bits != first.dtype.bits || header.device_id != first.device_id || !has_same_batch(one, operands[0]))
            return nb::none();
        if (is_negated(arguments[i])) return nb::none();
        needs_gradient = needs_gradient || needs;
    }
    PyObject* const function = needs_gradient && is_recording() ? recorded : plain;
    if (!function || !fits(operands, arguments + count)) return nb::none();
    if (multiplies && operands[0].header.dtype.bits == 32) {
        const nb::object keeps = nb::steal(call_with(settings.keeps_precision, arguments[0]));
        if (!keeps.is_valid()) throw nb::python_error();
        if (keeps.ptr() != Py_True) return nb::none();
    }
    const nb::object result = nb::steal(PyObject_Vectorcall(function, arguments, count + flags, nullptr));
    if (!result.is_valid()) throw nb::python_error();
    return result;
}

namespace ways {
Way gemm{"gemm", "222", 4, is_product_and_sum};
Way gemm2{"gemm2", "22", 3, is_product};
Way gemmt{"gemmt", "22", 4, is_square_product};
Way syrk{"syrk", "2", 1, is_anything};
Way syrk_vjp{"syrk_vjp", "22", 1, is_gradient_of_syrk};
Way trmm{"trmm", "22", 3, is_triangle};
Way trsm{"trsm", "22", 3, is_triangle};
Way trsm_again{"trsm_again", "22", 3, is_triangle};
Way makediag{"makediag", "1", 0, is_anything};
Way extractdiag{"extractdiag", "2", 0, is_square};
Way maketrian{"maketrian", "1", 1, is_anything};
Way extracttrian{"extracttrian", "2", 1, is_square};
Way sumlogdiag{"sumlogdiag", "2", 0, is_square};
Way sumlogdiag_vjp{"sumlogdiag_vjp", "20", 0, is_square};
Way copyltu{"copyltu", "2", 1, is_square};
Way potrf{"potrf", "2", 1, is_square};
Way potrf_ex{"potrf_ex", "2", 1, is_square};
Way potrf_vjp{"potrf_vjp", "22", 2, are_alike};
Way potri{"potri", "2", 1, is_square};
Way potri_vjp{"potri_vjp", "22", 1, are_alike};
Way inverse{"inverse", "2", 0, is_square};
Way inverse_vjp{"inverse_vjp", "22", 0, are_alike};
Way gesv{"gesv", "22", 1, is_system};
}  // namespace ways

namespace {

constexpr Way* kAll[] = {&ways::gemm,         &ways::gemm2,    &ways::gemmt,       &ways::syrk,       &ways::syrk_vjp,   &ways::trmm,
                         &ways::trsm,         &ways::trsm_again, &ways::makediag, &ways::extractdiag, &ways::maketrian,  &ways::extracttrian,
                         &ways::sumlogdiag,   &ways::sumlogdiag_vjp, &ways::copyltu, &ways::potrf,    &ways::potrf_ex,
                         &ways::potrf_vjp,    &ways::potri,    &ways::potri_vjp,   &ways::inverse,    &ways::inverse_vjp,
                         &ways::gesv};

// An operator that has a way and no shortcut on the CPU.
template <Way& way>
nb::object take_one(nb::handle a) {
    PyObject* const all[] = {a.ptr()};
    return way.is_meant_for(a) ? way.take(all) : nb::none();
}

template <Way& way>
nb::object take_two(nb::handle a, nb::handle b) {
    PyObject* const all[] = {a.ptr(), b.ptr()};
    return way.is_meant_for(a) ? way.take(all) : nb::none();
}

template <Way& way>
nb::object take_three(nb::handle a, nb::handle b, nb::handle c) {
    PyObject* const all[] = {a.ptr(), b.ptr(), c.ptr()};
    return way.is_meant_for(a) ? way.take(all) : nb::none();
}

template <Way& way>
nb::object take_five(nb::handle a, nb::handle b, nb::handle c, nb::handle d, nb::handle e) {
    PyObject* const all[] = {a.ptr(), b.ptr(), c.ptr(), d.ptr(), e.ptr()};
    return way.is_meant_for(a) ? way.take(all) : nb::none();
}

// `device` is DLPack's number of the device, and `is_there` the attribute that is true for tensors on it, or None. Ways that were found
// before are looked for again.
void set_ways(nb::object find_way, nb::object keeps_precision, int device, nb::object is_there) {
    settings = {device, is_there.is_none() ? nullptr : is_there.release().ptr(), find_way.release().ptr(), keeps_precision.release().ptr()};
    for (Way* way : kAll) way->is_known = false, way->plain = way->recorded = nullptr;
}

}  // namespace

void bind_ways(nb::module_& m) {
    const auto any = nb::arg().none();
    m.def("set_ways", &set_ways, nb::arg(), nb::arg(), nb::arg(), any);
    m.def("copyltu_shortcut", &take_two<ways::copyltu>, any, any);
    m.def("syrk_vjp_shortcut", &take_three<ways::syrk_vjp>, any, any, any);
    m.def("sumlogdiag_vjp_shortcut", &take_two<ways::sumlogdiag_vjp>, any, any);
    m.def("trsm_again_shortcut", &take_five<ways::trsm_again>, any, any, any, any, any);
    m.def("potri_vjp_shortcut", &take_three<ways::potri_vjp>, any, any, any);
    m.def("inverse_vjp_shortcut", &take_two<ways::inverse_vjp>, any, any);
}

}  // namespace lapgrad::binding
