// BLAS by function pointer: the library that PyTorch has loaded, or another one. Python binds the pointers at import.
#pragma once

#include <limits>
#include <stdexcept>
#include <string>

#include "base/view.h"

namespace lapgrad::blas {

using blas_int = int;  // LP64, as in every provider that is looked up

template <class T>
using gemm_fn = void (*)(const char* ta, const char* tb, const blas_int* m, const blas_int* n, const blas_int* k,
                         const T* alpha, const T* a, const blas_int* lda, const T* b, const blas_int* ldb,
                         const T* beta, T* c, const blas_int* ldc);
template <class T>
using trsm_fn = void (*)(const char* side, const char* uplo, const char* trans, const char* diag, const blas_int* m,
                         const blas_int* n, const T* alpha, const T* a, const blas_int* lda, T* b,
                         const blas_int* ldb);
template <class T>
struct Routines {
    gemm_fn<T> gemm = nullptr;
    trsm_fn<T> trsm = nullptr;
};

template <class T>
Routines<T>& routines();

// Stores the address of the routine `stem`. Returns false if the core does not use such a routine.
template <class T>
bool bind(const std::string& stem, void* address) {
    if (stem == "gemm") routines<T>().gemm = reinterpret_cast<gemm_fn<T>>(address);
    if (stem == "trsm") routines<T>().trsm = reinterpret_cast<trsm_fn<T>>(address);
    return stem == "gemm" || stem == "trsm";
}

// mkl_set_num_threads_local, or null if the library has none. Returns the previous setting of this thread (0: the global one).
using set_threads_fn = int (*)(int);
extern set_threads_fn set_threads_local;
// Whether the library runs on one thread by itself inside a parallel region of the pool, as MKL on OpenMP does.
extern bool serial_in_parallel_region;

// Converts a size or stride for BLAS; throws std::overflow_error if it does not fit.
inline blas_int narrow(index_t value) {
    if (value > std::numeric_limits<blas_int>::max())
        throw std::overflow_error("lapgrad: a size or stride of " + std::to_string(value) +
                                  " does not fit the 32-bit integers of BLAS");
    return static_cast<blas_int>(value);
}

// While alive, BLAS calls of this thread run on at most `count` threads; 0: on as many as before.
class ThreadLimit {
  public:
    explicit ThreadLimit(int count) : active_(count > 0) {
        if (active_ && set_threads_local) previous_ = set_threads_local(count);
    }
    ~ThreadLimit() {
        if (active_ && set_threads_local) set_threads_local(previous_);
    }
    bool is_active() const { return active_; }
    ThreadLimit(const ThreadLimit&) = delete;
    ThreadLimit& operator=(const ThreadLimit&) = delete;

  private:
    bool active_;
    int previous_ = 0;
};

// While alive and `wanted`, BLAS calls of this thread run on one thread: a fork takes longer than a small product.
class OneThread : public ThreadLimit {
  public:
    explicit OneThread(bool wanted) : ThreadLimit(wanted ? 1 : 0) {}
};

// C := alpha A B + beta C. Row-major C = A B is column-major C' = B' A': operands swap, flags say which stride is 1.
template <class T>
void gemm(T alpha, View<const T> A, View<const T> B, T beta, View<T> C) {
    if (!C.row_major()) return gemm<T>(alpha, B.t(), A.t(), beta, C.t());
    const blas_int m = narrow(C.cols), n = narrow(C.rows), k = narrow(A.cols);
    const bool b_rows = B.row_major(), a_rows = A.row_major();
    const blas_int ldb = narrow(b_rows ? B.row_stride : B.col_stride);
    const blas_int lda = narrow(a_rows ? A.row_stride : A.col_stride);
    const blas_int ldc = narrow(C.row_stride);
    routines<T>().gemm(b_rows ? "N" : "T", a_rows ? "N" : "T", &m, &n, &k, &alpha, B.data, &ldb, A.data, &lda, &beta,
                       C.data, &ldc);
}

// X := L^-1 X with a triangular L. A row-major X is a column-major X': (L^-1 X)' = X' L^-T, a solve from the right.
template <class T>
void trsm(View<const T> L, bool lower, View<T> X, bool unit) {
    const bool x_rows = X.row_major(), l_rows = L.row_major();
    const blas_int m = narrow(x_rows ? X.cols : X.rows), n = narrow(x_rows ? X.rows : X.cols);
    const blas_int ldl = narrow(l_rows ? L.row_stride : L.col_stride);
    const blas_int ldx = narrow(x_rows ? X.row_stride : X.col_stride);
    const T one = 1;
    routines<T>().trsm(x_rows ? "R" : "L", lower != l_rows ? "L" : "U", x_rows == l_rows ? "N" : "T", unit ? "U" : "N", &m,
                       &n, &one, L.data, &ldl, X.data, &ldx);
}

}  // namespace lapgrad::blas
