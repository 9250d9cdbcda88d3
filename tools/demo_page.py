"""Make docs/images/demo-page.png: the page of the demo as a browser shows it in the middle of a real run."""

import io
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console

from headrace.demo.shop import ShopDemo
from headrace.testing.postgres import free_port
from tests.demo.browser import Browser

PICTURE = Path(__file__).parents[1] / "docs/images/demo-page.png"
SECONDS = 60
SEEN = {"#revenue rect": 44, "#hot rect": 8, "#spend rect": 8, "#mailbox li": 8}
"""What is waited for: bars and lines."""
COUNT = "document.querySelectorAll('{}').length"


def main() -> int:
    """Run the demo, look at its page, and keep what is seen."""
    port = free_port()
    show = ShopDemo(Console(file=io.StringIO(), width=100), SECONDS, port=port)
    play = threading.Thread(target=show.run)
    play.start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(Path(folder)) as browser:
        browser.open_when_there(f"http://127.0.0.1:{port}/", within_s=60)
        for selector, least in SEEN.items():
            browser.wait(COUNT.format(selector), least.__le__, within_s=300)
        PICTURE.write_bytes(browser.picture())
    play.join()
    print(f"made {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
