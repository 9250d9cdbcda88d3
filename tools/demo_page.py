"""Make docs/images/demo-page.png: the page of the demo as a browser shows it in the middle of a real run."""

import io
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console

from headrace.demo.shop_show import ShopShow
from headrace.testing.postgres import free_port
from tests.demo.browser import Browser

PICTURE = Path(__file__).parents[1] / "docs/images/demo-page.png"
SECONDS = 45
MINUTES = 10
"""So many bars are waited for."""


def main() -> int:
    """Run the demo, look at its page, and keep what is seen."""
    port = free_port()
    show = ShopShow(Console(file=io.StringIO(), width=100), SECONDS, port=port)
    play = threading.Thread(target=show.run)
    play.start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(Path(folder)) as browser:
        browser.open_when_there(f"http://127.0.0.1:{port}/", within_s=60)
        bars = (
            "new Set([...document.querySelectorAll('#revenue rect')].map(bar => bar.getAttribute('x'))).size"
        )
        browser.wait(bars, lambda count: count >= MINUTES, within_s=300)
        PICTURE.write_bytes(browser.picture())
    play.join()
    print(f"made {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
