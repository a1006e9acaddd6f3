// A matrix as pointer, sizes and strides: the only matrix type of the core.
//
// A view that is passed to BLAS has one stride of 1. Which one decides the storage order, and `t()` flips it: the
// transpose of a row-major matrix is the same memory read column-major. Every algorithm here is therefore written
// once, for lower triangles and left sides; upper triangles and right sides are the same algorithm on `t()`.
//
// Methods are always inlined: this header is also compiled with the flags of newer instruction sets (isa.h), and the
// linker must not pick an out-of-line copy compiled with those flags for code that runs on every machine.
#pragma once

#include <cstdint>

namespace lapgrad {

using index_t = std::int64_t;

template <class T>
struct View {
    T* data;
    index_t rows, cols;
    index_t row_stride, col_stride;

    [[gnu::always_inline]] View t() const { return {data, cols, rows, col_stride, row_stride}; }
    [[gnu::always_inline]] T* at(index_t i, index_t j) const { return data + i * row_stride + j * col_stride; }
    [[gnu::always_inline]] T& operator()(index_t i, index_t j) const { return *at(i, j); }
    [[gnu::always_inline]] View block(index_t i, index_t j, index_t r, index_t c) const { return {at(i, j), r, c, row_stride, col_stride}; }
    [[gnu::always_inline]] View columns(index_t j, index_t c) const { return block(0, j, rows, c); }
    // Whether BLAS can read it as row-major; otherwise it is column-major. With one row or column both strides may be 1;
    // then the row stride decides.
    [[gnu::always_inline]] bool row_major() const { return col_stride == 1 && row_stride >= cols; }
    // Rows and columns in reverse order: an upper triangle becomes a lower one. The strides are negative, which the core's own
    // kernels accept and BLAS does not.
    [[gnu::always_inline]] View reversed() const { return {at(rows - 1, cols - 1), rows, cols, -row_stride, -col_stride}; }
    [[gnu::always_inline]] View reversed_rows() const { return {at(rows - 1, 0), rows, cols, -row_stride, col_stride}; }
    [[gnu::always_inline]] View<const T> readonly() const { return {data, rows, cols, row_stride, col_stride}; }
    [[gnu::always_inline]] operator View<const T>() const { return readonly(); }
};

// `count` matrices of one shape, `batch_stride` elements apart (0: all the same matrix).
template <class T>
struct Batch {
    T* data;
    index_t count, batch_stride;
    index_t rows, cols, row_stride, col_stride;

    [[gnu::always_inline]] View<T> operator[](index_t b) const { return {data + b * batch_stride, rows, cols, row_stride, col_stride}; }
    [[gnu::always_inline]] Batch t() const { return {data, count, batch_stride, cols, rows, col_stride, row_stride}; }
    [[gnu::always_inline]] Batch block(index_t i, index_t j, index_t r, index_t c) const {
        return {data + i * row_stride + j * col_stride, count, batch_stride, r, c, row_stride, col_stride};
    }
    [[gnu::always_inline]] Batch item(index_t b) const {
        return {data + b * batch_stride, 1, 0, rows, cols, row_stride, col_stride};
    }
    // Items from `first` on.
    [[gnu::always_inline]] Batch part(index_t first, index_t number) const {
        return {data + first * batch_stride, number, batch_stride, rows, cols, row_stride, col_stride};
    }
    [[gnu::always_inline]] Batch<const T> readonly() const {
        return {data, count, batch_stride, rows, cols, row_stride, col_stride};
    }
    // Whether each item is rows * cols consecutive elements, row-major or column-major.
    [[gnu::always_inline]] bool dense() const {
        return (col_stride == 1 && row_stride == cols) || (row_stride == 1 && col_stride == rows);
    }
};

}  // namespace lapgrad
