"""A stock that must never be negative, and a process that takes from it: `python -m tests.events.stock`."""

import random
import sys

from headrace.errors import HeadraceError
from headrace.events import Aggregate, Event, EventStore, Limits, Rejected


class Received(Event):
    quantity: int


class Taken(Event):
    quantity: int
    order: str


class Stock(Aggregate):
    def __init__(self) -> None:
        self.quantity = 0

    def receive(self, quantity: int):
        yield Received(quantity=quantity)

    def take(self, quantity: int, order: str):
        if quantity > self.quantity:
            raise Rejected(f"there are {self.quantity}")
        yield Taken(quantity=quantity, order=order)

    def on_received(self, e: Received) -> None:
        self.quantity += e.quantity

    def on_taken(self, e: Taken) -> None:
        self.quantity -= e.quantity


PRODUCTS = 6
LIMITS = Limits(aggregates=3, snapshot_events=20)


def main(broker: str, name: str, worker: str, orders: int) -> None:
    """Take from random products, order by order, each under an id of its own until it is replied."""
    draw = random.Random(worker)
    with EventStore(name, broker=broker, partitions=3, limits=LIMITS) as store:
        for number in range(orders):
            order, product = f"{worker}-{number}", f"p{draw.randrange(PRODUCTS)}"
            command = draw.choice(["take", "take", "receive"])
            arguments = {"quantity": draw.randint(1, 5)} | ({"order": order} if command == "take" else {})
            print("asked", order, product, command, arguments["quantity"], flush=True)
            while True:
                try:
                    version = store.execute(
                        Stock, product, command, command_id=order, timeout="5 seconds", **arguments
                    )
                except Rejected:
                    print("rejected", order, flush=True)
                except HeadraceError:
                    continue  # not replied: again, under the same id
                else:
                    print("done", order, product, version, flush=True)
                break


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
