"""`headrace backup` and `headrace restore`: backups of a broker's data and of the checkpoints of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import confirm, note, print_json, print_line, print_table, size_text
from headrace.errors import Misuse

if TYPE_CHECKING:
    from headrace.backup.store import BackupStore, Manifest

commands = typer.Typer(no_args_is_help=True, help="Create, list, check and delete backups.")

EMBEDDED_BROKER: Final = "broker"
"""The folder in a state folder where the broker of `headrace run` has its data."""

Target = Annotated[Path, typer.Argument(metavar="TARGET", help="Folder of the backups.")]
Backup = Annotated[
    str | None, typer.Option("--backup", metavar="ID", help="Id of the backup (default: the newest).")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Data directory of the broker (default: that of the broker which `headrace run` starts).",
    ),
]
State = Annotated[
    str | None, typer.Option("--state", metavar="DIR", help="State directory of jobs, as for `headrace run`.")
]


@commands.command()
def create(
    target: Target,
    data: Data = None,
    state: State = None,
    wait: Annotated[
        int, typer.Option("--wait", metavar="SECONDS", min=1, help="How long to wait for a batch to end.")
    ] = 300,
    leave_out_remote: Annotated[
        bool,
        typer.Option(
            "--leave-out-remote",
            help="Leave out checkpoints on a file system that is not mounted (hdfs://, s3a://).",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Back up a broker and its jobs, while they run.

    Example: headrace backup create /mnt/backups --data ./data
    """
    from headrace.backup.creation import Sources, create_backup
    from headrace.settings import Settings

    folder = Settings.read().state(state)
    data = data or folder / EMBEDDED_BROKER
    if not data.is_dir():
        raise Misuse(f"there is no broker's data in {data}: name the data folder with --data.")
    sources = Sources(
        data=data,
        state=folder if folder.is_dir() else None,
        wait_s=wait,
        leaves_out_remote=leave_out_remote,
    )
    manifest = create_backup(target, sources)
    if as_json:
        print_json(_summary(manifest))
        return
    print_line(f"created backup {manifest.id}: {_sizes(manifest)}, {len(manifest.jobs)} jobs")
    _note_left_out(manifest)


@commands.command("list")
def list_(target: Target, as_json: options.Json = False) -> None:
    """List the backups in a folder.

    Example: headrace backup list /mnt/backups
    """
    store = _open(target)
    backups = [store.read(backup) for backup in store.ids()]
    if as_json:
        print_json([_summary(manifest) for manifest in backups])
    elif not backups:
        note(f"there are no backups in {target}")
    else:
        rows = [
            (each.id, size_text(each.total_bytes), size_text(each.new_bytes), ", ".join(each.jobs))
            for each in backups
        ]
        print_table(["backup", "size", "added", "jobs"], rows)


@commands.command()
def check(target: Target, backup: Backup = None) -> None:
    """Read a backup, and compare everything with its checksums.

    Example: headrace backup check /mnt/backups
    """
    store = _open(target)
    manifest = store.read(backup)
    store.check(manifest.files)
    print_line(f"backup {manifest.id} is complete: {_sizes(manifest)}")
    _note_left_out(manifest)


@commands.command()
def prune(
    target: Target,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="How many backups to keep.")],
    yes: options.Yes = False,
) -> None:
    """Delete old backups, and what only they need.

    Example: headrace backup prune /mnt/backups --keep 7 --yes
    """
    store = _open(target)
    confirm(f"Delete all but the newest {keep} backups in {target}?", yes=yes)
    with store.locked():
        deleted = store.prune(keep)
    print_line(f"deleted {len(deleted)} backups")


def restore(
    target: Target,
    backup: Backup = None,
    data: Data = None,
    state: State = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", metavar="DIR", help="Directory of checkpoints outside of the state."),
    ] = None,
) -> None:
    """Restore a broker and its jobs into new folders.

    Example: headrace restore /mnt/backups --data ./data
    """
    from headrace.backup.restoration import Targets, restore_backup
    from headrace.settings import Settings

    folder = Settings.read().state(state)
    targets = Targets(data=data or folder / EMBEDDED_BROKER, state=folder, checkpoints=checkpoints)
    manifest = restore_backup(target, targets, backup)
    print_line(f"restored backup {manifest.id}: {_sizes(manifest)}, {len(manifest.jobs)} jobs")
    _note_left_out(manifest)


def _note_left_out(manifest: Manifest) -> None:
    for job in manifest.left_out:
        note(f"the checkpoints of {job} are not in the backup: they are on a file system of their own")


def _open(target: Path) -> BackupStore:
    from headrace.backup.store import BackupStore

    return BackupStore.open(target)


def _sizes(manifest: Manifest) -> str:
    files = sum(1 for _ in manifest.files)
    return f"{files} files, {size_text(manifest.total_bytes)}, of which {size_text(manifest.new_bytes)} new"


def _summary(manifest: Manifest) -> dict[str, object]:
    return {
        "backup": manifest.id,
        "created_at": manifest.created_at,
        "version": manifest.version,
        "bytes": manifest.total_bytes,
        "new_bytes": manifest.new_bytes,
        "jobs": list(manifest.jobs),
        "left_out": list(manifest.left_out),
    }
