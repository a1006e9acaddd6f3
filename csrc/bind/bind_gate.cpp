// CallGate: the function that lapgrad.accelerate registers in front of an operator of torch.
//
// A call for a small matrix takes torch 2 microseconds, and the decision to leave it to torch takes longer in Python. A gate
// takes that decision here. It reads sizes through the DLPack exchange table of the tensor type (plain C structures, so
// nothing of torch is included), and calls torch's own kernel (torch_calls.h), or a function of lapgrad, with the arguments it was
// given. All other calls go to a Python function.
//
// Only the stable ABI of Python is used: one wheel serves every Python from 3.12 on.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "base/plan.h"
#include "bind/binding.h"
#include "bind/torch_calls.h"

namespace lapgrad::binding {
namespace {

// Parts of dlpack.h, version 1.x, under names of our own.
struct TensorHeader {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t dimensions;
    std::uint8_t type_code, type_bits;
    std::uint16_t type_lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

struct ExchangeTable {
    std::uint32_t major_version, minor_version;
    void* previous;
    void* allocate;
    void* export_managed;
    void* import_managed;
    int (*read_header)(void* tensor, TensorHeader* header);
    void* current_stream;
};

constexpr std::uint32_t kKnownVersion = 1;
constexpr std::uint8_t kFloat = 2;
constexpr int kMostDimensions = 6;
constexpr std::size_t kMostShapes = 1000;
constexpr int kBits = 64;
// Python code takes 5 to 9 microseconds longer than a call by address: factorisations with this many operations, or for a batch of this many
// matrices, gain as much.
constexpr double least_operations_in_python = 200000.0;
constexpr std::int64_t least_items_in_python = 16;

// Item size and shape of a matrix: what calls are counted by. Unused entries are zero.
using CountedShape = std::array<std::int64_t, kMostDimensions + 2>;

struct ShapeHash {
    std::size_t operator()(const CountedShape& shape) const {
        std::uint64_t hash = 0xcbf29ce484222325u;
        for (const std::int64_t size : shape) hash = (hash ^ static_cast<std::uint64_t>(size)) * 0x100000001b3u;
        return static_cast<std::size_t>(hash);
    }
};

int bit_length(std::int64_t number) {
    return number <= 0 ? 0 : kBits - __builtin_clzll(static_cast<unsigned long long>(number));
}

using Counts = std::unordered_map<CountedShape, std::int64_t, ShapeHash>;

// A Python function; a method is split into its function and object, because calling the method would unpack the tuple and the dictionary
// of arguments and pack them again.
struct Function {
    nb::object function;
    nb::object self;  // invalid without one

    Function() = default;
    explicit Function(nb::object callable) : function(std::move(callable)) {
        if (!nb::hasattr(function, "__func__")) return;
        self = nb::object(function.attr("__self__"));
        function = nb::object(function.attr("__func__"));
    }

    bool is_none() const { return function.is_none(); }

