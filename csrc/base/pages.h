// Huge pages for large new blocks of memory.
//
// The kernel maps memory in pages of 4 kB, each when it is first written to: a quarter of a microsecond per kB, four times as long as
// writing. Linux often has huge pages (2 MB) only for programs that ask for them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace lapgrad {

// Smaller blocks are mostly memory that the process has used before. As in lapgrad/_torch/pages.py.
constexpr std::size_t least_advised_bytes = std::size_t(1) << 23;

// Asks the kernel for huge pages in a new block, if it is large.
inline void use_huge_pages(void* block, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
    if (bytes < least_advised_bytes) return;
    const std::uintptr_t page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)), address = reinterpret_cast<std::uintptr_t>(block);
    const std::uintptr_t begin = (address + page - 1) / page * page, end = (address + bytes) / page * page;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // If it fails, pages are small.
#else
    (void)block, (void)bytes;
#endif
}

}  // namespace lapgrad
