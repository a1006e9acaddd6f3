"""One file per operator, named by its BLAS or LAPACK stem: public function, kernel call, derivatives."""