    // function(keys, *arguments, **options) without the first `skipped` arguments; without keys if they are None.
    PyObject* call(const nb::object& keys, PyObject* arguments, Py_ssize_t skipped, PyObject* options) const {
        const Py_ssize_t given = PyTuple_Size(arguments) - skipped;
        const Py_ssize_t first = self.is_valid() + !keys.is_none();
        const nb::object all = nb::steal(PyTuple_New(first + given));
        if (!all.is_valid()) return nullptr;
        const auto put = [&](Py_ssize_t position, PyObject* value) {
            Py_INCREF(value);
            PyTuple_SetItem(all.ptr(), position, value);
        };
        if (self.is_valid()) put(0, self.ptr());
        if (!keys.is_none()) put(first - 1, keys.ptr());
        for (Py_ssize_t i = 0; i < given; ++i) put(first + i, PyTuple_GetItem(arguments, skipped + i));
        return PyObject_Call(function.ptr(), all.ptr(), options);
    }
};

// What a gate needs to know: set once by Python, see lapgrad.accelerate.gates.
struct Settings {
    nb::object read_scope;      // function: the choice of the innermost scope, or None
    nb::object process;         // its attribute `current` is the choice outside of scopes
    nb::object name;            // the operator in `choice.names`
    nb::tuple tensor_types;     // types without behaviour of their own
    nb::object exchange;        // capsule of the DLPack exchange table of these types
    nb::object decide;          // Python function for calls that are not decided here
    Function take;              // computes what is faster in lapgrad; None: left to `decide`
    Function take_recorded;     // the same with a gradient
    Function take_directly;     // the same two for calls of `shape`; None: `take` has them, too
    Function record_directly;
    int shape;                  // what is checked here before the last two: see Shape
    Function compute;           // torch's kernel for values, and the keys that it is called with
    nb::object compute_keys;
    Function record;            // torch's kernel that records gradients; None: gradients are recorded elsewhere
    nb::object record_keys;     // None: the keys of the call
    TorchCall direct_compute;   // the same two by address, where they are known; tried first
    TorchCall direct_record;
    std::uint64_t direct_keys;  // of `direct_record`
    nb::object is_grad_enabled;
    nb::object forward_level;   // dictionary with the level of forward mode at "_current_level", negative outside
    std::uint64_t plain_keys;
    bool has_keys;              // the first argument is the set of keys of the call
    bool counts_recorded;       // no other gate counts the calls that are recorded by torch
    int matrix, right_side;     // positions; right_side is -1 without one
    int tensors;
    std::int64_t narrow;
    std::int64_t safe_order;    // batches of larger orders are always decided in Python
    // Least number of matrices from which lapgrad is faster: per item size (4, 8), narrow, gradient, bits of the order.
    std::array<std::int64_t, 8 * kBits> thresholds;
};

class CallGate {
public:
    explicit CallGate(nb::dict options) {
        const auto get = [&](const char* key) { return nb::borrow(options[key]); };
        set_.read_scope = get("read_scope");
        set_.process = get("process");
        set_.name = get("name");
        set_.tensor_types = nb::cast<nb::tuple>(get("tensor_types"));
        set_.exchange = get("exchange");
        set_.decide = get("decide");
        set_.take = Function(get("take"));
        set_.take_recorded = Function(get("take_recorded"));
        set_.take_directly = Function(get("take_directly"));
        set_.record_directly = Function(get("record_directly"));
        set_.shape = nb::cast<int>(get("shape"));
        set_.compute = Function(get("compute"));
        set_.compute_keys = get("compute_keys");
        set_.record = Function(get("record"));
        set_.record_keys = get("record_keys");
        set_.direct_compute = TorchCall(get("direct_compute"));
        set_.direct_record = TorchCall(get("direct_record"));
        set_.direct_keys = nb::cast<std::uint64_t>(get("direct_keys"));
        set_.is_grad_enabled = get("is_grad_enabled");
        set_.forward_level = get("forward_level");
        set_.plain_keys = nb::cast<std::uint64_t>(get("plain_keys"));
        set_.has_keys = nb::cast<bool>(get("has_keys"));
        set_.counts_recorded = nb::cast<bool>(get("counts_recorded"));
        set_.matrix = nb::cast<int>(get("matrix"));
        set_.right_side = nb::cast<int>(get("right_side"));
        set_.tensors = nb::cast<int>(get("tensors"));
        set_.narrow = nb::cast<std::int64_t>(get("narrow"));
        set_.safe_order = nb::cast<std::int64_t>(get("safe_order"));
        const nb::sequence rows = nb::cast<nb::sequence>(get("thresholds"));
        if (nb::len(rows) != set_.thresholds.size()) throw nb::value_error("thresholds");
        for (std::size_t i = 0; i < set_.thresholds.size(); ++i) set_.thresholds[i] = nb::cast<std::int64_t>(rows[i]);
        auto* table = static_cast<ExchangeTable*>(PyCapsule_GetPointer(set_.exchange.ptr(), "dlpack_exchange_api"));
        if (table == nullptr) throw nb::python_error();
        if (table->major_version != kKnownVersion || table->read_header == nullptr)
            throw nb::value_error("unknown version of DLPack");
        read_header_ = table->read_header;
        requires_grad_ = nb::steal(PyUnicode_InternFromString("requires_grad"));
        raw_repr_ = nb::steal(PyUnicode_InternFromString("raw_repr"));
        current_ = nb::steal(PyUnicode_InternFromString("current"));
        level_ = nb::steal(PyUnicode_InternFromString("_current_level"));
        left_ = nb::steal(PyUnicode_InternFromString("left"));
        unitriangular_ = nb::steal(PyUnicode_InternFromString("unitriangular"));
    }

