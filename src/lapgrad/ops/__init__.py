"""One file per operator, named by its BLAS or LAPACK stem: public function, kernel call, derivatives."""

# trmm, its helpers in _triangular and gemmt import each other: that works only if trmm comes first.
from lapgrad.ops import trmm as trmm
