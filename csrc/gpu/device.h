// Matrices in the memory of a GPU. The core never reads or writes that memory: it calls cuBLAS and launches kernels, by
// function pointers that Python binds (src/lapgrad/_kernels/cuda/runtime/device.py), on a stream that Python passes.
//
// Algorithms that cut a matrix into many blocks are here and not in Python because a launch takes a few microseconds,
// and a Python call between two launches would take as long again.
//
// cuBLAS is column-major: it reads a row-major matrix as the transpose of the same memory, so C = A B becomes
// C' = B' A' with the operands swapped.
#pragma once

#include <climits>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/view.h"

namespace lapgrad::device {

// The functions of cublas_api.h that the core calls, with enumerations as ints. One library serves the process, so they are static.
template <class T>
struct Cublas {
    using gemm_fn = int (*)(void*, int, int, int, int, int, const T*, const T*, int, const T*, int, const T*, T*, int);
    using gemm_batched_fn = int (*)(void*, int, int, int, int, int, const T*, const T*, int, long long, const T*, int,
                                    long long, const T*, T*, int, long long, int);
    using trmm_fn = int (*)(void*, int, int, int, int, int, int, const T*, const T*, int, const T*, int, T*, int);
    using trsm_fn = int (*)(void*, int, int, int, int, int, int, const T*, const T*, int, T*, int);
    using syrk_fn = int (*)(void*, int, int, int, int, const T*, const T*, int, const T*, T*, int);

    inline static gemm_fn gemm = nullptr;
    inline static gemm_batched_fn gemm_batched = nullptr;
    inline static trmm_fn trmm = nullptr;
    inline static trsm_fn trsm = nullptr;
    inline static syrk_fn syrk = nullptr;
};

// The functions of the CUDA driver that the core calls.
using launch_fn = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                          void**);
using fill_fn = int (*)(unsigned long long, unsigned char, std::size_t, void*);
using copy_fn = int (*)(unsigned long long, unsigned long long, std::size_t, void*);
using copy_to_host_fn = int (*)(void*, unsigned long long, std::size_t, void*);
using create_event_fn = int (*)(void**, unsigned);
using record_event_fn = int (*)(void*, void*);
using of_event_fn = int (*)(void*);
inline launch_fn launch_kernel = nullptr;
inline fill_fn fill_bytes = nullptr;
inline copy_fn copy_bytes = nullptr;
inline copy_to_host_fn copy_to_host = nullptr;
inline create_event_fn create_event = nullptr;
inline record_event_fn record_event = nullptr;
inline of_event_fn wait_for_event = nullptr, destroy_event = nullptr;

// Stores the address of a function of cuBLAS or of the driver. Returns the address that was stored before, which may be null;
// nothing if the core does not use the function.
inline std::optional<void*> bind(const std::string& name, void* address) {
    const auto into = [&](auto& place) -> std::optional<void*> {
        using Function = std::decay_t<decltype(place)>;
        return reinterpret_cast<void*>(std::exchange(place, reinterpret_cast<Function>(address)));
    };
    const auto of = [&](auto type, const std::string& stem) -> std::optional<void*> {
        using C = Cublas<decltype(type)>;
        if (stem == "gemm") return into(C::gemm);
        if (stem == "gemmStridedBatched") return into(C::gemm_batched);
        if (stem == "trmm") return into(C::trmm);
        if (stem == "trsm") return into(C::trsm);
        if (stem == "syrk") return into(C::syrk);
        return std::nullopt;
    };
    if (name == "cuLaunchKernel") return into(launch_kernel);
    if (name == "cuMemsetD8Async") return into(fill_bytes);
    if (name == "cuMemcpyDtoDAsync_v2") return into(copy_bytes);
    if (name == "cuMemcpyDtoHAsync_v2") return into(copy_to_host);
    if (name == "cuEventCreate") return into(create_event);
    if (name == "cuEventRecord") return into(record_event);
    if (name == "cuEventSynchronize") return into(wait_for_event);
    if (name == "cuEventDestroy_v2") return into(destroy_event);
    return name[0] == 'D' ? of(double{}, name.substr(1)) : of(float{}, name.substr(1));
}

// The kernels of src/lapgrad/_kernels/cuda/kernels/triangle.cu, which documents them, in the order in which Python passes their
// handles. tests/house/test_constants.py compares the order, and the sizes below, with Python and CUDA.
enum Kernel {
    kMirrorUp, kMirrorDown, kMoveDown, kClearUpper, kClearLower, kCopyRows, kCopyTransposed, kInvertLeaves, kMergeInverses
};