    // The call of an operator: arguments as the dispatcher passes them.
    PyObject* call(PyObject* arguments, PyObject* options) {
        const Py_ssize_t keys = set_.has_keys ? 1 : 0;
        bool is_long = false, is_direct = false;
        switch (judge(arguments, options, is_long, is_direct)) {
            case Verdict::compute:
                if (set_.direct_compute.is_bound()) {
                    PyObject* const result = set_.direct_compute.call(nullptr, arguments, keys, options, is_long);
                    if (result || PyErr_Occurred()) return result;
                }
                return pass_on(set_.compute, set_.compute_keys, arguments, options);
            case Verdict::record:
                if (set_.direct_record.is_bound()) {
                    PyObject* const result = set_.direct_record.call(&set_.direct_keys, arguments, keys, options, is_long);
                    if (result || PyErr_Occurred()) return result;
                }
                return pass_on(set_.record, set_.record_keys, arguments, options);
            case Verdict::refuse:
                return set_.record.is_none() ? pass_on(set_.compute, set_.compute_keys, arguments, options)
                                             : pass_on(set_.record, nb::none(), arguments, options);
            case Verdict::take:
                return (is_direct ? set_.take_directly : set_.take).call(nb::none(), arguments, keys, options);
            case Verdict::take_recorded:
                return (is_direct ? set_.record_directly : set_.take_recorded).call(nb::none(), arguments, keys, options);
            case Verdict::decide: break;
            case Verdict::error: return nullptr;
        }
        return PyObject_Call(set_.decide.ptr(), arguments, options);
    }

    // [item size, shape, count] of the calls that were passed on here, or taken without another count.
    nb::list counts(bool taken) const {
        nb::list found;
        // A copy: what is made below may start Python's garbage collection, which may call this gate.
        const Counts counted = taken ? taken_ : passed_on_;
        for (const auto& [shape, count] : counted) {
            if (count == 0) continue;
            nb::list sizes;
            for (std::int64_t i = 0; i < shape[1]; ++i) sizes.append(shape[2 + i]);
            found.append(nb::make_tuple(shape[0], nb::tuple(sizes), count));
        }
        return found;
    }

    void clear_counts() {
        for (auto& entry : passed_on_) entry.second = 0;
        for (auto& entry : taken_) entry.second = 0;
    }

    int traverse(visitproc visit, void* arg) const {
        for (const nb::object* held : {&set_.read_scope, &set_.process, &set_.name, &set_.exchange, &set_.decide,
                                       &set_.take.function, &set_.take_recorded.function, &set_.take_directly.function,
                                       &set_.record_directly.function, &set_.compute.function, &set_.compute.self, &set_.compute_keys,
                                       &set_.record.function, &set_.record.self, &set_.record_keys, &set_.is_grad_enabled,
                                       &set_.forward_level, &choice_})
            Py_VISIT(held->ptr());
        Py_VISIT(set_.tensor_types.ptr());
        return 0;
    }

