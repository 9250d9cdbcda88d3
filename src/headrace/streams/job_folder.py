"""What a job leaves on disk: its checkpoint, the description of what made it, and a lock while it runs.

```text
<state>/<application>/<job>/
    lock            held by the process that runs the job
    job.json        the description of the query that the checkpoint belongs to
    beginning.json  after a reset: the number of the checkpoint, and where it begins
    outputs-1/      for each sink, the rows that its target refused; of the checkpoint with that number
    checkpoint-1/   Spark's; a reset begins checkpoint-2, and leaves this one as it is
    wanted          written by a process that waits for the job, so that the one that has it ends
<state>/<application>/<job>.rebuild/
                    the same for a view that is rebuilt beside the one that is read
```
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from headrace.errors import HeadraceError, Misuse
from headrace.streams.description import Description, check_change

JOB: Final = "job.json"
BEGINNING: Final = "beginning.json"
LOCK: Final = "lock"
WANTED: Final = "wanted"
REBUILD: Final = "rebuild"


class JobIsRunning(HeadraceError):
    """Another process on this machine runs the job."""


class JobTakenOver(HeadraceError):
    """Another process goes on with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a checkpoint that is not there yet is to begin in every topic."""

    generation: int = 1
    kind: Literal["stream", "start", "end", "offset", "time"] = "stream"
    """`stream`: as each stream says itself."""
    value: int = 0
    """The offset, or the time in milliseconds since 1970."""


class JobFolder:
    """The folder of one job."""

    def __init__(self, path: Path, *, checkpoints: str | None = None) -> None:
        self.path = path
        self._checkpoints = checkpoints
        self._held: IO[str] | None = None

    @staticmethod
    def of(state: Path, app: str, job: str, *, checkpoints: str | None = None) -> JobFolder:
        """The folder of a job; its checkpoints may be elsewhere, on a file system that a cluster shares."""
        elsewhere = None if checkpoints is None else f"{checkpoints.rstrip('/')}/{app}/{job}"
        return JobFolder(state.absolute() / app / job, checkpoints=elsewhere)

    @property
    def app(self) -> str:
        """The name of the application."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.path.name

    @property
    def checkpoint(self) -> str:
        """The place of the checkpoint that counts."""
        return f"{self._checkpoints or self.path}/checkpoint-{self.beginning().generation}"

    @property
    def outputs(self) -> Path:
        """What the job keeps for its outputs besides topics; it belongs to the checkpoint that counts."""
        return self.path / f"outputs-{self.beginning().generation}"

    @property
    def beside(self) -> JobFolder:
        """The folder of the job when it runs aside, to rebuild its view."""
        elsewhere = None if self._checkpoints is None else f"{self._checkpoints}.{REBUILD}"
        return JobFolder(self.path.with_name(f"{self.name}.{REBUILD}"), checkpoints=elsewhere)

    @property
    def is_reset(self) -> bool:
        """Whether the job was ever told to begin anew."""
        return (self.path / BEGINNING).exists()

    def adopt(self, checkpoint: Path) -> None:
        """Go on with a checkpoint that was made elsewhere."""
        beginning = Beginning(generation=self.beginning().generation + 1)
        place = Path(f"{self._checkpoints or self.path}/checkpoint-{beginning.generation}")
        if place.exists():  # of an attempt that was cut before the next line but one
            shutil.rmtree(place)
        checkpoint.rename(place)
        _write(self.path / BEGINNING, asdict(beginning))

    def beginning(self) -> Beginning:
        """Which checkpoint counts, and where it begins."""
        written = _read(self.path / BEGINNING)
        return Beginning() if written is None else Beginning(**written)

    def description(self) -> Description | None:
        """What the checkpoint was made by; None if the job has never run, or not since its reset."""
        written = _read(self.path / JOB)
        if written is None or written.get("generation") != self.beginning().generation:
            return None
        return Description.from_json(written)

    def accept(self, description: Description) -> None:
        """Write down what runs now, unless the checkpoint stands against it."""
        before = self.description()
        if before is not None:
            check_change(self.name, before, description)
        _write(self.path / JOB, description.to_json())

    def reset(self, *, kind: Literal["start", "end", "offset", "time"], value: int = 0) -> Beginning:
        """Let the job begin anew, from that place, in a checkpoint of its own."""
        beginning = Beginning(generation=self.beginning().generation + 1, kind=kind, value=value)
        self.hold()
        try:
            _write(self.path / BEGINNING, asdict(beginning))
        finally:
            self.release()
        return beginning

    def hold(self) -> None:
        """Take the job for this process, until `release` or its end; refuse if another process has it."""
        if self._held is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / LOCK).open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise JobIsRunning(
                f"job {self.name!r} of {self.app!r} is run by another process, which holds "
                f"{self.path / LOCK}: stop that one first."
            ) from None
        self._held = file
        (self.path / WANTED).unlink(missing_ok=True)

    @property
    def is_ours(self) -> bool:
        """Whether this process has the job."""
        return self._held is not None

    def ask_for(self) -> None:
        """Let the process that runs the job know that another one is to go on with it."""
        (self.path / WANTED).touch()

    @property
    def is_wanted(self) -> bool:
        """Whether another process waits for the job."""
        return (self.path / WANTED).exists()

    def release(self) -> None:
        """Let others have the job."""
        if self._held is not None:
            self._held.close()
            self._held = None

    @property
    def is_held(self) -> bool:
        """Whether some process runs the job."""
        try:
            with (self.path / LOCK).open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False


def job_folders(state: Path) -> list[JobFolder]:
    """The folders of all jobs that have run with this state folder."""
    return [JobFolder(path.parent) for path in sorted(state.absolute().glob(f"*/*/{JOB}"))]


def find_job(state: Path, name: str) -> JobFolder:
    """The folder of the job with this name; of equal names in two applications, `app.job` says which."""
    folders = job_folders(state)
    matching = [folder for folder in folders if name in (folder.name, f"{folder.app}.{folder.name}")]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(f"{folder.app}.{folder.name}" for folder in matching or folders) or "none"
    problem = "several applications have a job" if matching else "there is no job"
    raise Misuse(f"{problem} named {name!r} in {state}. Jobs that have run with this state folder: {known}.")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as fault:
        raise Misuse(
            f"{path} cannot be read ({fault}): it is not as it was written; restore or delete it."
        ) from fault
    assert isinstance(content, dict)
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    """Put a file in place as a whole: after a crash the old one or the new one is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
