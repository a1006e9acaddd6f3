#include "base/isa.h"

#include <cstring>

namespace lapgrad::isa {

namespace baseline {
extern const Kernels<float> kernels_f32;
extern const Kernels<double> kernels_f64;
}  // namespace baseline

// The build defines LAPGRAD_HAVE_<ISA> for every variant in this binary.
#if defined(LAPGRAD_HAVE_AVX2)
namespace avx2 {
extern const Kernels<float> kernels_f32;
extern const Kernels<double> kernels_f64;
}  // namespace avx2
#endif
#if defined(LAPGRAD_HAVE_AVX512)
namespace avx512 {
extern const Kernels<float> kernels_f32;
extern const Kernels<double> kernels_f64;
}  // namespace avx512
#endif

template <>
const Kernels<float>* Choice<float>::current = &baseline::kernels_f32;
template <>
const Kernels<double>* Choice<double>::current = &baseline::kernels_f64;

namespace {

const char* current_name = "baseline";

struct Variant {
    const char* name;
    const Kernels<float>* f32;
    const Kernels<double>* f64;
};

// Best first. is_supported tests for the x86-64-v4 and -v3 levels that the variants are compiled for.
const Variant variants[] = {
#if defined(LAPGRAD_HAVE_AVX512)
    {"avx512", &avx512::kernels_f32, &avx512::kernels_f64},
#endif
#if defined(LAPGRAD_HAVE_AVX2)
    {"avx2", &avx2::kernels_f32, &avx2::kernels_f64},
#endif
    {"baseline", &baseline::kernels_f32, &baseline::kernels_f64},
};

}  // namespace

bool is_supported(const char* name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!std::strcmp(name, "avx512"))
        return is_supported("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512cd");
    if (!std::strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
               __builtin_cpu_supports("bmi2");
#endif
    return !std::strcmp(name, "baseline");
}

bool is_intel_cpu() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

const char* selected_name() { return current_name; }

bool select(const char* name) {
    for (const Variant& variant : variants) {
        const bool wanted = !name[0] || !std::strcmp(name, variant.name);
        if (!wanted || !is_supported(variant.name)) continue;
        Choice<float>::current = variant.f32;
        Choice<double>::current = variant.f64;
        current_name = variant.name;
        return true;
    }
    return false;
}

}  // namespace lapgrad::isa
