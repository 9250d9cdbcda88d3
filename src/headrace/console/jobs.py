"""Jobs and captures: what their processes say about them, and requests to restart or reset a job.

The processes that run jobs write their status to a topic (`streams/job_status.py`), on whichever machine they
run. Requests go the same way: who may write to the topic of requests may restart and reset jobs.
"""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from headrace.capture.offsets import TOPIC as CAPTURES_TOPIC
from headrace.capture.postgres.replication import write_lsn
from headrace.capture.registry import list_captures as read_captures
from headrace.cli.reader import read_position
from headrace.folders import local_path
from headrace.gateway.errors import HttpError
from headrace.streams.job_folder import job_folders
from headrace.streams.job_status import (
    PLAN,
    STALE_S,
    JobRequest,
    StatusReader,
    check_action,
    send_request,
)

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.console.app import Context
    from headrace.streams.job_folder import JobFolder

LOST: Final = "lost"
"""The state of a job whose process has not said anything for a while."""
STOPPED: Final = "stopped"


class JobStatuses:
    """The newest status of each job, read on from where the last reader stopped."""

    def __init__(self) -> None:
        self._reader = StatusReader()
        self._lock = threading.Lock()

    def read(self, cluster: Cluster) -> dict[str, dict[str, Any]]:
        """The statuses and plans by their keys."""
        with self._lock:
            return dict(self._reader.read(cluster))


def read_jobs(context: Context) -> dict[str, dict[str, Any]]:
    """The status of each job by its full name, with those that only the state folder knows."""
    statuses = context.statuses.read(context.session.cluster)
    now_ms = time.time() * 1000
    found = {}
    for name, status in statuses.items():
        if status.get("kind") != "job" or name.endswith(PLAN):
            continue
        plan = statuses.get(f"{name}{PLAN}", {})
        inputs, outputs = plan.get("inputs", []), plan.get("outputs", [])
        late = plan.get("late_topic")
        found[name] = {**status, "name": name, "inputs": inputs, "outputs": outputs, "late_topic": late}
        if status["state"] != STOPPED and now_ms - status["updated_ms"] > STALE_S * 1000:
            found[name]["state"] = LOST
    for folder in _folders(context):
        name = f"{folder.app}.{folder.name}"
        description = folder.description()
        if name in found or description is None:
            continue
        found[name] = {
            "name": name,
            "app": folder.app,
            "job": folder.name,
            "state": "running" if folder.is_held else STOPPED,
            "inputs": list(description.inputs),
            "outputs": [{"name": description.output, "kind": "topic"}] if description.output else [],
        }
    return dict(sorted(found.items()))


def list_jobs(context: Context) -> dict[str, Any]:
    """The jobs with their figures."""
    return {"jobs": list(read_jobs(context).values())}


def describe_job(context: Context) -> dict[str, Any]:
    """A job with its plan, and the state of its operators if the state folder is on this machine."""
    name = context.path["job"]
    jobs = read_jobs(context)
    if name not in jobs:
        known = ", ".join(jobs) or "none"
        raise HttpError(
            HTTPStatus.NOT_FOUND, f"no job {name!r} has run on this cluster. Known jobs: {known}."
        )
    plan = context.statuses.read(context.session.cluster).get(f"{name}{PLAN}")
    folder = _folder(context, name)
    return {
        **jobs[name],
        "plan": plan,
        "operators": [] if folder is None else _operators(folder),
        "checkpoint": None if folder is None else folder.checkpoint,
        "resettable": folder is not None or jobs[name]["state"] not in (STOPPED, LOST),
    }


def _operators(folder: JobFolder) -> list[Any]:
    from headrace.state.inspection import list_operators

    location = f"{folder.checkpoint}/operators"
    return [] if local_path(location) is None else list_operators(location)


def _folders(context: Context) -> list[JobFolder]:
    state = context.options.state
    return [] if state is None or not state.is_dir() else job_folders(state)


def _folder(context: Context, name: str) -> JobFolder | None:
    folders = (each for each in _folders(context) if f"{each.app}.{each.name}" == name)
    return next(folders, None)


# --------------------------------------------------------------------------------------------------- requests


def restart(context: Context, _: dict[str, Any]) -> dict[str, Any]:
    """Ask the process that runs a job to stop it after its current batch, and to start it again."""
    name = context.path["job"]
    job = read_jobs(context).get(name)
    if job is None or job["state"] in (STOPPED, LOST):
        raise HttpError(
            HTTPStatus.CONFLICT,
            f"no process runs the job {name!r}: start its application with `headrace run`",
        )
    return {"request": _send(context, JobRequest(job=name, action="restart"))}


def reset(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    """Restart a job with empty state from a position; `confirm` has to be the name of the job.

    A job that no process runs is reset in the state folder, if that is on this machine.
    """
    name = context.path["job"]
    if body.get("confirm") != name:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"type the name of the job to confirm the reset: {name}")
    try:
        position = read_position(str(body.get("to", "")))
    except ValueError as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, str(fault)) from None
    job = read_jobs(context).get(name)
    if job is None:
        raise HttpError(HTTPStatus.NOT_FOUND, f"no job {name!r} has run on this cluster")
    request = JobRequest(job=name, action="reset", kind=position.kind.value, value=position.value)
    if job["state"] not in (STOPPED, LOST):
        return {"request": _send(context, request)}
    folder = _folder(context, name)
    if folder is None:
        raise HttpError(
            HTTPStatus.CONFLICT,
            f"no process runs the job {name!r}. Reset it on its machine: headrace job reset {name} --to "
            f"{body['to']}",
        )
    sent = _send(context, request)  # the broker decides whether the user may do this
    folder.reset(kind=position.kind.value, value=position.value)
    return {"request": sent, "done": True}


def _send(context: Context, request: JobRequest) -> str:
    check_action(request)
    send_request(context.session.cluster, request, user=context.user)
    return request.id


# --------------------------------------------------------------------------------------------------- captures


def list_captures(context: Context) -> dict[str, Any]:
    """The captures of databases: their committed position, and what their processes say if they run."""
    session = context.session
    statuses = context.statuses.read(session.cluster)
    now_ms = time.time() * 1000
    said = {
        status["capture"]: status
        for status in statuses.values()
        if status.get("kind") == "capture" and now_ms - status["updated_ms"] < STALE_S * 1000
    }
    known = []
    if CAPTURES_TOPIC in session.cluster.topics((CAPTURES_TOPIC,)):
        known = read_captures(str(session.address))
    return {
        "captures": [
            {
                "capture": each.name,
                "database": each.address,
                "position": write_lsn(each.position),
                "newest_ms": each.time_ms or None,
                "tables": {name: table.topic for name, table in each.tables.items()},
                "status": said.get(each.name),
            }
            for each in known
        ]
    }
