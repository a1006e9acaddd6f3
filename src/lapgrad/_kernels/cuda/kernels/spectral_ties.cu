// Whether a loss can depend on vectors that a matrix does not determine: only where values are equal, or zero.
#include "spectral_products.cuh"

// Reports an item with code 1 if two neighbours of its `count` sorted values are equal up to tol, relative to the largest one, or if
// the last value is zero and `zeros` is 1. One thread per value.
template <typename T>
__global__ void find_ties(const T* values, double tol, Index zeros, Index* failure, Index total, Index count) {
  const Index place = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= total) return;
  const Index item = place / count, i = place % count;
  const T first = absolute(values[item * count]), last = absolute(values[item * count + count - 1]);
  const Gaps<T> gaps(kMask, first > last ? first : last, T(tol));
  const bool equal = i > 0 && gaps.is_tied(absolute(values[place] - values[place - 1]));
  if (equal || (zeros && i == count - 1 && last <= gaps.threshold)) report_failure(failure, item, 1);
}