    void clear() {
        set_.decide.reset();
        set_.take.function.reset();
        set_.take_recorded.function.reset();
        set_.take_directly.function.reset();
        set_.record_directly.function.reset();
        choice_.reset();
    }

private:
    enum class Verdict { compute, record, refuse, take, take_recorded, decide, error };
    enum class Size { small, large, unknown };
    enum Shape { any_shape, square, triangle, bare, bare_square };  // the numbers are those of lapgrad.accelerate.routes

    // Calls a kernel of torch with `keys`, or with those of the call if `keys` is None.
    PyObject* pass_on(const Function& kernel, const nb::object& keys, PyObject* arguments, PyObject* options) const {
        return kernel.call(keys, arguments, set_.has_keys && !keys.is_none() ? 1 : 0, options);
    }

    // `is_long`: the call takes so long that other threads of Python should run. `is_direct`: nothing has to be checked or counted any
    // more.
    Verdict judge(PyObject* arguments, PyObject* options, bool& is_long, bool& is_direct) {
        if (!read_choice()) return Verdict::error;
        const bool chosen = is_chosen_, always = takes_always_;  // another thread may change them as soon as Python code has run
        const Verdict otherwise = chosen ? Verdict::decide : Verdict::refuse;
        const Py_ssize_t first = set_.has_keys ? 1 : 0;
        if (PyTuple_Size(arguments) < first + set_.tensors) return otherwise;
        if (set_.has_keys) {
            const int plain = is_plain(PyTuple_GetItem(arguments, 0));
            if (plain <= 0) return plain < 0 ? Verdict::error : otherwise;
        }
        std::array<TensorHeader, 2> headers;
        for (int i = 0; i < set_.tensors; ++i)
            if (!read(PyTuple_GetItem(arguments, first + i), headers[i])) return otherwise;
        int has_gradient = 0;
        if (!set_.record.is_none()) {
            for (int i = 0; i < set_.tensors && has_gradient == 0; ++i)
                has_gradient = is_true(PyObject_GetAttr(PyTuple_GetItem(arguments, first + i), requires_grad_.ptr()));
            if (has_gradient > 0) has_gradient = is_true(PyObject_CallNoArgs(set_.is_grad_enabled.ptr()));
            if (has_gradient < 0) return Verdict::error;
        }
        const TensorHeader& matrix = headers[set_.matrix];
        is_long = matrix.dimensions < 2 || estimate_operations(matrix) > double(plan::locked_operations);
        if (!chosen) return has_gradient != 0 ? Verdict::record : Verdict::compute;
        const TensorHeader* side = set_.right_side < 0 ? nullptr : &headers[set_.right_side];
        Size size = find_size(matrix, side, has_gradient != 0, always);
        // lapgrad has no kernel for triangles with ones on the diagonal: gradients of LU factors ask for them.
        if (size == Size::large && !always && set_.shape == triangle && has_option(options, unitriangular_)) size = Size::small;
        // Another mode of qr than the usual one is computed by Python code.
        if (size == Size::large && !always && set_.shape == bare && !is_bare(arguments, options) &&
            estimate_operations(matrix) < least_operations_in_python && count_items(matrix) < least_items_in_python)
            size = Size::small;
        if (size == Size::unknown) return Verdict::decide;
        if (size == Size::large) {
            if ((has_gradient != 0 ? set_.take_recorded : set_.take).is_none()) return Verdict::decide;
            is_direct = !(has_gradient != 0 ? set_.record_directly : set_.take_directly).is_none() && fits(headers, arguments, options);
            if (is_direct) count(matrix, taken_);
            return has_gradient != 0 ? Verdict::take_recorded : Verdict::take;
        }
        if (has_gradient == 0 || set_.counts_recorded) count(matrix, passed_on_);
        return has_gradient != 0 ? Verdict::record : Verdict::compute;
    }

