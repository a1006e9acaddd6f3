// Functions that all kernels share: shared memory, reductions over a warp, and the type of a matrix.
//
// A kernel's arguments are pointers, 64-bit integers and doubles, nothing else: the launcher in Python passes
// addresses, ints and floats, and needs no table of types.
//
// Tests run the kernels on the CPU and check every access to shared memory, so kernels get it from shared_memory()
// only.
#pragma once

using Index = long long;

extern __shared__ __align__(16) unsigned char lapgrad_shared_bytes[];

template <typename T>
__device__ T* shared_memory() {
  return reinterpret_cast<T*>(lapgrad_shared_bytes);
}

constexpr unsigned kAllLanes = 0xffffffffu;

// One matrix of a batch: element (i, j) at data[i * row + j * col].
template <typename T>
struct Matrix {
  T* data;
  Index row, col;

  __device__ T& operator()(Index i, Index j) const { return data[i * row + j * col]; }
};

// Returns the sum over each group of `width` neighbouring lanes (a power of two) to every lane of the group.
template <typename T>
__device__ T sum_lanes(T value, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// The same for the largest value.
template <typename T>
__device__ T max_lanes(T value, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}
