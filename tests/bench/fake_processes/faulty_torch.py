"""A process that measures, in which torch hangs in syrk and mvn_nll and crashes in trmm."""

import ctypes
import dataclasses
import resource
import signal
import sys
import time

from lapgrad_bench.bench.measure.activity import SharedActivity
from lapgrad_bench.bench.ops import gemm
from lapgrad_bench.bench.ops.cases import OPERATORS
from lapgrad_bench.bench.watched import requests


def hang(*inputs):
    """Sleeps for ever with all signals blocked; the watchdog allows one second of it.

    Everything else is given longer: a machine that is busy with other tests may take seconds for a gradient.
    """
    SharedActivity(int(sys.argv[1]), 1.0).begin("torch", "its first call")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(1e6)


def crash(*inputs):
    """Read from address 0."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


for name, peer in {"syrk": hang, "fused.mvn_nll": hang, "trmm": crash}.items():
    OPERATORS[name] = dataclasses.replace(OPERATORS[name], peer=peer)
gemm.choose_order = lambda device, threads: 32
requests.main()
