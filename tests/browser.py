"""Controls headless Chromium over a pipe with the DevTools protocol. It needs no package, port or WebSocket."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# The browser itself fetches nothing, and could not reach the network if it tried.
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60.0


def program():
    """The path of the browser, or None if there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One page. ``events`` holds all reported events in order."""

    def __init__(self, process, read, write):
        self.process, self.read, self.write = process, read, write
        self.events, self.buffer, self.number, self.session = [], b"", 0, None

    def call(self, method, **parameters):
        """The result of one command. Events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def wait(self, method):
        """The next event of this name that no earlier call has returned."""
        began = time.monotonic()
        while not (found := [e for e in self.events if e["method"] == method and not e.get("seen")]):
            assert time.monotonic() - began < SECONDS, f"no {method} in {SECONDS} s"
            self._receive()
        found[0]["seen"] = True
        return found[0]

    def evaluate(self, expression):
        """The value of JavaScript that the debugger runs, because the page's own policy allows no script."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def open(self, url, width=1200, height=900, scheme="light"):
        """Load ``url`` in a window of this width, in this colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def _receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.read, 1 << 16)
            assert part, "the browser has ended"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message


@contextlib.contextmanager
def browser():
    """A ``Browser`` with an empty page, which ends with the ``with`` block."""
    to_child, from_us = os.pipe()
    to_us, from_child = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program(), *QUIET, f"--user-data-dir={profile}", "about:blank"]
        # The protocol uses the descriptors 3 and 4; a shell moves ours there.
        shell = ["bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "-", *command]
        process = subprocess.Popen(
            shell, pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_child)
        os.close(from_child)
        try:
            page = Browser(process, to_us, from_us)
            targets = page.call("Target.getTargets")["targetInfos"]
            (target,) = [t["targetId"] for t in targets if t["type"] == "page"]
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            process.kill()
            process.wait()
            os.close(from_us)
            os.close(to_us)