// Order of the blocks that invert_leaves inverts; side of a tile; the largest blocks that merge_inverses takes, its strip of columns
// and the depth of its sums; threads of a block.
constexpr index_t kLeaf = 64, kTile = 32, kLargestMerge = 128, kStrip = 8, kDepth = 16;
constexpr unsigned kThreads = 256;

inline void check_status(int status) {
    if (status != 0) throw std::runtime_error("a CUDA library returned status " + std::to_string(status));
}

inline int narrow(index_t size) {
    if (size < 0 || size > INT_MAX) throw std::length_error("a matrix is too large for cuBLAS");
    return static_cast<int>(size);
}

// Calls cuBLAS and launches kernels for one number type on one stream of one device.
template <class T>
class Queue {
  public:
    Queue(void* handle, void* stream, const std::vector<void*>& kernels)
        : handle_(handle), stream_(stream), kernels_(kernels) {}

    // C := alpha A B + beta C; with beta = 0 the old C is not read. A and B have as many items as C.
    void gemm(const Batch<T>& C, const Batch<T>& A, const Batch<T>& B, T alpha = 1, T beta = 0) const {
        if (C.rows == 0 || C.cols == 0) return;
        if (C.col_stride != 1) return gemm(C.t(), B.t(), A.t(), alpha, beta);
        const Operand a = describe(A), b = describe(B);
        const int m = narrow(C.cols), n = narrow(C.rows), k = narrow(A.cols), ldc = narrow(leading_dimension(C));
        if (C.count == 1)
            return check_status(Cublas<T>::gemm(handle_, b.op, a.op, m, n, k, &alpha, B.data, b.ld, A.data, a.ld, &beta,
                                         C.data, ldc));
        check_status(Cublas<T>::gemm_batched(handle_, b.op, a.op, m, n, k, &alpha, B.data, b.ld, B.batch_stride, A.data, a.ld,
                                      A.batch_stride, &beta, C.data, ldc, C.batch_stride, narrow(C.count)));
    }

    // C := alpha L B, or alpha B L; only the named triangle of L is read. C may be B.
    void trmm(const Batch<T>& C, const Batch<T>& L, const Batch<T>& B, bool lower, bool right, T alpha = 1) const {
        if (C.rows == 0 || C.cols == 0) return;
        const Operand l = describe(L);
        for (index_t i = 0; i < C.count; ++i)
            check_status(Cublas<T>::trmm(handle_, !right, lower != (l.op == 1), l.op, 0, narrow(C.cols), narrow(C.rows),
                                  &alpha, L.item(i).data, l.ld, B.item(i).data, narrow(leading_dimension(B)), C.item(i).data,
                                  narrow(leading_dimension(C))));
    }

    // B := L^-1 B, or B L^-1, by cuBLAS's own substitution.
    void trsm(const Batch<T>& B, const Batch<T>& L, bool lower, bool right) const {
        if (B.rows == 0 || B.cols == 0) return;
        const Operand l = describe(L);
        const T one = 1;
        for (index_t i = 0; i < B.count; ++i)
            check_status(Cublas<T>::trsm(handle_, !right, lower != (l.op == 1), l.op, 0, narrow(B.cols), narrow(B.rows),
                                  &one, L.item(i).data, l.ld, B.item(i).data, narrow(leading_dimension(B))));
    }

    // The named triangle of C := alpha A A' + beta C; the other one is left alone.
    void syrk(const Batch<T>& C, const Batch<T>& A, bool lower, T alpha = 1, T beta = 0) const {
        if (C.rows == 0) return;
        const Operand a = describe(A);
        for (index_t i = 0; i < C.count; ++i)
            check_status(Cublas<T>::syrk(handle_, lower, 1 - a.op, narrow(A.rows), narrow(A.cols), &alpha, A.item(i).data,
                                  a.ld, &beta, C.item(i).data, narrow(leading_dimension(C))));
    }

    // Mirrors, moves or clears a triangle of a row-major A, as `kind` says.
    void reshape(Kernel kind, const Batch<T>& A) const {
        const index_t tiles = (A.rows + kTile - 1) / kTile;
        launch(kind, tiles * (tiles + 1) / 2, A.count, 1, kThreads, 2 * tile_bytes(), A.data, A.batch_stride,
               A.row_stride, A.rows);
    }

    // target := source; both are row-major, or both column-major.
    void copy(const Batch<T>& target, const Batch<T>& source) const {
        if (target.col_stride != 1) return copy(target.t(), source.t());
        if (target.cols == 0) return;
        launch(kCopyRows, target.rows, target.count, 1, kThreads, 0, target.data, target.batch_stride,
               target.row_stride, source.data, source.batch_stride, source.row_stride, target.cols);
    }

