"""A headless Chromium, driven over its DevTools protocol through a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--disable-component-update",
         "--remote-debugging-pipe")  # fmt: skip
LAUNCH = """
import os, sys
first, second = (os.dup(int(word)) for word in sys.argv[1:3])
ends = [os.dup2(end, 64 + place) for place, end in enumerate((first, second))]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The protocol's two ends are the file descriptors 3 and 4, whatever they were here."""
PATIENCE = 30.0
"""Seconds for anything; a busy machine is slow, a broken page is never done."""
KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "Tab": ("", 9), "ArrowRight": ("", 39), "ArrowLeft": ("", 37)}


def needed() -> str:
    """The program. Without it the test fails in CI and is skipped elsewhere."""
    if found := next((found for name in PROGRAMS if (found := shutil.which(name))), None):
        return found
    message = "Chromium is not installed: apt-get install -y chromium"
    pytest.fail(message, pytrace=False) if "CI" in os.environ else pytest.skip(message)


class Page:
    """One tab. ``problems``: exceptions, console errors and refusals of the content policy; ``requests``: addresses."""

    def __init__(self, browser: Browser) -> None:
        self.browser, self.problems, self.requests = browser, list[str](), list[str]()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """The value of ``expression`` once it is true."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.run(expression)
            if value:
                return value
            text = "document.body.innerText.slice(0, 2000)"
            assert time.monotonic() < deadline, f"{expression}: {self.run(text)} {self.problems}"
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str, shift: bool = False) -> None:
        text, code = KEYS[key]
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def write(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def move(self, selector: str) -> None:
        """The pointer onto the middle of the first match."""
        place = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(box => [box.left + box.width / 2, box.top + box.height / 2])({place})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        self.move(selector)
        place = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(box => [box.left + box.width / 2, box.top + box.height / 2])({place})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """As on a screen of this size; ``scheme``: light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def save(self, path: Path) -> None:
        """A picture of what is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(json.dumps(params["args"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


class Browser:
    """``folder``: for its profile."""

    def __init__(self, program: str, folder: Path) -> None:
        self.pages: dict[str, Page] = {}
        self.number, self.rest = 0, b""
        theirs_in, self.to = os.pipe()
        self.come, theirs_out = os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        os.write(self.to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            if answer.get("sessionId") in self.pages:
                self.pages[answer["sessionId"]].hear(answer.get("method", ""), answer.get("params", {}))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.come], [], [], PATIENCE)
            more = os.read(self.come, 2**20) if ready else b""
            assert more, f"Chromium says nothing; it has ended with {self.process.poll()}"
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def close(self) -> None:
        os.close(self.to)  # its end of the pipe: Chromium ends with it
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self.come)


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """``folder``: of this test."""
    browser = Browser(needed(), folder)
    try:
        yield browser
    finally:
        browser.close()
