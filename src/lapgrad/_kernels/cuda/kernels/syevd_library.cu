// Steps before and after cuSOLVER's eigenvalues and eigenvectors of a batch: one triangle is read and checked, and
// the signs of eigenvectors are determined.
#include "spectral.cuh"

// The upper triangle of rows := one triangle of each A (n x n), transposed if it is the lower one; zeros below, and for numbers that
// are not finite: cuSOLVER may never return from those. Their items are marked in `spoilt`, zeros before, and reported with code -1.
// One thread per entry; rows is contiguous.
template <typename T>
__global__ void read_triangles(T* rows, const T* A, Index a_item, Index a_row, Index a_col, Index lower, int* spoilt,
                               Index* failure, Index items, Index n) {
  const Index place = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= items * n * n) return;
  const Index item = place / (n * n), i = place / n % n, j = place % n;
  T value = 0;
  if (i <= j) {
    value = A[item * a_item + (lower ? j * a_row + i * a_col : i * a_row + j * a_col)];
    if (!(absolute(value) <= Numbers<T>::largest)) {
      value = 0;
      spoilt[item] = 1;
      report_failure(failure, item, -1);
    }
  }
  rows[place] = value;
}

// Changes the sign of rows whose leading entry is negative, unless rows is null. Values of a spoilt item become NaN; an item whose
// status is not 0 is reported with code 1, and one with a value past the largest number with code -1. One warp per row of length n; there
// are `count` rows, all contiguous.
template <typename T>
__global__ void finish_rows(T* rows, T* values, const int* status, const int* spoilt, Index* failure, Index count, Index n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index row = static_cast<Index>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32, item = row / n;
  if (row >= count) return;
  if (lane == 0) {
    if (spoilt[item]) values[row] = Numbers<T>::largest * T(2) - Numbers<T>::largest * T(2);
    if (status[item]) report_failure(failure, item, 1);
    else if (!(absolute(values[row]) <= Numbers<T>::largest)) report_failure(failure, item, -1);
  }
  if (!rows) return;
  T* const entries = rows + row * n;
  if (!has_negative_lead(entries, n, lane)) return;
  for (Index c = lane; c < n; c += 32) entries[c] = -entries[c];
}

// Reports the matrix with code 2 unless its n rows, contiguous, are orthonormal up to `allowed`. One block.
template <typename T>
__global__ void check_rows(const T* rows, double allowed, Index* failure, Index n) {
  const Index pairs = n * (n + 1) / 2;
  bool good = true;
  for (Index pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    // i is the row of the packed lower triangle that has this place.
    Index i = static_cast<Index>((sqrt(8.0 * static_cast<double>(pair) + 1.0) - 1.0) / 2.0);
    while (i * (i + 1) / 2 > pair) --i;
    while ((i + 1) * (i + 2) / 2 <= pair) ++i;
    const Index j = pair - i * (i + 1) / 2;
    T sum = i == j ? T(-1) : T(0);
    for (Index c = 0; c < n; ++c) sum += rows[i * n + c] * rows[j * n + c];
    good = good && absolute(sum) <= static_cast<T>(allowed);
  }
  if (!good) report_failure(failure, 0, 2);
}
