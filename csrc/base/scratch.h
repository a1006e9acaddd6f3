// The scratch buffer of a thread for kernels that pack operands. It is allocated at first use and kept, because kernels run for
// microseconds and the pool's threads live as long as the process.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "base/isa.h"

namespace lapgrad {

// Returns the buffer of this thread, aligned to 64 bytes.
inline void* thread_scratch() {
    constexpr std::size_t needed = isa::scratch_elements * sizeof(double);
    constexpr std::size_t lanes = isa::lane_scratch_bytes;
    constexpr std::size_t bytes = ((needed > lanes ? needed : lanes) + 63) / 64 * 64;
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    thread_local std::unique_ptr<void, Free> buffer;
    if (!buffer) {
        buffer.reset(std::aligned_alloc(64, bytes));
        if (!buffer) throw std::bad_alloc();
    }
    return buffer.get();
}

template <class T>
T* scratch() {
    return static_cast<T*>(thread_scratch());
}

}  // namespace lapgrad
