"""A real Prometheus, which scrapes what a test says with the rules of deploy/prometheus."""

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.broker.processes import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yml"


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"there is no {name} here: apt-get install prometheus"
    return found


def promtool(*arguments: str, page: str | None = None) -> str:
    """What promtool prints; it must succeed."""
    run = subprocess.run(
        [program("promtool"), *arguments], input=page, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


class Prometheus:
    """A server that scrapes every second, and evaluates the alert rules as often."""

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [address]}]}
                for name, address in targets.items()
            ],
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML, too

    def __enter__(self) -> Self:
        options = [
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        self._process = subprocess.Popen([program("prometheus"), *options])
        wait_until(self._is_ready, "Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found = self._get("query?" + urllib.parse.urlencode({"query": expression}))
        return list(found["result"])

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {
            alert["labels"]["alertname"]
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=60) as response:
            return json.load(response)["data"]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=60) as response:
                return bool(response.status == 200)
        except OSError:
            return False
