// Uninitialised memory that lives as long as one call.
#pragma once

#include <cstddef>
#include <memory>

#include "base/pages.h"
#include "base/view.h"

namespace lapgrad {

template <class T>
using Buffer = std::unique_ptr<T[]>;

// Returns memory for `count` numbers, without writing to it: pages that are never used are never mapped.
template <class T>
Buffer<T> allocate(index_t count) {
    Buffer<T> buffer(new T[static_cast<std::size_t>(count)]);
    use_huge_pages(buffer.get(), static_cast<std::size_t>(count) * sizeof(T));
    return buffer;
}

// Uninitialised memory for `count` numbers, on the stack if they are few: an allocation takes longer than small matrices.
template <class T>
class ShortBuffer {
  public:
    explicit ShortBuffer(index_t count) : many_(count > few ? allocate<T>(count) : nullptr) {}
    T* get() { return many_ ? many_.get() : few_; }

  private:
    static constexpr index_t few = 256;
    T few_[few];
    Buffer<T> many_;
};

// A contiguous batch of matrices that lives as long as one call.
template <class T>
class BatchBuffer {
  public:
    BatchBuffer(index_t count, index_t rows, index_t cols)
        : memory_(allocate<T>(count * rows * cols)), batch_{memory_.get(), count, rows * cols, rows, cols, cols, 1} {}
    Batch<T> all() const { return batch_; }
    Batch<const T> readonly() const { return batch_.readonly(); }

  private:
    Buffer<T> memory_;
    Batch<T> batch_;
};

}  // namespace lapgrad
