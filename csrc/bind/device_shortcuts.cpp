#include "bind/device_shortcuts.h"

#include <cstring>

#include "gpu/device.h"

namespace lapgrad::binding {
namespace {

// What Python passes in. The references are kept for the life of the process.
struct Settings {
    int device_type = -1;                 // of DLPack
    PyObject* is_there = nullptr;         // name of the attribute that is true for tensors on the device; null: there is no device
    PyObject* find_shortcut = nullptr;         // name -> (plain, recorded, whether it multiplies), or None
    PyObject* keeps_precision = nullptr;  // tensor -> whether torch rounds no products of its kind
    // (is_autocast_enabled, name of the device, get_precision, its arguments, setting): torch rounds no products if autocast is off, the
    // precision is full, and the attribute `users` of `setting` is 0; null: `keeps_precision` is called.
    PyObject* precision = nullptr;
    PyObject* run_planned = nullptr;      // (function, *arguments) -> None, or (result, kernel, grid, threads, bytes, arguments)
    PyObject* get_device = nullptr;       // -> the number of the current device
    PyObject* get_stream = nullptr;       // device -> the address of its current stream
};
Settings settings;
constexpr int kMostOperands = 4;
// Integers from here on are addresses: sizes and strides are smaller.
constexpr long long kLeastAddress = 1LL << 40;
constexpr std::size_t kMostRecipes = 4096, kMostArguments = 64;

// The devices, as bits, whose context is current in this thread, because Python has launched a kernel there.
thread_local std::uint64_t bound_devices = 0;

// Adds the bytes of a number to a key.
template <class T>
void append(std::string& key, T number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Sizes, strides, type and device of the operands, and the flags. Returns false if a flag is neither a truth value nor a float.
bool make_key(const DeviceOperand* operands, int count, PyObject* const* flags, int flag_count, std::string& key) {
    for (int i = 0; i < count; ++i) {
        const dlpack::Tensor& header = operands[i].header;
        if (!header.strides) return false;
        append(key, header.ndim);
        append(key, header.device_id);
        append(key, header.dtype.bits);
        key.append(reinterpret_cast<const char*>(header.shape), sizeof(std::int64_t) * header.ndim);
        key.append(reinterpret_cast<const char*>(header.strides), sizeof(std::int64_t) * header.ndim);
    }
    for (int i = 0; i < flag_count; ++i) {
        if (PyFloat_Check(flags[i]))
            append(key, PyFloat_AsDouble(flags[i]));
        else if (flags[i] == Py_True || flags[i] == Py_False || flags[i] == Py_None)
            key.push_back(flags[i] == Py_True ? 'T' : flags[i] == Py_False ? 'F' : 'N');
        else
            return false;
    }
    return true;
}

std::uintptr_t get_start(const dlpack::Tensor& header) { return reinterpret_cast<std::uintptr_t>(header.data) + header.byte_offset; }

// Calls a Python function and returns the integer that it returns; -1 for an error.
long long call_for_integer(PyObject* function, PyObject* argument = nullptr) {
    const nb::object answer = nb::steal(argument ? call_with(function, argument) : PyObject_CallNoArgs(function));
    if (!answer.is_valid()) return PyErr_Clear(), -1;
    const long long number = PyLong_AsLongLong(answer.ptr());
    return PyErr_Occurred() ? (PyErr_Clear(), -1) : number;
}

// Bytes from the first element of a tensor to the end of its last one (strides are not negative).
std::uintptr_t count_bytes(const dlpack::Tensor& header) {
    std::int64_t last = 0;
    for (int k = 0; k < header.ndim; ++k) last += (header.shape[k] - 1) * header.strides[k];
    return static_cast<std::uintptr_t>(last + 1) * (header.dtype.bits / 8);
}

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

bool keeps_precision(PyObject* tensor) {
    if (!settings.precision) {
        const nb::object keeps = nb::steal(call_with(settings.keeps_precision, tensor));
        if (!keeps.is_valid()) throw nb::python_error();
        return keeps.ptr() == Py_True;
    }
    const auto part = [](int i) { return PyTuple_GetItem(settings.precision, i); };
    const nb::object rounds = nb::steal(call_with(part(0), part(1)));
    const nb::object precision = nb::steal(PyObject_Call(part(2), part(3), nullptr));
    const nb::object users = nb::steal(PyObject_GetAttrString(part(4), "users"));
    if (!rounds.is_valid() || !precision.is_valid() || !users.is_valid()) throw nb::python_error();
    const bool is_full = PyUnicode_CompareWithASCIIString(precision.ptr(), "none") == 0 ||
                         PyUnicode_CompareWithASCIIString(precision.ptr(), "ieee") == 0;
    return rounds.ptr() == Py_False && is_full && PyLong_AsLong(users.ptr()) == 0;
}

// Whether flags are those of an unscaled product without transpositions.
bool are_defaults(PyObject* const* flags, int count) {
    for (int i = 0; i < count; ++i)
        if (flags[i] != Py_False && !(PyFloat_Check(flags[i]) && PyFloat_AsDouble(flags[i]) == 1.0)) return false;
    return true;
}

bool overlap(const dlpack::Tensor& A, const dlpack::Tensor& B) {
    return get_start(A) < get_start(B) + count_bytes(B) && get_start(B) < get_start(A) + count_bytes(A);
}

}  // namespace

bool DeviceShortcut::serves(nb::handle first) const {
    return settings.is_there && is_ordinary(first) && has_true_attribute(first.ptr(), settings.is_there);
}

nb::object DeviceShortcut::run(PyObject* const* arguments) {
    if (!is_known) {
        const nb::object found = nb::steal(PyObject_CallFunction(settings.find_shortcut, "s", name));
        if (!found.is_valid()) throw nb::python_error();
        if (!found.is_none()) {
            const auto keep = [&](int i) -> PyObject* {
                const nb::object one = nb::borrow(PyTuple_GetItem(found.ptr(), i));
                return one.is_none() ? nullptr : nb::object(one).release().ptr();
            };
            plain = keep(0), recorded = keep(1), planned = keep(3), direct = keep(4);
            multiplies = nb::cast<bool>(nb::handle(PyTuple_GetItem(found.ptr(), 2)));
        }
        is_known = true;
    }
    if ((!plain && !recorded && !planned) || !is_plain_eager()) return nb::none();
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
    const bool is_recorded = needs_gradient && is_recording();
    PyObject* const function = is_recorded ? recorded : plain;
    if ((!function && (is_recorded || !planned)) || !fits(operands, arguments + count)) return nb::none();
    if (multiplies && operands[0].header.dtype.bits == 32 && !keeps_precision(arguments[0])) return nb::none();
    if (direct && operands[0].leading < 2 && are_defaults(arguments + count, flags)) {
        PyObject* const function_of_torch = PyTuple_GetItem(direct, operands[0].leading);
        // torch has the matrix to add first.
        PyObject* const moved[] = {arguments[count - 1], arguments[0], arguments[1]};
        const nb::object result =
            nb::steal(PyObject_Vectorcall(function_of_torch, count == 3 ? moved : arguments, count, nullptr));
        if (!result.is_valid()) throw nb::python_error();
        return result;
    }
    if (planned && !is_recorded) {
        nb::object result = follow_recipe(arguments, operands, count);
        if (!result.is_none() || !function) return result;
    }
    const nb::object result = nb::steal(PyObject_Vectorcall(function, arguments, count + flags, nullptr));
    if (!result.is_valid()) throw nb::python_error();
    return result;
}

nb::object DeviceShortcut::follow_recipe(PyObject* const* arguments, const DeviceOperand* operands, int count) {
    std::string key;
    key.reserve(256);
    if (!make_key(operands, count, arguments + count, flags, key)) return nb::none();
    const int device = operands[0].header.device_id;
    const bool is_bound = device >= 0 && device < 64 && (bound_devices >> device & 1) != 0;
    const auto known = recipes.find(key);
    if (known == recipes.end() || !is_bound || call_for_integer(settings.get_device) != device) return find_recipe(arguments, operands, count, key);
    const Recipe& recipe = known->second;
    if (!recipe.kernel) return nb::none();
    nb::object result = nb::steal(make_empty(arguments[0], recipe.shape));
    dlpack::Tensor header;
    if (!result.is_valid()) throw nb::python_error();
    if (!read_header(result, header)) return nb::none();
    const nb::object number = nb::steal(PyLong_FromLong(device));
    void* const stream = reinterpret_cast<void*>(call_for_integer(settings.get_stream, number.ptr()));
    long long integers[kMostArguments];
    double reals[kMostArguments];
    void* addresses[kMostArguments];
    for (std::size_t i = 0; i < recipe.arguments.size(); ++i) {
        const LaunchArgument& one = recipe.arguments[i];
        addresses[i] = one.source == LaunchArgument::real ? static_cast<void*>(&reals[i]) : static_cast<void*>(&integers[i]);
        reals[i] = one.number;
        integers[i] = one.whole;
        if (one.source == LaunchArgument::operand) integers[i] += static_cast<long long>(get_start(operands[one.position].header));
        if (one.source == LaunchArgument::result) integers[i] += static_cast<long long>(get_start(header));
    }
    nb::gil_scoped_release unlocked;  // the driver waits when its queue is full
    const int status = device::launch_kernel(recipe.kernel, recipe.grid[0], recipe.grid[1], recipe.grid[2], recipe.threads, 1, 1,
                                             recipe.shared, stream, addresses, nullptr);
    device::check_status(status);
    return result;
}

void DeviceShortcut::forget_recipes() {
    for (const auto& entry : recipes) Py_XDECREF(entry.second.shape);
    recipes.clear();
}

// Lets Python launch, and records the launch.
nb::object DeviceShortcut::find_recipe(PyObject* const* arguments, const DeviceOperand* operands, int count, const std::string& key) {
    PyObject* all[kMostOperands + 8] = {planned};
    for (int i = 0; i < count + flags; ++i) all[1 + i] = arguments[i];
    const nb::object made = nb::steal(PyObject_Vectorcall(settings.run_planned, all, 1 + count + flags, nullptr));
    if (!made.is_valid()) throw nb::python_error();
    const int device = operands[0].header.device_id;
    if (device >= 0 && device < 64 && call_for_integer(settings.get_device) == device) bound_devices |= std::uint64_t(1) << device;
    if (recipes.size() >= kMostRecipes) forget_recipes();
    if (made.is_none()) {
        recipes[key] = Recipe{};
        return nb::none();
    }
    const nb::tuple parts = nb::cast<nb::tuple>(made), given = nb::cast<nb::tuple>(parts[5]), grid = nb::cast<nb::tuple>(parts[2]);
    nb::object result = parts[0];
    dlpack::Tensor header;
    if (given.size() > kMostArguments || grid.size() > 3 || !read_header(result, header) || !header.strides) return result;
    // Not recorded for operands that share memory: one could not tell which of them an address belongs to.
    for (int i = 0; i < count; ++i)
        for (int k = 0; k < i; ++k)
            if (overlap(operands[i].header, operands[k].header)) return result;
    Recipe recipe;
    recipe.kernel = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(parts[1]));
    for (std::size_t i = 0; i < grid.size(); ++i) recipe.grid[i] = nb::cast<unsigned>(grid[i]);
    recipe.threads = nb::cast<unsigned>(parts[3]), recipe.shared = nb::cast<unsigned>(parts[4]);
    for (std::size_t i = 0; i < given.size(); ++i) {
        LaunchArgument one{LaunchArgument::integer, 0, 0, 0.0};
        if (PyFloat_Check(given[i].ptr())) {
            one = {LaunchArgument::real, 0, 0, nb::cast<double>(given[i])};
        } else {
            one.whole = nb::cast<long long>(given[i]);
            const auto place = [&](const dlpack::Tensor& tensor, LaunchArgument::Source source, int position) {
                const std::uintptr_t start = get_start(tensor), address = static_cast<std::uintptr_t>(one.whole);
                if (one.source != LaunchArgument::integer || address < start || address >= start + count_bytes(tensor)) return;
                one = {source, position, static_cast<long long>(address - start), 0.0};
            };
            place(header, LaunchArgument::result, 0);
            for (int k = 0; k < count; ++k) place(operands[k].header, LaunchArgument::operand, k);
        }
        // A launch on a copy of an operand is not recorded: repeating it would not repeat the copy.
        if (one.source == LaunchArgument::integer && one.whole >= kLeastAddress) return result;
        recipe.arguments.push_back(one);
    }
    PyObject* const shape = PyTuple_New(header.ndim);
    if (!shape) throw nb::python_error();
    for (int k = 0; k < header.ndim; ++k) PyTuple_SetItem(shape, k, PyLong_FromLongLong(header.shape[k]));
    recipe.shape = shape;
    recipes[key] = recipe;
    return result;
}

namespace device_shortcuts {
DeviceShortcut gemm{"gemm", "222", 4, is_product_and_sum};
DeviceShortcut gemm2{"gemm2", "22", 3, is_product};
DeviceShortcut gemmt{"gemmt", "22", 4, is_square_product};
DeviceShortcut syrk{"syrk", "2", 1, is_anything};
DeviceShortcut syrk_vjp{"syrk_vjp", "22", 1, is_gradient_of_syrk};
DeviceShortcut trmm{"trmm", "22", 3, is_triangle};
DeviceShortcut trsm{"trsm", "22", 3, is_triangle};
DeviceShortcut trsm_again{"trsm_again", "22", 3, is_triangle};
DeviceShortcut makediag{"makediag", "1", 0, is_anything};
DeviceShortcut extractdiag{"extractdiag", "2", 0, is_square};
DeviceShortcut maketrian{"maketrian", "1", 1, is_anything};
DeviceShortcut extracttrian{"extracttrian", "2", 1, is_square};
DeviceShortcut sumlogdiag{"sumlogdiag", "2", 0, is_square};
DeviceShortcut sumlogdiag_vjp{"sumlogdiag_vjp", "20", 0, is_square};
DeviceShortcut copyltu{"copyltu", "2", 1, is_square};
DeviceShortcut potrf{"potrf", "2", 1, is_square};
DeviceShortcut potrf_ex{"potrf_ex", "2", 1, is_square};
DeviceShortcut potrf_vjp{"potrf_vjp", "22", 2, are_alike};
DeviceShortcut potri{"potri", "2", 1, is_square};
DeviceShortcut potri_vjp{"potri_vjp", "22", 1, are_alike};
DeviceShortcut inverse{"inverse", "2", 0, is_square};
DeviceShortcut inverse_vjp{"inverse_vjp", "22", 0, are_alike};
DeviceShortcut gesv{"gesv", "22", 1, is_system};
}  // namespace device_shortcuts

namespace {

constexpr DeviceShortcut* kAll[] = {&device_shortcuts::gemm,         &device_shortcuts::gemm2,    &device_shortcuts::gemmt,       &device_shortcuts::syrk,       &device_shortcuts::syrk_vjp,   &device_shortcuts::trmm,
                         &device_shortcuts::trsm,         &device_shortcuts::trsm_again, &device_shortcuts::makediag, &device_shortcuts::extractdiag, &device_shortcuts::maketrian,  &device_shortcuts::extracttrian,
                         &device_shortcuts::sumlogdiag,   &device_shortcuts::sumlogdiag_vjp, &device_shortcuts::copyltu, &device_shortcuts::potrf,    &device_shortcuts::potrf_ex,
                         &device_shortcuts::potrf_vjp,    &device_shortcuts::potri,    &device_shortcuts::potri_vjp,   &device_shortcuts::inverse,    &device_shortcuts::inverse_vjp,
                         &device_shortcuts::gesv};

// The CPU's part of an operator that has a shortcut on a device only.
template <class... Handles>
nb::object decline(Handles...) {
    return nb::none();
}

// Sets what shortcuts need, by name: `find_shortcut`, `keeps_precision`, `run_planned`, `get_device` and `get_stream` are functions,
// `device` is DLPack's number of the kind of device, and `is_there` the attribute that is true for tensors on it, or None for no device.
// All shortcuts are looked up again.
void set_device_shortcuts(nb::dict names) {
    const auto get = [&](const char* name) { return nb::object(names[name]).release().ptr(); };
    settings.device_type = nb::cast<int>(names["device"]);
    settings.is_there = nb::object(names["is_there"]).is_none() ? nullptr : get("is_there");
    settings.precision = nb::object(names["precision"]).is_none() ? nullptr : get("precision");
    settings.find_shortcut = get("find_shortcut"), settings.keeps_precision = get("keeps_precision"), settings.run_planned = get("run_planned");
    settings.get_device = get("get_device"), settings.get_stream = get("get_stream");
    for (DeviceShortcut* one : kAll) one->is_known = false, one->plain = one->recorded = one->planned = one->direct = nullptr, one->forget_recipes();
    bound_devices = 0;
}

}  // namespace

void bind_device_shortcuts(nb::module_& m) {
    using H = nb::handle;
    const auto any = nb::arg().none();
    m.def("set_device_shortcuts", &set_device_shortcuts);
    m.def("trsm_again_shortcut", &OnEitherDevice<&decline<H, H, H, H, H>, device_shortcuts::trsm_again>::call, any, any, any, any, any);
}

}  // namespace lapgrad::binding
