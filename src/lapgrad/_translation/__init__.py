"""torch's linear algebra in torch's own terms, computed by lapgrad's kernels.

lapgrad and torch disagree in conventions: eigenvectors are rows or columns, factors are row-major or
column-major, a failed factorisation raises or leaves a partial factor and a status. This package is the one
place that knows both. ``lapgrad.accelerate`` puts its functions behind torch's operators, and
``lapgrad.linalg`` offers them under torch's names.

Each module translates one or several operators of torch's dispatcher (``aten``), and offers up to two
functions with the signature of the operator:

``compute_<name>``
    The values, from plain tensors without gradients. Results have torch's shapes, strides, order and status
    codes. Whatever lapgrad's kernel refuses (an indefinite matrix, a NaN, a zero pivot) is computed again by
    torch's own kernel, so that partial results, status and exceptions are torch's.
``record_<name>``
    The same with derivatives, in every mode of PyTorch: a registered operator of lapgrad whose kernel is
    ``compute_<name>``. Its gradient never raises and never warns: a backward pass comes too late for torch's
    own kernel to take over. At equal eigenvalues or singular values the policy is "mask" (see ``syevd``).

Operators without ``record_`` keep torch's derivative formulas. These call the dispatcher again, and so their
solves and products run on lapgrad's kernels, too.
"""
