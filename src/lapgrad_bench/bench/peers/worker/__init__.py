"""The program of a peer's process: times one library other than torch.

`client.py` runs this folder with the Python that has the library: `python worker jax cpu 2`. It needs
that library and numpy, Python 3.7 or newer, and nothing of lapgrad: its files import each other by name.

__main__.py        the process: reads requests, answers them
formulas.py        the operators, in terms of what a library offers
in_jax.py          what JAX offers
in_tensorflow.py   what TensorFlow offers
in_mxnet.py        what MXNet offers
in_gpytorch.py     criteria of models in GPyTorch
in_gpy.py          in GPy
in_gpflow.py       in GPflow

One JSON object per line is read and answered with one. The first line the process writes says who answers:
{"version", "python", "device"}, or {"missing": why}. Then:

    {"do": "prepare", "operator", "file", "inputs", "weights", "signs", "phases"}
                                        -> {"phases": those that can be timed, "lacks": why not all}
    {"do": "model", "model", "file"}    -> {"phases": ["step"] or none, "lacks": why, "value": the criterion}
    {"do": "sample", "phase", "calls"}  -> {"seconds": of one call}
    {"do": "memory", "phase"}           -> {"bytes": at the peak of a call beyond those before it, or null}
    {"do": "release"}                   -> {}

Arrays travel in files: the "file" of a model holds its arguments by name; that of an operator holds `inputs`
inputs and `weights` factors of the cotangents, and results and gradients are written beside it, under its
name with `.out.npz`.
"""
