"""Make docs/images/demo.svg: the demo as a terminal shows it, drawn from a real run."""

import re
import sys
from pathlib import Path

from rich.console import Console

from headrace.demo.log_demo import LogDemo

PICTURE = Path(__file__).parents[1] / "docs/images/demo.svg"


def main() -> int:
    """Run the demo, keep what it printed, and draw it."""
    # No live animation: a recorded terminal keeps every picture, and only the last one is wanted.
    console = Console(record=True, width=100, force_terminal=False)
    held = LogDemo(console, seconds=10).run()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    # Uses the fonts of the reader's machine: a picture in the documentation loads nothing from the network.
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="make demo"), flags=re.DOTALL)
    PICTURE.write_text(svg.replace("Fira Code", "monospace"))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
