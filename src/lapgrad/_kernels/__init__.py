"""Raw kernels: one package per device, and the table that chooses among them."""
