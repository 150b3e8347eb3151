"""Control a headless Chromium over a pipe, to see a page as people see it on a given screen.

It speaks the Chrome DevTools protocol: JSON between zero bytes on file descriptors 3 and 4
(`--remote-debugging-pipe`), so no package and no port is needed.
"""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, Self

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # Containers have no namespaces to spare, and we wrote the page.
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class ChromiumError(Exception):
    """Chromium is not installed, has ended, or refused a command."""


class Chromium:
    """A browser with one tab, for use in a with statement."""

    def __init__(self) -> None:
        executable = next(filter(None, map(shutil.which, _NAMES)), None)
        if executable is None:
            raise ChromiumError("Chromium is needed: apt-get install chromium, or the like.")
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._unread = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The shell moves our pipes from 0 and 1 to the descriptors that Chromium reads.
        move_pipes = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        profile = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(  # noqa: S603 - the browser that is installed
            ["/bin/sh", "-c", move_pipes, "sh", executable, *_FLAGS, profile],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        tab = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._profile.cleanup()

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; keep events that arrive meanwhile in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        assert self._process.stdin is not None  # noqa: S101 - it was started with a pipe
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read_message()
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise ChromiumError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def open(self, page: Path, width: int, *, scheme: str = "light", media: str = "screen") -> None:
        """Show a file in a window of a given width, and wait until it has loaded."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 2, "mobile": width < 600}  # noqa: PLR2004
        self.ask("Emulation.setDeviceMetricsOverride", **screen)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[feature])
        self.events.clear()
        loader = self.ask("Page.navigate", url=page.resolve().as_uri())["loaderId"]
        while not any(
            (event["loaderId"], event["name"]) == (loader, "load")
            for event in self.events_of("Page.lifecycleEvent")
        ):
            self.events.append(self._read_message())

    def events_of(self, *methods: str) -> list[dict[str, Any]]:
        """Return the events of the given methods since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise ChromiumError(str(answer["exceptionDetails"]))
        return answer["result"]["value"]

    def screenshot(self, target: Path, *, top: float = 0, height: int | None = None) -> None:
        """Write the page below `top`, or `height` pixels of it, as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip_height = min(size["height"] - top, height or size["height"])
        clip = {"x": 0, "y": top, "width": size["width"], "height": clip_height, "scale": 1}
        shot = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(shot["data"]))

    def print_to_pdf(self) -> bytes:
        """Return the printed page, as PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"])

    def _read_message(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it was started with a pipe
        while b"\0" not in self._unread:
            chunk = self._process.stdout.read(1 << 16)
            if not chunk:
                raise ChromiumError("Chromium has ended.")
            self._unread += chunk
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
