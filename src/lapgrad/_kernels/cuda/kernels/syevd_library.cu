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
// status is not 0 is reported with code 1. One warp per row of length n; there are `count` rows, all contiguous.
template <typename T>
__global__ void finish_rows(T* rows, T* values, const int* status, const int* spoilt, Index* failure, Index count, Index n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index row = static_cast<Index>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32, item = row / n;
  if (row >= count) return;
  if (lane == 0) {
    if (spoilt[item]) values[row] = Numbers<T>::largest * T(2) - Numbers<T>::largest * T(2);
    if (status[item]) report_failure(failure, item, 1);
  }
  if (!rows) return;
  T* const entries = rows + row * n;
  if (!has_negative_lead(entries, n, lane)) return;
  for (Index c = lane; c < n; c += 32) entries[c] = -entries[c];
}
