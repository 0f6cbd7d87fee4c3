"""A real browser for tests: Chromium without a window, spoken to by its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)
PATIENCE = 30.0  # seconds for a start, an answer or a condition


def find_chromium() -> str | None:
    """Where the browser is, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser. What it logs and what it asks of the network is kept."""

    def __init__(self, program: str) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._loaded = False
        self._open = ExitStack()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [program, *OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._socket = self._open.enter_context(connect(self._address(), max_size=None, open_timeout=PATIENCE))
            targets = self.send("Target.getTargets", session=False)["targetInfos"]
            page = next(target for target in targets if target["type"] == "page")
            attached = self.send("Target.attachToTarget", session=False, targetId=page["targetId"], flatten=True)
            self._session: str = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._open.close()
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._profile.cleanup()

    def send(self, method: str, *, session: bool = True, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(PATIENCE))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def open(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, scale: float = 1) -> None:
        """Show a file as a window of that size does, afresh."""
        self.errors.clear()
        self.requests.clear()
        self.resize(width, height, scale)
        self.theme(dark=dark)
        self._loaded = False
        self.send("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + PATIENCE
        while not self._loaded:
            assert time.monotonic() < end, "the page did not load"
            self._note(json.loads(self._socket.recv(PATIENCE)))

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """Give the window another size, and its screen so many pixels for one."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def theme(self, *, dark: bool) -> None:
        """What the reader prefers."""
        value = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true, also of a page that is read again meanwhile."""
        end = time.monotonic() + PATIENCE
        while not self._is_true(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({condition})"))
        except RuntimeError as error:
            if "navigated" in str(error) or "context" in str(error) or "of null" in str(error):
                return False
            raise

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Move there and click."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        """Touch a place with a finger."""
        self.send("Emulation.setTouchEmulationEnabled", enabled=True)
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.send("Emulation.setTouchEmulationEnabled", enabled=False)

    def press(self, key: str) -> None:
        """Press a key and let go."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Save what the window shows, or the whole page, as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _address(self) -> str:
        """The socket that the browser opened; it writes port and path into its profile."""
        file = Path(self._profile.name) / "DevToolsActivePort"
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            lines = file.read_text().split() if file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.05)
        raise RuntimeError("the browser did not start")

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.errors.append(str(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.errors.append(values["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"a dialogue opened: {values['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
