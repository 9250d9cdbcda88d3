"""What a job keeps: its checkpoint, all that belongs to the checkpoint, and a lock while it runs.

```text
<checkpoints>/<application>/<job>/       the state folder, unless checkpoints are elsewhere
    identity.json   the id of this folder, which is in the marks of the job's batches
    job.json        the description of the query that the checkpoint belongs to
    beginning.json  after a reset: the number of the checkpoint, and where it begins
    outputs-1/      for each sink, the rows that its target refused; of the checkpoint with that number
    checkpoint-1/   Spark's; a reset begins checkpoint-2, and leaves this one as it is
<state>/<application>/<job>/             on the machine of the driver
    lock            held by the process that runs the job
    batch.lock      held while a batch runs; a backup takes it, and batch-entry.lock before
    wanted          written by a process that waits for the job, so that the one that has it ends
    checkpoints     where the other folder is, if it is elsewhere
<job>.rebuild/      the same for a view that is rebuilt next to the one that is read
```

All that exactly-once depends on is in the first folder. A driver on another machine that has the same
checkpoints continues the job; one that has another folder would write every result a second time, and is
refused: the newest mark of the job names the folder that its last batch belongs to.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import uuid
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from socket import gethostname
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from headrace.engine.description import Description, check_change
from headrace.errors import HeadraceError, Misuse
from headrace.folders import LocalFolder, local_path
from headrace.streams.batch_barrier import BatchBarrier

if TYPE_CHECKING:
    from headrace.folders import Folder
    from headrace.spark.progress import ProgressMarker

JOB: Final = "job.json"
BEGINNING: Final = "beginning.json"
IDENTITY: Final = "identity.json"
CHECKPOINTS: Final = "checkpoints"
CHECKPOINT: Final = "checkpoint-"
LOCK: Final = "lock"
WANTED: Final = "wanted"
REBUILD: Final = "rebuild"


class JobIsRunning(HeadraceError):
    """Another process on this machine runs the job."""


class JobTakenOver(HeadraceError):
    """Another process goes on with the job."""


class JobIsElsewhere(HeadraceError):
    """The last batch of the job belongs to another folder than the one that is to be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """Where a checkpoint that is not there yet is to begin in every topic."""

    generation: int = 1
    kind: Literal["stream", "start", "end", "offset", "time"] = "stream"
    """`stream`: as each stream says itself."""
    value: int = 0
    """The offset, or the time in milliseconds since 1970."""
    replaces: str | None = None
    """The mark that the job had when it was first started after the reset; None before that."""


