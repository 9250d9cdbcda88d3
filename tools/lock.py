"""Make the lock files from pyproject.toml: hashed requirements, for every Python, no registry addresses."""

import subprocess
import sys

LOCKS = {
    "requirements.lock": ["pyproject.toml", "--extra", "demo", "--group", "build"],
    "requirements-dev.lock": [
        "pyproject.toml",
        "--extra",
        "demo",
        "--group",
        "build",
        "--group",
        "dev",
        "--constraint",
        "requirements.lock",
    ],
    "bench/requirements.lock": [
        "pyproject.toml",
        "--extra",
        "demo",
        "--group",
        "build",
        "--group",
        "bench",
        "--constraint",
        "requirements.lock",
    ],
    "tools/s3/requirements.lock": ["--group", "pyproject.toml:s3"],
}
OPTIONS = [
    "--universal",
    "--python-version",
    "3.11",
    "--generate-hashes",
    "--quiet",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-strip-extras",  # older pips know a pin of coverage[toml] only by that name
    "--custom-compile-command",
    "make lock",
]

for target, sources in LOCKS.items():
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", *OPTIONS, *sources, "--output-file", target],
        check=True,
    )
    print("wrote", target)
