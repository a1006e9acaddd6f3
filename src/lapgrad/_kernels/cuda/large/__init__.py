"""Large matrices: algorithms over cuBLAS and cuSOLVER."""
