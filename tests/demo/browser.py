"""A Chromium without a window, spoken to by its own protocol over two pipes: no driver, no other library."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self


class Browser:
    """One page in a Chromium that is there for the test alone."""

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        program = shutil.which("chromium")
        assert program is not None, "there is no Chromium here: apt-get install chromium"
        from_browser, to_us = os.pipe()
        to_browser, from_us = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        # The browser takes orders on descriptor 3 and answers on 4.
        command = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        arguments = [*options, f"--user-data-dir={folder}", f"--window-size={width},{height}"]
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                command,
                str(to_browser),
                str(to_us),
                program,
                *arguments,
                "--remote-debugging-pipe",
            ],
            pass_fds=(to_browser, to_us),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(to_us)
        self._in, self._out = os.fdopen(from_browser, "rb"), os.fdopen(from_us, "wb")
        self._number = 0
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        calm = {"name": "prefers-reduced-motion", "value": "reduce"}  # the machine has other work to do
        self._ask("Emulation.setEmulatedMedia", features=[scheme, calm])

    def open(self, url: str) -> None:
        """Go to a page."""
        self._ask("Page.navigate", url=url)

    def open_when_there(self, url: str, *, within_s: float) -> None:
        """Go to a page whose server may not have started yet."""
        deadline = time.monotonic() + within_s
        while "errorText" in self._ask("Page.navigate", url=url):
            assert time.monotonic() < deadline, f"{url} is not there after {within_s} s"
            time.sleep(0.2)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, is_it: Callable[[Any], bool] = bool, *, within_s: float = 60) -> Any:
        """The value of an expression as soon as it is what is waited for."""
        deadline = time.monotonic() + within_s
        while not is_it(value := self.value(expression)):
            assert time.monotonic() < deadline, f"{expression} is {value!r} after {within_s} s"
            time.sleep(0.1)
        return value

    def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def write(self, text: str) -> None:
        """Write a text into the field that has the focus, in the place of what it has."""
        self.value("document.activeElement.select()")
        self._ask("Input.insertText", text=text)

    def picture(self) -> bytes:
        """The page as it is seen, as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        self._out.write(json.dumps(order).encode() + b"\0")
        self._out.flush()
        while True:  # events of the page come in between
            answer = json.loads(self._read())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> bytes:
        message = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser has ended"
            message += byte
        return bytes(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