class JobFolder:
    """The folder of one job."""

    def __init__(self, path: Path, *, checkpoints: str | None = None) -> None:
        self.path = path
        """The folder on this machine."""
        self._checkpoints = checkpoints
        self._held: IO[str] | None = None

    @staticmethod
    def of(state: Path, app: str, job: str, *, checkpoints: str | None = None) -> JobFolder:
        """The folder of a job; its checkpoints may be elsewhere, on a file system that a cluster shares."""
        if checkpoints is not None and (path := local_path(checkpoints)) is not None:
            checkpoints = str(path.absolute())
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

    @cached_property
    def kept(self) -> Folder:
        """The checkpoints, and what belongs to them."""
        if self._checkpoints is None:
            return LocalFolder(self.path)
        from headrace.spark.folders import folder_at

        return folder_at(self._checkpoints)

    @property
    def checkpoint(self) -> str:
        """The place of the checkpoint that counts."""
        return f"{self._checkpoints or self.path}/{CHECKPOINT}{self.beginning().generation}"

    @property
    def has_begun(self) -> bool:
        """Whether the checkpoint that counts has a batch: then it knows where the job began."""
        generation = self.beginning().generation
        return bool(self.kept.child(f"{CHECKPOINT}{generation}").child("offsets").names())

    @property
    def outputs(self) -> Folder:
        """What the job keeps for its outputs besides topics; it belongs to the checkpoint that counts."""
        return self.kept.child(f"outputs-{self.beginning().generation}")

    @property
    def beside(self) -> JobFolder:
        """The folder of the job when it runs aside, to rebuild its view."""
        elsewhere = None if self._checkpoints is None else f"{self._checkpoints}.{REBUILD}"
        return JobFolder(self.path.with_name(f"{self.name}.{REBUILD}"), checkpoints=elsewhere)

    @property
    def barrier(self) -> BatchBarrier:
        """What stops the job between two batches."""
        return BatchBarrier(self.path)

    @property
    def is_reset(self) -> bool:
        """Whether the job was ever told to begin anew."""
        return self.kept.read(BEGINNING) is not None

    @property
    def local_checkpoints(self) -> Path | None:
        """The folder of the checkpoints; None if only Spark reaches it."""
        return self.path if self._checkpoints is None else local_path(self._checkpoints)

    @property
    def place(self) -> str:
        """Where the checkpoints are, for people."""
        is_local = isinstance(self.kept, LocalFolder)
        return f"{self.kept} on {gethostname()}" if is_local else str(self.kept)

    def identity(self) -> str:
        """The id of the folder, which stays the same when the folder is moved."""
        found = self._read(IDENTITY)
        if found is None:
            if any(name.startswith(CHECKPOINT) for name in self.kept.names()) and not self.is_reset:
                raise Misuse(
                    f"{self.kept} has a checkpoint and no {IDENTITY}: an earlier version wrote it, or files "
                    f"were removed. Reset the job: headrace job reset {self.app}.{self.name} --to start."
                )
            found = {"id": uuid.uuid4().hex}
            self._write(IDENTITY, found)
        return str(found["id"])

    def claim(self, mark: ProgressMarker | None) -> None:
        """Pass if the job may run with this folder; `JobIsElsewhere` if its last batch is of another one.

        A reset replaces what was there before, in whichever folder, but only up to the mark that it found.
        """
        identity, beginning = self.identity(), self.beginning()
        found = "" if mark is None else f"{mark.job_id} {mark.query} {mark.batch}"
        is_ours = mark is None or mark.job_id in ("", identity)
        is_replaced = self.is_reset and beginning.replaces in (None, found)
        if not is_ours and not is_replaced:
            assert mark is not None
            raise JobIsElsewhere(_elsewhere(self, mark))
        if self.is_reset and beginning.replaces is None:
            self._write(BEGINNING, asdict(replace(beginning, replaces=found)))

    def adopt(self, checkpoint: Path) -> None:
        """Go on with a checkpoint that was made elsewhere."""
        beginning = StartPosition(generation=self.beginning().generation + 1)
        place = Path(f"{self.kept}/{CHECKPOINT}{beginning.generation}")
        if place.exists():  # of an attempt that was cut before the next line but one
            shutil.rmtree(place)
        checkpoint.rename(place)
        self._write(BEGINNING, asdict(beginning))

    def delete(self) -> None:
        """Delete the folder, and the one with the checkpoints."""
        self.kept.delete()
        LocalFolder(self.path).delete()

    def beginning(self) -> StartPosition:
        """Which checkpoint counts, and where it begins."""
        written = self._read(BEGINNING)
        return StartPosition() if written is None else StartPosition(**written)

    def description(self) -> Description | None:
        """What the checkpoint was made by; None if the job has never run, or not since its reset."""
        written = self._read(JOB)
        if written is None or written.get("generation") != self.beginning().generation:
            return None
        return Description.from_json(written)

    def accept(self, description: Description) -> None:
        """Write down what runs now, unless the checkpoint stands against it."""
        before = self.description()
        if before is not None:
            check_change(self.name, before, description)
        self._write(JOB, description.to_json())

    def reset(
        self, *, kind: Literal["stream", "start", "end", "offset", "time"], value: int = 0
    ) -> StartPosition:
        """Let the job begin anew, from that place, in a checkpoint of its own."""
        beginning = StartPosition(generation=self.beginning().generation + 1, kind=kind, value=value)
        self.hold()
        try:
            self._write(BEGINNING, asdict(beginning))
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
        if self._checkpoints is not None:
            LocalFolder(self.path).write(CHECKPOINTS, self._checkpoints)

    @property
    def is_known(self) -> bool:
        """Whether the job has been started with this folder."""
        return (self.path / CHECKPOINTS).exists() or (self.path / JOB).exists()

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

    def _read(self, name: str) -> dict[str, Any] | None:
        text = self.kept.read(name)
        if text is None:
            return None
        try:
            content = json.loads(text)
        except ValueError as fault:
            raise Misuse(
                f"{self.kept}/{name} cannot be read ({fault}): it is not as it was written; restore or "
                "delete it."
            ) from fault
        assert isinstance(content, dict)
        return content

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self.kept.write(name, json.dumps(content, indent=2))


def job_folders(state: Path) -> list[JobFolder]:
    """The folders of all jobs that have run with this state folder."""
    return [folder for folder in _all_folders(state) if folder.is_known]


def started_folders(state: Path) -> list[JobFolder]:
    """The folders of all jobs that were ever started with this state folder, if only for a moment."""
    return [folder for folder in _all_folders(state) if (folder.path / LOCK).exists()]


def _all_folders(state: Path) -> list[JobFolder]:
    paths = sorted(path for path in state.absolute().glob("*/*") if path.is_dir())
    return [JobFolder(path, checkpoints=LocalFolder(path).read(CHECKPOINTS)) for path in paths]


def find_job(state: Path, name: str) -> JobFolder:
    """The folder of the job with this name; of equal names in two applications, `app.job` says which."""
    folders = job_folders(state)
    matching = [folder for folder in folders if name in (folder.name, f"{folder.app}.{folder.name}")]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(f"{folder.app}.{folder.name}" for folder in matching or folders) or "none"
    problem = "several applications have a job" if matching else "there is no job"
    raise Misuse(f"{problem} named {name!r} in {state}. Jobs that have run with this state folder: {known}.")


def _elsewhere(folder: JobFolder, mark: ProgressMarker) -> str:
    name = f"{folder.app}.{folder.name}"
    options = f"--state {folder.path.parents[1]}"
    return (
        f"the last results of job {name!r} (batch {mark.batch}) were written with the checkpoint in "
        f"{mark.place}, and this run has {folder.place}: it would read its input again and write its results "
        "a second time. To continue the job, start it with that folder: by --state, or by checkpoints in "
        f"headrace.toml. To start over here: headrace job reset {name} --to start {options}"
    )
