"""One file per operator, named by its BLAS or LAPACK stem: documentation, kernel call, derivatives, public function."""