    void copy_transposed(const Batch<T>& target, const Batch<T>& source) const {
        launch(kCopyTransposed, (target.rows + kTile - 1) / kTile, (target.cols + kTile - 1) / kTile, target.count,
               kThreads, tile_bytes(), target.data, target.batch_stride, target.row_stride, source.data,
               source.batch_stride, source.row_stride, target.rows, target.cols);
    }

    // The lower triangles of W's diagonal blocks of order kLeaf := the inverses of those of L, whose diagonal is 1 if `unit`.
    void invert_leaves(const Batch<T>& W, const Batch<T>& L, bool unit) const {
        launch(kInvertLeaves, (L.rows + kLeaf - 1) / kLeaf, L.count, 1, kLeaf, kLeaf * (kLeaf + 1) * sizeof(T),
               L.data, L.batch_stride, L.row_stride, L.col_stride, W.data, W.batch_stride, W.row_stride, L.rows,
               static_cast<index_t>(unit));
    }

    // Completes W from the inverses of diagonal blocks of order `half`, at most kLargestMerge, to those of order 2 half.
    void merge_inverses(const Batch<T>& W, const Batch<T>& L, index_t half) const {
        launch(kMergeInverses, half / kStrip, (L.rows + 2 * half - 1) / (2 * half), L.count, static_cast<unsigned>(half),
               half * (kStrip + kDepth + 1) * sizeof(T), L.data, L.batch_stride, L.row_stride, L.col_stride, W.data,
               W.batch_stride, W.row_stride, L.rows, half);
    }

    // Launches a kernel by its handle; its arguments are pointers, index_t and double.
    template <class... Arguments>
    void launch_other(void* kernel, index_t x, index_t y, index_t z, unsigned threads, std::size_t shared,
                      Arguments... arguments) const {
        static_assert(((sizeof(Arguments) == 8) && ...));
        if (x == 0 || y == 0 || z == 0) return;
        void* addresses[] = {&arguments...};
        check_status(launch_kernel(kernel, narrow(x), narrow(y), narrow(z), threads, 1, 1, static_cast<unsigned>(shared),
                                   stream_, addresses, nullptr));
    }

    void clear(T* data, index_t count) const {
        check_status(fill_bytes(reinterpret_cast<unsigned long long>(data), 0, count * sizeof(T), stream_));
    }

    // Launches one of the kernels that the queue was made with, by its number. Arguments are pointers, index_t and double.
    template <class... Arguments>
    void launch(int kernel, index_t x, index_t y, index_t z, unsigned threads, std::size_t shared,
                Arguments... arguments) const {
        launch_other(kernels_[kernel], x, y, z, threads, shared, arguments...);
    }

    // target := source, `count` consecutive numbers.
    void copy_numbers(T* target, const T* source, index_t count) const {
        check_status(copy_bytes(reinterpret_cast<unsigned long long>(target), reinterpret_cast<unsigned long long>(source),
                                count * sizeof(T), stream_));
    }

  private:
    // cuBLAS's flag (0: as stored, 1: transposed) and leading dimension with which it reads A' from A's memory.
    struct Operand {
        int op, ld;
    };

    static Operand describe(const Batch<T>& A) {
        if (A.col_stride == 1 && (A.row_stride >= A.cols || A.rows == 1)) return {0, narrow(leading_dimension(A))};
        if (A.row_stride == 1 && (A.col_stride >= A.rows || A.cols == 1)) return {1, narrow(leading_dimension(A.t()))};
        throw std::invalid_argument("cuBLAS cannot read a matrix with these strides");
    }

    static index_t leading_dimension(const Batch<T>& A) {
        return A.row_stride > A.cols ? A.row_stride : A.cols > 0 ? A.cols : 1;
    }

    static constexpr std::size_t tile_bytes() { return kTile * (kTile + 1) * sizeof(T); }

    void* handle_;
    void* stream_;
    const std::vector<void*>& kernels_;
};

// The workspace of a call, handed out piece by piece. A first run with a null pointer measures how much is needed.
template <class T>
class Arena {
  public:
    explicit Arena(T* start) : start_(start) {}
    T* take(index_t count) {
        T* const piece = start_ + used_;
        used_ += count;
        if (used_ > peak_) peak_ = used_;
        return piece;
    }
    index_t mark() const { return used_; }
    void release(index_t mark) { used_ = mark; }
    index_t peak() const { return peak_; }

  private:
    T* start_;
    index_t used_ = 0, peak_ = 0;
};

}  // namespace lapgrad::device
