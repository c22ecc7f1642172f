"""Fixtures shared by the tests: known-answer servers, the command line in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import known_server

SOURCE = Path(__file__).parents[1] / "src"
CAPTURES = Path(__file__).parent / "captures"


@pytest.fixture
def serve():
    """Start known-answer servers; they end with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(known_server.start(config))


@pytest.fixture
def cli(tmp_path):
    """Run ``draftmeter ARGS`` in an empty folder; the finished process, text decoded."""

    def call(*arguments, check=None, env=None, timeout=120, stdin=None):
        done = subprocess.run(
            [sys.executable, "-m", "draftmeter", *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True, timeout=timeout, input=stdin, check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "80", **(env or {})},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, (
                done.returncode,
                done.stdout[-2000:],
                done.stderr[-2000:],
            )
        return done

    return call
