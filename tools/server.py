"""What every server that the tools start has in common: a block in which it runs."""

from types import TracebackType
from typing import Self


class Server:
    """Something that is started at the beginning of a `with` block and closed at its end."""

    def start(self) -> None:
        """Start it."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, whatever state it is in, and remove what it left."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
