"""The raw kernels in plain PyTorch: for devices without kernels of their own, and without the compiled core.

Each function writes its result into the tensors that come first, knows nothing of autograd, and trusts its
caller with the shapes: all operands have the same leading (batch) dimensions. Where an operator may overwrite
its operand, the output *is* that operand, so it is written last.

These kernels are correct everywhere; they make temporaries that the compiled ones do not. One file per stem;
its public functions are the routines of the table.
"""
