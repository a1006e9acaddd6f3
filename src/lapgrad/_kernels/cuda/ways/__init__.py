"""Ways: operators on ordinary CUDA tensors, from the core's checks to the result (csrc/bind/ways.h).

table.py      which operator has which way
planned.py    ways that are one launch, which the core repeats
products.py   matrix products: torch's own functions, which record gradients in C++, or one launch
diagonals.py  diagonals and triangles, likewise
factors.py    factorisations and their gradients: own kernels

A way takes the arguments of the registered operator. The core has checked them: plain eager tensors on one
device, float32 or float64, none of them empty, with equal leading dimensions and shapes that fit. It returns
the results, or None: then the operator computes, or raises.
"""
