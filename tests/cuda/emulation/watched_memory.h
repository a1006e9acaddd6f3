// Checks the memory accesses of an emulated kernel for faults that a GPU mostly hides.
//
// The compiler calls the functions at the end of this file before each access, as if for its own thread sanitizer
// (-fsanitize=thread), whose library is not linked. Found are, in shared memory,
//     an access of two threads to one place, one of them a write, with no barrier between them that both came to;
//     a read of what no thread of the block has written;
//     an access past the end of what the block asked for;
// and, in one array of the device's memory that the test names, a read of what nobody has written.
//
// Barriers are __syncthreads and, between lanes of a warp, __syncwarp. Shuffles and votes order no accesses to memory.
#pragma once

#define UNWATCHED __attribute__((no_sanitize("thread")))

constexpr int kEmulatedSharedBytes = 227 * 1024;  // what a block may have on sm_90
alignas(16) unsigned char lapgrad_shared_bytes[kEmulatedSharedBytes];

namespace emulation {

constexpr std::size_t kSharedBytes = kEmulatedSharedBytes;
constexpr std::size_t kPlace = 4;  // bytes: no kernel has smaller numbers

// An array with a mark on each element that has not been written yet. A write removes the mark.
struct Unwritten {
  std::uintptr_t first;
  std::size_t count, element;
  unsigned char* marks;
};

// Who used a place of shared memory last. Readers since the last barrier of the block are lanes of one warp, with the
// number of its fences, or of several.
struct Place {
  unsigned write_epoch = 0, write_fences = 0, writer = 0;
  unsigned read_epoch = 0, read_fences = 0, readers = 0, warp = 0;
};

constexpr unsigned kSeveral = ~0u;

struct Watch {
  unsigned epoch = 0;  // barriers of the block so far, over all blocks
  unsigned start = 0;  // its value when this block began
  unsigned thread = 0;
  const unsigned* fences = nullptr;  // of the warp of the thread that runs; null when none does
  std::size_t bytes = 0;
  const Unwritten* unwritten = nullptr;
  const char* complaint = nullptr;
  char text[200];
  Place places[kSharedBytes / kPlace];

  void begin_launch(const Unwritten* given) {
    unwritten = given;
    complaint = nullptr;
  }
  void begin_block(std::size_t size) {
    start = ++epoch;
    bytes = size;
  }

  UNWATCHED void complain(const char* what, std::size_t number) {
    if (complaint) return;
    std::snprintf(text, sizeof text, "%s %zu by thread %u", what, number, thread);
    complaint = text;
  }

  // Whether there was a barrier since an access of thread `other`, made when its warp had passed `their_fences` barriers.
  UNWATCHED bool is_ordered(unsigned their_epoch, unsigned other, unsigned their_fences) const {
    return their_epoch != epoch || other == thread || (other / 32 == thread / 32 && their_fences != *fences);
  }

  UNWATCHED void use_shared(std::size_t offset, std::size_t size, bool writes) {
    if (offset + size > bytes) return complain("access past the end of shared memory, byte", offset);
    for (std::size_t number = offset / kPlace; number * kPlace < offset + size; ++number) {
      Place& place = places[number];
      const unsigned warp = thread / 32, lane = 1u << thread % 32;
      if (place.write_epoch < start) {
        if (!writes) complain("read of shared memory that nobody has written, byte", number * kPlace);
      } else if (!is_ordered(place.write_epoch, place.writer, place.write_fences)) {
        complain(writes ? "two writes without a barrier, byte" : "read after a write without a barrier, byte",
                 number * kPlace);
      }
      if (!writes) {
        const bool first = place.read_epoch != epoch;
        if (!first && place.warp != warp) {
          place.warp = kSeveral;
        } else if (first || place.read_fences != *fences) {
          place.read_epoch = epoch, place.read_fences = *fences, place.readers = lane, place.warp = warp;
        } else {
          place.readers |= lane;
        }
        continue;
      }
      if (place.read_epoch == epoch) {
        const bool around = place.warp == warp && (place.read_fences != *fences || !(place.readers & ~lane));
        if (!around) complain("write after a read without a barrier, byte", number * kPlace);
      }
      place.write_epoch = epoch, place.write_fences = *fences, place.writer = thread;
      place.read_epoch = 0;
    }
  }

  UNWATCHED void use_unwritten(std::uintptr_t address, std::size_t size, bool writes) {
    const std::size_t offset = address - unwritten->first, last = (offset + size - 1) / unwritten->element;
    for (std::size_t i = offset / unwritten->element; i <= last && i < unwritten->count; ++i) {
      if (unwritten->marks[i] && !writes) complain("read of what nobody has written, element", i);
      if (writes) unwritten->marks[i] = 0;
    }
  }

  UNWATCHED void use(const void* where, std::size_t size, bool writes) {
    if (!fences) return;
    const auto address = reinterpret_cast<std::uintptr_t>(where);
    const std::size_t offset = address - reinterpret_cast<std::uintptr_t>(lapgrad_shared_bytes);
    if (offset < kSharedBytes) return use_shared(offset, size, writes);
    if (unwritten && address - unwritten->first < unwritten->count * unwritten->element)
      use_unwritten(address, size, writes);
  }
};

inline Watch watch;

}  // namespace emulation

// What the compiler calls.
extern "C" {
#define WATCHED_ACCESSES(name, size)                                                                     \
  UNWATCHED void __tsan_read##name(void* place) { emulation::watch.use(place, size, false); }            \
  UNWATCHED void __tsan_write##name(void* place) { emulation::watch.use(place, size, true); }            \
  UNWATCHED void __tsan_unaligned_read##name(void* place) { emulation::watch.use(place, size, false); }  \
  UNWATCHED void __tsan_unaligned_write##name(void* place) { emulation::watch.use(place, size, true); }
WATCHED_ACCESSES(1, 1)
WATCHED_ACCESSES(2, 2)
WATCHED_ACCESSES(4, 4)
WATCHED_ACCESSES(8, 8)
WATCHED_ACCESSES(16, 16)
#undef WATCHED_ACCESSES
UNWATCHED void __tsan_read_range(void* place, unsigned long size) { emulation::watch.use(place, size, false); }
UNWATCHED void __tsan_write_range(void* place, unsigned long size) { emulation::watch.use(place, size, true); }
UNWATCHED void __tsan_vptr_update(void**, void*) {}
UNWATCHED void __tsan_func_entry(void*) {}
UNWATCHED void __tsan_func_exit() {}
UNWATCHED void __tsan_init() {}
}
