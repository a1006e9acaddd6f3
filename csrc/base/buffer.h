// Uninitialised memory that lives as long as one call.
#pragma once

#include <cstddef>
#include <memory>

#include "base/view.h"

namespace lapgrad {

template <class T>
using Buffer = std::unique_ptr<T[]>;

// Returns memory for `count` numbers, without writing to it: pages that are never used are never mapped.
template <class T>
Buffer<T> allocate(index_t count) {
    return Buffer<T>(new T[static_cast<std::size_t>(count)]);
}

}  // namespace lapgrad
