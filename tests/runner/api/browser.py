"""A real headless Chromium, driven by its DevTools protocol over two pipes: no port, driver or package."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.runner.servers import DEADLINE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = (
    "--headless=new",
    "--window-size=1280,800",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
_START_DEADLINE_S = 400.0
"""On a machine that is busy with other things."""
_PATIENCE_S = 300.0
_WAS_INTERRUPTED = -32000
"""The code of an error that says that the page is no longer the one that was asked."""
_KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, " ": 32}
_MIDDLE_OF = """(element => {
    element.scrollIntoView({block: "nearest"});
    const {x, y, width, height} = element.getBoundingClientRect();
    return width && [x + width / 2, y + height / 2];
})(document.querySelector(%s))"""
_MODIFIERS = {"Control": 2, "Shift": 8}


class CommandFailed(AssertionError):
    """A DevTools command and what Chromium answered to it."""


class Browser:
    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        commands, self._to = (_high(fd) for fd in os.pipe())
        self._from, answers = (_high(fd) for fd in os.pipe())
        # NOTE: it reads from descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{commands} 4>&{answers}'
        options = [*_OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, "bash", CHROMIUM, *options],
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(folder)},
            )
        os.close(commands)
        os.close(answers)
        self._received = b""
        self._has_answered = False
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, /, **params: Any) -> dict[str, Any]:
        """Return the result of a DevTools command; what happened meanwhile goes to ``events``."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last_id:
            self.events.append(answer)
        if "error" in answer:
            raise CommandFailed(method, answer["error"])
        return answer["result"]

    def open(self, url: str) -> Page:
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, context, url)

    def close(self) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._to)
            os.close(self._from)

    def _receive(self) -> dict[str, Any]:
        limit_s = DEADLINE_S if self._has_answered else _START_DEADLINE_S
        deadline_s = time.monotonic() + limit_s
        while b"\0" not in self._received:
            readable, _, _ = select.select([self._from], [], [], max(deadline_s - time.monotonic(), 0))
            assert readable, f"Chromium did not answer within {limit_s:g} s"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium ended"
            self._received += part
        self._has_answered = True
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


class Page:
    def __init__(self, browser: Browser, session: str, context: str, url: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.bringToFront")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Until it is true. Asked seldom: each question is work for the browser, which has enough."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not (answer := self._run_here(condition)):
            assert time.monotonic() < deadline_s, (condition, self.text("#status"), self.text("#error"))
            time.sleep(0.05)
        return answer

    def reload(self, until: str) -> None:
        """Load the page again; return when the new document is there and ``until`` is true in it."""
        self.run("window.isOld = true")
        self.call("Page.reload")
        self.wait(f"!window.isOld && document.readyState === 'complete' && {until}")

    def _run_here(self, script: str) -> Any:
        """Return the value of an expression, or None where the page left for another while it ran."""
        try:
            return self.run(script)
        except CommandFailed as error:
            if error.args[1]["code"] != _WAS_INTERRUPTED:
                raise
            return None

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def click(self, selector: str) -> None:
        """Where the element's middle is on the screen, so that what is hidden or covered can't be clicked."""
        place = self._place(selector)
        at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def _place(self, selector: str) -> list[float]:
        """Wait until the element lies still, and return its place: a page moves while it is first drawn."""
        place: list[float] | None = None
        deadline_s = time.monotonic() + _PATIENCE_S
        while (now := self.run(_MIDDLE_OF % json.dumps(selector))) != place or not now:
            assert time.monotonic() < deadline_s, f"{selector} is not visible, or moves"
            place = now
            time.sleep(0.05)
        return now

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifier: str = "") -> None:
        common = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        common["modifiers"] = _MODIFIERS.get(modifier, 0)
        texts = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **texts)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def focused(self) -> str:
        return str(self.run("document.activeElement.id"))

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)

    def requested(self) -> list[str]:
        """All addresses that were asked for since the tab was made."""
        return [event["params"]["request"]["url"] for event in self._seen("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        logged = [str(event["params"]["entry"]) for event in self._seen("Log.entryAdded")]
        return logged + [str(event["params"]) for event in self._seen("Runtime.exceptionThrown")]

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def _seen(self, method: str) -> list[dict[str, Any]]:
        self.run("0")  # What was told before this is here after it.
        ours = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event for event in ours if event["method"] == method]


def _high(descriptor: int) -> int:
    """Return a value made from a number that is neither 3 nor 4."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
