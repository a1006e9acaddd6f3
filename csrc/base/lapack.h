// LAPACK by function pointer, from the library that provides BLAS. Matrices are column-major.
#pragma once

#include <string>
#include <type_traits>

#include "base/blas.h"

namespace lapgrad::lapack {

using blas::blas_int;

// Cholesky factor of the triangle `uplo`.
template <class T>
using potrf_fn = void (*)(const char* uplo, const blas_int* n, T* a, const blas_int* lda, blas_int* info);
// A = Q R: reflectors below the diagonal of A, R on and above it.
template <class T>
using geqrf_fn = void (*)(const blas_int* m, const blas_int* n, T* a, const blas_int* lda, T* tau, T* work,
                          const blas_int* lwork, blas_int* info);
// Q from its reflectors.
template <class T>
using orgqr_fn = void (*)(const blas_int* m, const blas_int* n, const blas_int* k, T* a, const blas_int* lda,
                          const T* tau, T* work, const blas_int* lwork, blas_int* info);
// C := op(Q) C or C op(Q).
template <class T>
using ormqr_fn = void (*)(const char* side, const char* trans, const blas_int* m, const blas_int* n, const blas_int* k,
                          const T* a, const blas_int* lda, const T* tau, T* c, const blas_int* ldc, T* work,
                          const blas_int* lwork, blas_int* info);
// Eigenvalues (jobz N) and eigenvectors (V) of a symmetric matrix.
template <class T>
using syevd_fn = void (*)(const char* jobz, const char* uplo, const blas_int* n, T* a, const blas_int* lda, T* w,
                          T* work, const blas_int* lwork, blas_int* iwork, const blas_int* liwork, blas_int* info);
// Singular value decomposition by divide and conquer.
template <class T>
using gesdd_fn = void (*)(const char* jobz, const blas_int* m, const blas_int* n, T* a, const blas_int* lda, T* s,
                          T* u, const blas_int* ldu, T* vt, const blas_int* ldvt, T* work, const blas_int* lwork,
                          blas_int* iwork, blas_int* info);
// A = P L U.
template <class T>
using getrf_fn = void (*)(const blas_int* m, const blas_int* n, T* a, const blas_int* lda, blas_int* ipiv,
                          blas_int* info);
// Solves with the factors of getrf.
template <class T>
using getrs_fn = void (*)(const char* trans, const blas_int* n, const blas_int* nrhs, const T* a, const blas_int* lda,
                          const blas_int* ipiv, T* b, const blas_int* ldb, blas_int* info);

template <class T>
struct Routines {
    potrf_fn<T> potrf = nullptr;
    geqrf_fn<T> geqrf = nullptr;
    orgqr_fn<T> orgqr = nullptr;
    ormqr_fn<T> ormqr = nullptr;
    syevd_fn<T> syevd = nullptr;
    gesdd_fn<T> gesdd = nullptr;
    getrf_fn<T> getrf = nullptr;
    getrs_fn<T> getrs = nullptr;
};

template <class T>
Routines<T>& routines() {
    static Routines<T> bound;
    return bound;
}

// Stores the address of the routine `stem`. Returns false if the core does not use such a routine.
template <class T>
bool bind(const std::string& stem, void* address) {
    bool known = false;
    const auto keep = [&](const char* name, auto& routine) {
        if (stem != name) return;
        routine = reinterpret_cast<std::remove_reference_t<decltype(routine)>>(address);
        known = true;
    };
    Routines<T>& all = routines<T>();
    keep("potrf", all.potrf);
    keep("geqrf", all.geqrf);
    keep("orgqr", all.orgqr);
    keep("ormqr", all.ormqr);
    keep("syevd", all.syevd);
    keep("gesdd", all.gesdd);
    keep("getrf", all.getrf);
    keep("getrs", all.getrs);
    return known;
}

}  // namespace lapgrad::lapack
