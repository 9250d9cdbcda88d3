"""A bounded local cache of archived batches, in pieces of some megabytes.

A piece is a range of a segment that begins and ends at batch boundaries, and is one file of the cache. A
reader of a piece that is not in the cache gets `RemoteReadPending`, whose `load` starts the download and
calls back, so that the event loop never waits for the archive. Pieces are verified by their checksum, and
evicted as a whole: their readers keep the file open.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.storage.errors import ArchiveError
from headrace.storage.segment import LogFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor
    from pathlib import Path

    from headrace.storage.archive_store import ArchiveStore

log = logging.getLogger(__name__)

CACHE_BYTES: Final = 2**30
"""The default size of the cache."""
FAULT_SECONDS: Final = 1.0
"""How long a failed download is reported before it is tried again."""
MAX_READ_AHEAD: Final = 16
"""No piece is read ahead while this many are being downloaded."""


class Piece(NamedTuple):
    """A range of an object in the archive, and the checksum of its bytes."""

    name: str
    start: int
    size: int
    checksum: int


class RemoteReadPending(ArchiveError):
    """The batches are in the archive, and have to be downloaded before they can be read."""

    def __init__(self, cache: RemoteLogCache, piece: Piece) -> None:
        super().__init__(f"{piece.name} is not in the cache at {piece.start}: retry when it is downloaded")
        self._cache = cache
        self._piece = piece

    def load(self, callback: Callable[[], None]) -> None:
        """Start the download unless it runs; `callback` is called when it succeeds or fails."""
        self._cache.load(self._piece, callback)

    def wait(self) -> None:
        """Download the piece now; for callers that may block. Raises `ArchiveError`."""
        self._cache.load_now(self._piece)


class RemoteLogCache:
    """The pieces that were read most recently, up to `limit_bytes` and the piece that is being read.

    Only one thread uses its methods: the event loop of the broker. Downloads run in the executor, and
    complete in `call_soon`, which must call back in that thread.
    """

    def __init__(
        self,
        store: ArchiveStore,
        folder: Path,
        *,
        limit_bytes: int = CACHE_BYTES,
        executor: Executor | None = None,
        call_soon: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        self._store = store
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._executor = executor
        self._call_soon = call_soon
        self._files: OrderedDict[Piece, LogFile] = OrderedDict()
        self._waiting: dict[Piece, dict[Callable[[], None], None]] = {}
        self._faults: dict[Piece, tuple[float, ArchiveError]] = {}
        self._count = 0
        self.size = 0
        """The bytes in the cache."""
        # Pieces of another run of the broker: it may have crashed while it wrote them.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def open(self, piece: Piece) -> LogFile:
        """The file of a piece.

        Raises `RemoteReadPending` if it has to be downloaded, and `ArchiveError` if that has just failed.
        """
        file = self._files.get(piece)
        if file is not None:
            self._files.move_to_end(piece)
            return file
        until, fault = self._faults.get(piece, (0.0, None))
        if fault is not None and time.monotonic() < until:
            raise fault
        raise RemoteReadPending(self, piece)

    def load(self, piece: Piece, callback: Callable[[], None]) -> None:
        """Download a piece in the background, and call back."""
        if piece in self._files:
            callback()
            return
        waiting = self._waiting.get(piece)
        if waiting is not None:
            waiting[callback] = None
            return
        self._waiting[piece] = {callback: None}
        self._start(piece)

    def read_ahead(self, pieces: Iterable[Piece]) -> None:
        """Download pieces that will probably be read next."""
        if self._executor is None:
            return
        for piece in pieces:
            if piece in self._files or piece in self._waiting or piece in self._faults:
                continue
            if len(self._waiting) >= MAX_READ_AHEAD:
                return
            self._waiting[piece] = {}
            self._start(piece)

    def load_now(self, piece: Piece) -> None:
        """Download a piece, and wait for it."""
        if piece not in self._files:
            self._add(piece, self._download(piece, self._next_path()))

    def _start(self, piece: Piece) -> None:
        path = self._next_path()
        if self._executor is None:
            done: Future[LogFile] = Future()
            try:
                done.set_result(self._download(piece, path))
            except ArchiveError as fault:
                done.set_exception(fault)
        else:
            done = self._executor.submit(self._download, piece, path)
        done.add_done_callback(lambda ended: self._call_soon(lambda: self._loaded(piece, ended)))

    def _loaded(self, piece: Piece, done: Future[LogFile]) -> None:
        callbacks = self._waiting.pop(piece, {})
        fault = done.exception()
        if fault is None:
            self._faults.pop(piece, None)
            self._add(piece, done.result())
        else:
            log.warning("%s", fault)
            known = fault if isinstance(fault, ArchiveError) else ArchiveError(f"archive: {fault}")
            self._forget_faults()
            self._faults[piece] = time.monotonic() + FAULT_SECONDS, known
        for callback in callbacks:
            callback()

    def _forget_faults(self) -> None:
        now = time.monotonic()
        self._faults = {piece: each for piece, each in self._faults.items() if each[0] > now}

    def _next_path(self) -> Path:
        self._count += 1
        return self._folder / f"{self._count:012d}.piece"

    def _download(self, piece: Piece, path: Path) -> LogFile:
        data = self._store.get_range(piece.name, piece.start, piece.size)
        if len(data) != piece.size or crc32c(data) != piece.checksum:
            raise ArchiveError(
                f"archive: {piece.name} is damaged from {piece.start} to {piece.start + piece.size}: "
                "restore the object"
            )
        try:
            path.write_bytes(data)
            file = LogFile(path)
        except OSError as fault:
            raise ArchiveError(f"{path} could not be written: {fault.strerror}; free disk space") from fault
        finally:
            # The open file is enough: no other process reads it, and a crash leaves nothing behind.
            with contextlib.suppress(OSError):
                path.unlink()
        return file

    def _add(self, piece: Piece, file: LogFile) -> None:
        self._files[piece] = file
        self.size += piece.size
        while self.size > self._limit_bytes and len(self._files) > 1:
            evicted, _ = self._files.popitem(last=False)
            self.size -= evicted.size
