"""A headless Chromium, spoken to over a pipe: it shows a page as a person with that screen sees it.

The protocol is Chrome DevTools', as JSON between zero bytes on file descriptors 3 and 4
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
    "--no-sandbox",  # a container has no namespaces to spare, and the page is our own
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class ChromiumError(Exception):
    """Chromium is not there, ended, or refused a command."""


class Chromium:
    """A browser with one tab, for use in a with statement."""

    def __init__(self) -> None:
        found = next(filter(None, map(shutil.which, _NAMES)), None)
        if found is None:
            raise ChromiumError("Chromium is needed: apt-get install chromium, or the like.")
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._unread = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The shell moves our pipes from 0 and 1 to where Chromium looks for them.
        moved = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        profile = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(  # noqa: S603 - the browser that was found
            ["/bin/sh", "-c", moved, "sh", found, *_FLAGS, profile],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        tab = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._profile.cleanup()

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; what happens meanwhile is kept in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        assert self._process.stdin is not None  # noqa: S101 - we asked for a pipe
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
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
            for event in self.happened("Page.lifecycleEvent")
        ):
            self.events.append(self._read())

    def happened(self, *methods: str) -> list[dict[str, Any]]:
        """Return what has happened since the page was opened, of the kinds asked for."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise ChromiumError(str(answer["exceptionDetails"]))
        return answer["result"]["value"]

    def screenshot(self, target: Path, *, height: int | None = None) -> None:
        """Write the page as PNG, the whole of it or its upper part."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        tall = min(size["height"], height or size["height"])
        clip = {"x": 0, "y": 0, "width": size["width"], "height": tall, "scale": 1}
        shot = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(shot["data"]))

    def printed(self) -> bytes:
        """Return the page as it is printed, as PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - we asked for a pipe
        while b"\0" not in self._unread:
            more = self._process.stdout.read(1 << 16)
            if not more:
                raise ChromiumError("Chromium has ended.")
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
