"""Shortcuts: operators on ordinary CUDA tensors, which the core has checked (csrc/bind/device_shortcuts.h).

table.py      the shortcuts of each operator
planned.py    shortcuts that are one launch, which the core repeats
products.py   matrix products: torch's own functions, which record gradients in C++, or one launch
diagonals.py  diagonals and triangles, likewise
factors.py    factorisations and their gradients: own kernels

A shortcut takes the arguments of the registered operator. The core has checked them: plain eager tensors on
one device, float32 or float64, none of them empty, with equal leading dimensions and shapes that fit. It
returns the results, or None: then the operator computes, or raises.
"""
