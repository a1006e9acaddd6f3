"""lapgrad.accelerate: programs that call torch.linalg run on lapgrad's kernels, without a change.

Interface (``switch``)::

    lapgrad.accelerate()                     # from now on, in the whole process
    lapgrad.accelerate(only={"cholesky"})    # some operators only
    with lapgrad.accelerate(): ...           # in this block: in this thread and this async task
    @lapgrad.accelerate()                    # in calls of this function
    lapgrad.accelerate.off()                 # no more; also as a block and as a decorator
    lapgrad.accelerate.stats()               # calls taken and passed on, by operator, shape and reason

How a call travels::

    torch.linalg.cholesky(A)
      -> aten::linalg_cholesky_ex, key AutogradCPU: the override of ``overrides``
           no gradient wanted -> continues as at the key CPU, below
           gradient wanted    -> registry says yes: lapgrad's operator, which records itself
                                 registry says no:  torch's Autograd kernel, which goes on to the key CPU
      -> aten::linalg_cholesky_ex, key CPU: the other override. Calls in inference mode and those from
         inside of torch's kernels meet this one only
           registry says yes  -> lapgrad's kernel; what that refuses, torch's own kernel computes
           registry says no   -> torch's own kernel

Before either override stands a gate (``gates``), a compiled function. It passes calls for small matrices on
to torch without a line of Python: torch's kernels are called by address (``_translation._torch_functions``).
Cholesky factorisations and triangular solves of the usual shapes go straight to the translation. All other
calls are left to the Python kernels (``kernels``).

The overrides are installed at the first use and removed by ``accelerate.off()``. They are the same for all
threads. Which operators are in use is read at each call: from a context variable that scopes set, else from
the choice for the process (``choices``).

``routes`` lists the operators with their translation (``lapgrad._translation``); ``registry`` holds, per
device, operator, dtype and order, the number of matrices from which lapgrad is faster, as
``lapgrad bench accelerate`` has measured it (``thresholds.json``).

A graph that ``torch.compile``, ``torch.export`` or ``make_fx`` records holds the operators that were chosen
when it was traced: a later ``accelerate()`` or ``off()`` changes only what the graph calls by torch's names.
"""

from lapgrad.accelerate.switch import Acceleration, accelerate

__all__ = ["Acceleration", "accelerate"]
