"""A fake measuring process: does what a request says, without torch, which takes long to load.

A request has {"play": [[library, what, deed, seconds], ...], "then": the answer}. Libraries that are left out
do nothing. Deeds: sleep, hang, crash, raise.
"""

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

FILE = Path(sys.argv[1]) / "activity.py"


class FailedDeedError(Exception):
    pass


def load_activity(file):
    """The module, without the package that it belongs to."""
    spec = importlib.util.spec_from_file_location("activity", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["activity"] = module
    spec.loader.exec_module(module)
    return module


def play(request, activity):
    for library, what, deed, seconds in request["play"]:
        if library in request["without"]:
            continue
        if deed == "unlimited":
            activity.begin_unlimited(what)
        else:
            activity.begin(library, what)
        if deed == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        if deed == "crash":
            os.kill(os.getpid(), signal.SIGABRT)
        if deed == "raise":
            raise FailedDeedError(f"{library} cannot do that")
        time.sleep(seconds)


begun = json.loads(sys.stdin.readline())
activity = load_activity(FILE).SharedActivity(int(sys.argv[2]), begun["patience"])
print("{}", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    try:
        play(request, activity)
    except FailedDeedError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        continue
    answer = {"rows": [], "facts": begun["facts"], "failed": begun["failed"], "pid": os.getpid()}
    print(json.dumps({**answer, **request["then"]}), flush=True)