    // Whether the choice that holds for the caller has this operator. Returns false for a Python error.
    bool read_choice() {
        PyObject* found = PyObject_CallNoArgs(set_.read_scope.ptr());
        if (found == nullptr) return false;
        if (found == Py_None) {
            Py_DECREF(found);
            found = PyObject_GetAttr(set_.process.ptr(), current_.ptr());
            if (found == nullptr) return false;
        }
        nb::object choice = nb::steal(found);
        if (choice.is(choice_)) return true;
        const nb::object names = nb::steal(PyObject_GetAttrString(found, "names"));
        if (!names.is_valid()) return false;
        const int chosen = PySequence_Contains(names.ptr(), set_.name.ptr());
        const int always = is_true(PyObject_GetAttrString(found, "always"));
        if (chosen < 0 || always < 0) return false;
        is_chosen_ = chosen != 0;
        takes_always_ = always != 0;
        choice_ = std::move(choice);
        return true;
    }

    // 1 for ordinary tensors outside of transforms, modes and forward mode, 0 otherwise, -1 for a Python error.
    int is_plain(PyObject* keys) const {
        const nb::object bits = nb::steal(PyObject_CallMethodObjArgs(keys, raw_repr_.ptr(), nullptr));
        if (!bits.is_valid()) return -1;
        if (PyLong_AsUnsignedLongLongMask(bits.ptr()) != set_.plain_keys) return 0;
        PyObject* const level = PyDict_GetItemWithError(set_.forward_level.ptr(), level_.ptr());
        if (level == nullptr) return PyErr_Occurred() ? -1 : 0;
        const long value = PyLong_AsLong(level);
        if (value == -1 && PyErr_Occurred()) return -1;
        return value < 0;
    }

    bool read(PyObject* tensor, TensorHeader& header) const {
        bool known = false;
        for (Py_ssize_t i = 0; i < PyTuple_Size(set_.tensor_types.ptr()); ++i)
            known |= reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == PyTuple_GetItem(set_.tensor_types.ptr(), i);
        if (!known) return false;
        if (read_header_(tensor, &header) == 0) return true;
        PyErr_Clear();
        return false;
    }

    // Whether torch is faster (small) or lapgrad (large), from sizes and dtype alone.
    Size find_size(const TensorHeader& A, const TensorHeader* side, bool has_gradient, bool always) const {
        if (A.type_code != kFloat || A.type_lanes != 1 || (A.type_bits != 64 && A.type_bits != 32)) return Size::unknown;
        if (A.dimensions < 2 || A.dimensions > kMostDimensions) return Size::unknown;
        const std::int64_t rows = A.shape[A.dimensions - 2], columns = A.shape[A.dimensions - 1];
        const std::int64_t order = rows > columns ? rows : columns;
        const std::int64_t items = count_items(A);
        if (rows == 0 || columns == 0 || items == 0) return Size::unknown;
        if (always) return Size::large;
        if (A.dimensions > 2 && (rows < columns ? rows : columns) > set_.safe_order) return Size::unknown;
        const bool is_narrow = side != nullptr && side->dimensions >= 2 &&
                               (side->shape[side->dimensions - 1] <= set_.narrow ||
                                side->shape[side->dimensions - 2] <= set_.narrow);
        const int row = 4 * (A.type_bits == 64) + 2 * is_narrow + has_gradient;
        const std::int64_t least = set_.thresholds[row * kBits + bit_length(order - 1)];
        // The least number is never applied to a single matrix without leading dimensions, unless it is 1.
        const bool is_small = least != 1 && (A.dimensions == 2 || least == 0 || items < least);
        return is_small ? Size::small : Size::large;
    }

    static std::int64_t count_items(const TensorHeader& A) {
        std::int64_t items = 1;
        for (int i = 0; i < A.dimensions - 2; ++i) items *= A.shape[i];
        return items;
    }

    static double estimate_operations(const TensorHeader& A) {
        double operations = double(std::max(A.shape[A.dimensions - 1], A.shape[A.dimensions - 2]));
        for (int i = 0; i < A.dimensions; ++i) operations *= double(A.shape[i]);
        return operations;
    }

