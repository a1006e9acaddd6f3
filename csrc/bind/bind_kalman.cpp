// Binds the Kalman filter and its adjoint: addresses, strides and sizes in, status out.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "bind/binding.h"
#include "ops/kalman.h"

namespace lapgrad::binding {
namespace {

// Address, stride between series and stride between times of y, A, B, Q, R, m, P, c in this order.
using Addresses = std::vector<std::tuple<std::uintptr_t, index_t, index_t>>;

template <class T>
KalmanOperands<T> make_operands(const Addresses& addresses) {
    const auto at = [&](std::size_t position) {
        const auto [address, series_stride, time_stride] = addresses.at(position);
        return Varying<T>{reinterpret_cast<T*>(address), series_stride, time_stride};
    };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)};
}

// None, or (series, step, code) of the first series that fails: see KalmanStatus.
nb::object find_failure(const std::vector<KalmanStatus>& status) {
    for (std::size_t b = 0; b < status.size(); ++b)
        if (status[b].code) return nb::make_tuple(b, status[b].step, status[b].code);
    return nb::none();
}

// Computes values. Returns the first failure.
nb::object kalman_nll(int item_size, const Addresses& model, std::uintptr_t s, index_t series, index_t times,
                      index_t states, index_t observations, index_t flat) {
    std::vector<KalmanStatus> status(static_cast<std::size_t>(series), KalmanStatus{0, 0});
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        kalman::run_filter<T>({{series, times, states, observations, flat},
                            make_operands<const T>(model),
                            reinterpret_cast<T*>(s),
                            status.data(),
                            false});
    });
    return find_failure(status);
}

// Adds gradients to their targets, and computes values unless the address s is 0. Returns the first failure.
nb::object kalman_nll_vjp(int item_size, const Addresses& model, std::uintptr_t gs, std::uintptr_t s,
                          const Addresses& gradient, index_t series, index_t times, index_t states,
                          index_t observations, index_t flat) {
    std::vector<KalmanStatus> status(s ? static_cast<std::size_t>(series) : 0, KalmanStatus{0, 0});
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        kalman::run_adjoint<T>({{series, times, states, observations, flat},
                            make_operands<const T>(model),
                            reinterpret_cast<const T*>(gs),
                            reinterpret_cast<T*>(s),
                            s ? status.data() : nullptr,
                            0,
                            false},
                           make_operands<T>(gradient));
    });
    return find_failure(status);
}

}  // namespace

void bind_kalman(nb::module_& m) {
    m.def("kalman_nll", &kalman_nll);
    m.def("kalman_nll_vjp", &kalman_nll_vjp);
}

}  // namespace lapgrad::binding
