"""The raw kernels in plain PyTorch: for devices, and installations, without kernels of their own.

Each function writes its result into its first arguments, does not use autograd, and does not check shapes:
all operands have the same leading (batch) dimensions. Where an operator may overwrite its operand, the output
*is* that operand, so it is written last.

These kernels are correct everywhere; they make temporaries that the compiled ones do not. One file per stem;
its public functions are the routines of the table.
"""
