#include "base/blas.h"

namespace lapgrad::blas {

set_threads_fn set_threads_local = nullptr;
bool serial_in_parallel_region = false;

template <>
Routines<float>& routines<float>() {
    static Routines<float> bound;
    return bound;
}

template <>
Routines<double>& routines<double>() {
    static Routines<double> bound;
    return bound;
}

}  // namespace lapgrad::blas
