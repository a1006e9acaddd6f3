"""Measures what it is asked for: here, or in a process of its own, which `watchdog.py` starts and ends.

As a process it reads one JSON object per line and answers with one. The first line it reads says who takes
part: {"patience", "peers", "device", "timeout", "facts", "failed"}; the first it writes is {}. Then:

    {"do": "case", ...}   -> {"rows"}
    {"do": "bar", ...}    -> {"figure", "device", "rows"}
    {"do": "model", ...}  -> {"rows", "bars"}

Every answer also has {"facts", "failed"} of the peers; or it is {"disagreement": why} or {"error": what}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from lapgrad_bench.bench import bars, model_runner, sparse_gp
from lapgrad_bench.bench.activity import Activity, SharedActivity
from lapgrad_bench.bench.agreement import DisagreementError
from lapgrad_bench.bench.model_cases import ModelCase, cases
from lapgrad_bench.bench.peer_worker.__main__ import answer_stream, die_with_parent, in_a_line
from lapgrad_bench.bench.peers import Peers, PeerSpec
from lapgrad_bench.bench.plan import Item
from lapgrad_bench.bench.results import Row
from lapgrad_bench.bench.runner import measure
from lapgrad_bench.bench.timing import long_lived_objects_aside

Request = dict[str, Any]
Answer = dict[str, Any]


class Measuring:
    """Answers requests to measure, and keeps what several of them share.

    Args:
        peers: Other libraries that take part.
        activity: Told what is called next.
    """

    def __init__(self, peers: Peers, activity: Activity) -> None:
        self._peers, self._activity = peers, activity
        self._benches: dict[str, bars.Bench] = {}
        self._models: dict[str, list[ModelCase]] = {}

    def answer(self, request: Request) -> Answer:
        """Measures what `request["do"]` names.

        Raises:
            DisagreementError: lapgrad and torch do not agree.
        """
        found: Answer = {"case": self._case, "bar": self._bar, "model": self._model}[request["do"]](request)
        return {**found, "facts": self._peers.facts, "failed": sorted(self._peers.failed_once)}

    def _case(self, request: Request) -> Answer:
        item = Item.of_request(request["item"])
        found = measure(
            item.case,
            item.phases,
            item.threads,
            request["seconds"],
            peers=self._peers if request["with_peers"] else None,
            against_gemm=True,
            memory=request["memory"],
            with_torch="torch" not in request["without"],
            activity=self._activity,
        )
        return {"rows": [row for measurement in found for row in measurement.rows()]}

    def _bar(self, request: Request) -> Answer:
        """Measurements that several bars share are in the answer for the first of them."""
        threads, seconds, device = request["threads"], request["seconds"], request["device"]
        bench = self._benches.setdefault(
            json.dumps([threads, seconds, device]),
            bars.Bench(threads, seconds, torch.device(device), activity=self._activity),
        )
        (bar,) = (bar for bar in bars.bars(request["machine"]) if bar.what == request["what"])
        known = set(bench.measured)
        verdict = bars.judge(bar, bench)
        rows: list[Row] = []
        for key, measurement in bench.measured.items():
            if key not in known:
                rows += measurement.rows()
        return {"figure": verdict.figure, "device": verdict.device, "rows": rows}

    def _model(self, request: Request) -> Answer:
        rows, reached = model_runner.measure(
            self._cases_of(request["of"])[request["index"]],
            request["threads"],
            request["seconds"],
            torch.device(request["device"]),
            self._peers,
            without=request["without"],
            activity=self._activity,
        )
        return {"rows": rows, "bars": reached}

    def _cases_of(self, chosen: dict[str, Any]) -> list[ModelCase]:
        key = json.dumps(chosen)
        if key not in self._models:
            folder = Path(chosen["folder"]) if chosen["folder"] else None
            X, y = sparse_gp.data_named(chosen["data"], folder)
            data = X[: chosen["rows"]], y[: chosen["rows"]]
            inducing, sizes = chosen["inducing"], chosen["sizes"]
            self._models[key] = list(cases(chosen["models"], data, inducing, sizes, chosen["quick"]))
        return self._models[key]


def main() -> None:
    """Answers requests until there are no more. The argument is the file of the activity."""
    die_with_parent()
    answers = answer_stream()

    def say(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    begun = json.loads(sys.stdin.readline())
    activity = SharedActivity(int(sys.argv[1]), begun["patience"])
    specs = [PeerSpec(library, python) for library, python in begun["peers"]]
    invited = Peers(specs, begun["device"], begun["timeout"], begun["facts"], set(begun["failed"]))
    say({})
    with long_lived_objects_aside(), invited as peers:
        measuring = Measuring(peers, activity)
        for line in sys.stdin:
            try:
                say(measuring.answer(json.loads(line)))
            except DisagreementError as error:
                say({"disagreement": str(error)})
            except Exception as error:  # whatever a library raises, the next case may do
                say({"error": in_a_line(error)})


if __name__ == "__main__":
    main()