    // Whether there are no arguments after the tensors.
    bool is_bare(PyObject* arguments, PyObject* options) const {
        return PyTuple_Size(arguments) == set_.has_keys + set_.tensors && (!options || PyDict_Size(options) == 0);
    }

    // Whether the operands have the shapes that lapgrad serves.
    bool fits(const std::array<TensorHeader, 2>& headers, PyObject* arguments, PyObject* options) const {
        const TensorHeader &A = headers[0], &B = headers[1];
        if (set_.shape == bare) return is_bare(arguments, options);
        if (A.shape[A.dimensions - 1] != A.shape[A.dimensions - 2]) return false;
        if (set_.shape != triangle) return set_.shape == square || (set_.shape == bare_square && is_bare(arguments, options));
        if (B.dimensions != A.dimensions || B.type_code != A.type_code || B.type_bits != A.type_bits) return false;
        if (B.device_type != A.device_type || B.device_id != A.device_id) return false;
        for (int i = 0; i < A.dimensions - 2; ++i)
            if (A.shape[i] != B.shape[i]) return false;
        if (has_option(options, unitriangular_)) return false;
        return A.shape[A.dimensions - 1] == B.shape[B.dimensions - (has_option(options, left_, true) ? 2 : 1)];
    }

    static bool has_option(PyObject* options, const nb::object& name, bool otherwise = false) {
        PyObject* const value = options ? PyDict_GetItemWithError(options, name.ptr()) : nullptr;
        return value ? value == Py_True : otherwise;
    }

    static void count(const TensorHeader& A, Counts& counts) {
        CountedShape shape{};
        shape[0] = A.type_bits / 8;
        if (counts.size() < kMostShapes) {
            shape[1] = A.dimensions;
            std::memcpy(&shape[2], A.shape, sizeof(std::int64_t) * A.dimensions);
        }
        ++counts[shape];
    }

    // Truth of a new reference, which is released; -1 for a Python error.
    static int is_true(PyObject* value) {
        if (value == nullptr) return -1;
        const int truth = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
        Py_DECREF(value);
        return truth;
    }

    Settings set_;
    int (*read_header_)(void*, TensorHeader*);
    nb::object requires_grad_, raw_repr_, current_, level_, left_, unitriangular_;
    nb::object choice_;
    bool is_chosen_ = false, takes_always_ = false;
    Counts passed_on_, taken_;
};

PyObject* call_gate(PyObject* self, PyObject* arguments, PyObject* options) {
    return nb::inst_ptr<CallGate>(self)->call(arguments, options);
}

int traverse_gate(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<CallGate>(self)->traverse(visit, arg) : 0;
}

int clear_gate(PyObject* self) {
    nb::inst_ptr<CallGate>(self)->clear();
    return 0;
}

PyType_Slot gate_slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_gate)},
                            {Py_tp_traverse, reinterpret_cast<void*>(traverse_gate)},
                            {Py_tp_clear, reinterpret_cast<void*>(clear_gate)},
                            {0, nullptr}};

}  // namespace

void bind_gate(nb::module_& m) {
    // torch's dispatcher holds the gates that are installed until the process ends.
    nb::set_leak_warnings(false);
    m.def("bind_torch_calls", &bind_torch_calls);
    m.def("register_solve_triangular", &register_solve_triangular);
    nb::class_<TorchCall>(m, "TorchCall")
        .def(nb::init<nb::handle>())
        .def("__call__", [](const TorchCall& self, bool is_long, nb::args arguments, nb::kwargs options) {
            PyObject* const result = self.call(nullptr, arguments.ptr(), 0, options.ptr(), is_long);
            if (!result && PyErr_Occurred()) throw nb::python_error();
            return result ? nb::steal(result) : nb::none();
        });
    nb::class_<CallGate>(m, "CallGate", nb::type_slots(gate_slots))
        .def(nb::init<nb::dict>())
        .def("counts", &CallGate::counts, nb::arg("taken"))
        .def("clear_counts", &CallGate::clear_counts);
}

}  // namespace lapgrad::binding
