"""The shop's aggregates that the tests use."""

from headrace.events import Aggregate, Event, Rejected


class CartCreated(Event):
    owner: str = "somebody"


class Added(Event):
    product: str
    quantity: int


class Removed(Event):
    product: str
    quantity: int


class CheckedOut(Event):
    pass


class Cart(Aggregate):
    def __init__(self) -> None:
        self.items: dict[str, int] = {}
        self.closed = False

    def create(self, owner: str = "somebody"):
        yield CartCreated(owner=owner)

    def add(self, product: str, quantity: int):
        if self.closed:
            raise Rejected("the cart is checked out")
        yield Added(product=product, quantity=quantity)

    def add_all(self, products: list[str]):
        for product in products:
            yield from self.add(product, 1)

    def remove(self, product: str, quantity: int):
        if self.items.get(product, 0) < quantity:
            raise Rejected(f"there are not {quantity} of {product}")
        yield Removed(product=product, quantity=quantity)

    def check_out(self):
        yield CheckedOut()

    def on_cart_created(self, e: CartCreated) -> None:
        pass

    def on_added(self, e: Added) -> None:
        self.items[e.product] = self.items.get(e.product, 0) + e.quantity

    def on_removed(self, e: Removed) -> None:
        self.items[e.product] -= e.quantity
        if not self.items[e.product]:
            del self.items[e.product]

    def on_checked_out(self, e: CheckedOut) -> None:
        self.closed = True
