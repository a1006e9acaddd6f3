// What all kernels share: the memory of a block, sums over a warp, and the matrices they are given.
//
// A kernel's arguments are pointers, 64-bit integers and doubles, nothing else: the launcher in Python passes
// addresses, ints and floats, and needs no table of types.
//
// Tested without a GPU by running them on the CPU: shared memory is therefore asked for here and nowhere else.
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

// The sum over each group of `width` neighbouring lanes (a power of two), in every lane of the group.
template <typename T>
__device__ T sum_of_lanes(T value, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

template <typename T>
__device__ T max_of_lanes(T value, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}
