"""Benchmarks: operators and models against torch and other libraries.

timing.py     interleaved timing of several functions
cases.py      one row per operator: its torch peer, its inputs, its flop counts
inputs.py     the inputs; in_torch.py the peers, as a user of torch writes them
agreement.py  results and gradients are compared before anything is timed
gemm.py       torch.mm, the yardstick of every case
runner.py     times forward and backward of cases
measuring.py  answers requests to measure; runs as a process of its own
watchdog.py   starts that process, and ends it when a call hangs; activity.py: what it is calling
worker_process.py  a process that answers requests, of either kind
peers.py      JAX, TensorFlow and MXNet in processes of their own, which run peer_worker/
peer_cases.py a case given to them
bars.py       the speed the operators have to reach, and how each of these is measured
coexist.py    lapgrad and torch calls in turns: do their threads get in each other's way?
memory.py     peak memory of one call
sparse_gp.py  the criterion of a sparse Gaussian process against torch, GPyTorch and GPy
deep_gp.py    the bound of a deep Gaussian process, and training steps, against torch.linalg
exact_gp.py   the criterion of Gaussian process regression
model_cases.py, model_runner.py, models_command.py, plots_models.py  `lapgrad bench models`: these and others
resumption.py results files, gone on with
report.py     tables for the terminal, Markdown
tables_ops.py rows of results of operators as tables; plots_ops.py as figures
plotting.py   what all plots share: figures without a window, tick labels
comparison.py two results files of operators: what got slower
results.py    results files: one JSON format for everything that is measured
machine.py    the machine and the moment, stored in these files
plan.py       which cases a run measures; options.py its options; progress.py how far it is
command.py    the command `lapgrad bench ops`
"""
