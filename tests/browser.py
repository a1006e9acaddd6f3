"""A headless Chromium, driven by its DevTools protocol over a pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # root has no other way
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE = 30.0


def find() -> str | None:
    """Where a browser is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. What it logs, throws and asks for from outside is kept in `complaints` and `requests`."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._numbers, self._unread = itertools.count(1), b""
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    _session: str | None = None

    def open(self, path: Path) -> None:
        """Shows a file, and waits until it is loaded."""
        self._events.clear()
        self._call("Page.navigate", {"url": path.resolve().as_uri()})
        self._wait_for("Page.loadEventFired")

    def resize(self, width: int, height: int = 900) -> None:
        """The window; up to 500 pixels a phone's."""
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", shape)

    def prefer(self, scheme: str) -> None:
        """light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", {"features": features})

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript on the page."""
        answer = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", answer))
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        parameters = {"format": "png", "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", parameters)["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self._call("Page.printToPDF", {"printBackground": True})["data"])

    def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _wait_for(self, event: str) -> None:
        while not any(found["method"] == event for found in self._events):
            self._note(self._read())

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        parameters = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif event["method"] == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, end - time.monotonic()))
            received = os.read(self._receive, 1 << 20) if ready else b""
            if not received:
                raise AssertionError("the browser has gone" if ready else "the browser does not answer")
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextlib.contextmanager
def running(program: str) -> Iterator[Browser]:
    """A browser with an empty profile of its own."""
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        to_read, send = os.pipe()
        receive, to_write = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        command = [program, *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            yield Browser(send, receive)
        finally:
            # A browser whose pipe is closed ends by itself.
            os.close(send)
            os.close(receive)
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
