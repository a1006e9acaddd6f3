"""Answers requests to measure: the program of the measuring process, which `watchdog.py` starts and ends.

The process reads one JSON object per line and answers each with one line. The first line it reads says which
libraries take part: {"patience", "peers", "device", "timeout", "facts", "failed"}; its first answer is {}.
The other requests and their answers are:

    {"do": "case", ...}   -> {"rows"}
    {"do": "bar", ...}    -> {"figure", "device", "rows"}
    {"do": "model", ...}  -> {"rows", "bars"}

Every answer also has {"facts", "failed"} of the peers. Where a request fails, the answer is
{"disagreement": why} or {"error": what}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from lapgrad_bench.bench.measure.activity import Activity, SharedActivity
from lapgrad_bench.bench.measure.timing import freeze_existing_objects
from lapgrad_bench.bench.models import runner as model_runner
from lapgrad_bench.bench.models.cases import ModelCase, Selection, list_cases
from lapgrad_bench.bench.ops import bars
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.ops.plan import Item
from lapgrad_bench.bench.ops.runner import measure
from lapgrad_bench.bench.peers.client import Peers, PeerSpec
from lapgrad_bench.bench.peers.worker.__main__ import die_with_parent, open_answer_stream, shorten_message
from lapgrad_bench.common.results import Row

Request = dict[str, Any]
Answer = dict[str, Any]


class RequestHandler:
    """Answers requests to measure, and keeps the results that several of them share.

    Args:
        peers: Other libraries that take part.
        activity: The record of the call that is being made.
    """

    def __init__(self, peers: Peers, activity: Activity) -> None:
        self._peers, self._activity = peers, activity
        self._benches: dict[str, bars.BarMeasurer] = {}
        self._models: dict[str, list[ModelCase]] = {}

    def answer(self, request: Request) -> Answer:
        """Measure what `request["do"]` names.

        Raises:
            DisagreementError: lapgrad and torch do not agree.
        """
        handlers = {"case": self._measure_case, "bar": self._measure_bar, "model": self._measure_model}
        found = handlers[request["do"]](request)
        return {**found, "facts": self._peers.facts, "failed": sorted(self._peers.failed_once)}

    def _measure_case(self, request: Request) -> Answer:
        item = Item.from_request(request["item"])
        found = measure(
            item.case,
            item.phases,
            item.threads,
            request["seconds"],
            peers=self._peers if request["with_peers"] else None,
            against_gemm=request.get("against_gemm", True),
            memory=request["memory"],
            with_torch="torch" not in request["without"],
            activity=self._activity,
        )
        return {"rows": [row for measurement in found for row in measurement.make_rows()]}

    def _measure_bar(self, request: Request) -> Answer:
        """Return a figure. Rows that several figures share are in the answer for the first of them."""
        threads, seconds, device = request["threads"], request["seconds"], request["device"]
        bench = self._benches.setdefault(
            json.dumps([threads, seconds, device]),
            bars.BarMeasurer(threads, seconds, torch.device(device), activity=self._activity),
        )
        (bar,) = (bar for bar in bars.list_bars(request["machine"]) if bar.what == request["what"])
        known = set(bench.measured)
        verdict = bars.measure_bar(bar, bench)
        rows: list[Row] = []
        for key, measurement in bench.measured.items():
            if key not in known:
                rows += measurement.make_rows()
        return {"figure": verdict.figure, "device": verdict.device, "rows": rows}

    def _measure_model(self, request: Request) -> Answer:
        rows, reached = model_runner.measure(
            self._list_models(request["selection"])[request["index"]],
            request["threads"],
            request["seconds"],
            torch.device(request["device"]),
            self._peers,
            without=request["without"],
            activity=self._activity,
        )
        return {"rows": rows, "bars": reached}

    def _list_models(self, selection: dict[str, Any]) -> list[ModelCase]:
        key = json.dumps(selection)
        if key not in self._models:
            self._models[key] = list_cases(Selection(**selection))
        return self._models[key]


def main() -> None:
    """Answer requests until stdin ends. The argument is the file descriptor of the activity record."""
    die_with_parent()
    answers = open_answer_stream()

    def send(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    opening = json.loads(sys.stdin.readline())
    activity = SharedActivity(int(sys.argv[1]), opening["patience"])
    specs = [PeerSpec(library, python) for library, python in opening["peers"]]
    invited = Peers(specs, opening["device"], opening["timeout"], opening["facts"], set(opening["failed"]))
    send({})
    with freeze_existing_objects(), invited as peers:
        handler = RequestHandler(peers, activity)
        for line in sys.stdin:
            try:
                send(handler.answer(json.loads(line)))
            except DisagreementError as error:
                send({"disagreement": str(error)})
            except Exception as error:  # A library may raise anything; the next case may work.
                send({"error": shorten_message(error)})


if __name__ == "__main__":
    main()
