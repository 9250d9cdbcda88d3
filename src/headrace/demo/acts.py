"""What the demo can show."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Act(StrEnum):
    """What is shown."""

    SHOP = "shop"
    LOG = "log"


def play(act: Act, console: Console, seconds: float, *, chaos: bool = False, port: int = 0) -> bool:
    """Play an act; whether all checks held."""
    if act is Act.LOG:
        from headrace.demo.log_show import Show

        return Show(console, seconds).run()
    from headrace.demo.shop_show import ShopShow

    return ShopShow(console, seconds, chaos=chaos, port=port).run()
