"""The process that runs cases: one line of JSON when a case begins and when it ends, stacks if it hangs."""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from samples import OPERATORS

from fuzz.attack import Attack


def run(options: argparse.Namespace) -> None:
    """Run cases until the deadline, operator after operator."""
    if options.prelude:
        exec(options.prelude, {})
    faulthandler.enable()
    warnings.simplefilter("error")
    for name, number in _draw_cases(options):
        case = f"{name}:{number}"
        _write({"begin": case})
        faulthandler.dump_traceback_later(options.limit, exit=True)
        event: dict[str, Any] = {
            "case": case,
            "description": "",
            "failures": [],
            "undecided": False,
            "worst": 0.0,
        }
        begun = time.time()
        try:
            report = Attack(name, options.seed, number, options.largest).run()
            event.update(vars(report))
        except Exception:  # the case could not be drawn, or the reference failed
            event["failures"] = ["no case could be made of it:\n" + traceback.format_exc(limit=-3)]
        event["seconds"] = time.time() - begun
        _write(event)
    faulthandler.cancel_dump_traceback_later()


def _draw_cases(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield cases of all operators in turns, so that each has had as many when the time is over."""
    operators = options.ops.split(",") if options.ops else list(OPERATORS)
    unknown = set(operators) - set(OPERATORS)
    if unknown:
        sys.exit(f"no such operator: {', '.join(sorted(unknown))}; there are {', '.join(OPERATORS)}")
    cases: Iterator[tuple[str, int]] = (
        (name, number) for number in itertools.count(options.first) for name in operators
    )
    if options.resume:
        last, _, number_of_last = options.resume.rpartition(":")
        cases = itertools.dropwhile(lambda case: case != (last, int(number_of_last)), cases)
        next(cases)
    for name, number in cases:
        over = options.rounds and number >= options.first + options.rounds
        if over or time.time() > options.deadline:
            return
        yield name, number


def _write(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
