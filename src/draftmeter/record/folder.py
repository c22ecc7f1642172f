"""The run folder: append-only, one line per request, on disk before the next request starts.

::

    runs/NAME-TIME/
        experiment.yaml    the experiment as resolved, secrets out
        environment.json   where and with what it was measured
        requests.jsonl     one RequestRecord per line
        counters.jsonl     one CounterRecord per line
        servers/*.log      output of launched servers
        results.json       the numbers (written at the end, and again by ``report``)

This module is the only place that touches these files. A half-written last line, which is all
that a killed process can leave, is dropped when the folder is opened.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from draftmeter.errors import UsageError
from draftmeter.record.types import CounterRecord, Environment, RequestRecord, RunData

SCHEMA = "draftmeter.run/1"
MAX_LINE_BYTES = 256 * 2**20

_T = TypeVar("_T")
_encoder = msgspec.json.Encoder()


def new_run_id(name: str, now: datetime | None = None) -> str:
    """``NAME-YYYYMMDD-HHMMSS`` in UTC, with characters that suit a folder name."""
    moment = now or datetime.now(UTC)
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name) or 'run'}-{moment:%Y%m%d-%H%M%S}"


class RunFolder:
    """An open run folder, locked against a second writer.

    Use ``create`` for a new run, ``open`` to go on with one; ``load`` reads without locking.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        self._requests = _open_append(path / "requests.jsonl")
        self._counters = _open_append(path / "counters.jsonl")

    @classmethod
    def create(cls, path: Path, experiment: dict[str, Any], environment: Environment) -> RunFolder:
        """Make the folder (mode 0700) and write what is known before the first request."""
        if path.exists() and any(path.iterdir()):
            raise UsageError(
                f"{path} is not empty: name another folder with --out, or go on with --resume"
            )
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (path / "servers").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the run folder {path}: {error.strerror}") from None
        write_atomically(path / "experiment.yaml", msgspec.yaml.encode(experiment))
        folder = cls(path)
        folder.write_environment(environment)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run for more requests."""
        check_schema(path)
        return cls(path)

    def add_request(self, record: RequestRecord) -> None:
        """Append one request; it is on disk when this returns."""
        _append(self._requests, record)

    def add_counters(self, record: CounterRecord) -> None:
        """Append one scrape; it is on disk when this returns."""
        _append(self._counters, record)

    def write_environment(self, environment: Environment) -> None:
        """Write ``environment.json`` (replaced as a whole when targets become known)."""
        write_atomically(self.path / "environment.json", _pretty(environment))

    def write_results(self, results: bytes) -> None:
        """Write ``results.json``."""
        write_atomically(self.path / "results.json", results)

    def log_path(self, target: str) -> Path:
        """Where a launched target's output goes."""
        return self.path / "servers" / f"{target}.log"

    def close(self) -> None:
        """Close the files and release the lock."""
        os.close(self._requests)
        os.close(self._counters)
        os.close(self._lock)


def check_schema(path: Path) -> Environment:
    """The folder's environment; UsageError when it is not a run, or of another version."""
    file = path / "environment.json"
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} is not a run folder: it has no environment.json") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    try:
        schema = msgspec.json.decode(raw).get("schema")
    except (msgspec.DecodeError, AttributeError, RecursionError):
        raise UsageError(f"{file} is damaged: it is not a JSON object") from None
    if schema != SCHEMA:
        raise UsageError(
            f"{path} was written as {str(schema)[:60]!r}; this version reads {SCHEMA!r}. "
            "Use the draftmeter version that made it."
        )
    try:
        return msgspec.json.decode(raw, type=Environment)
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is damaged: {error}") from None


def load(path: Path) -> RunData:
    """Read a run folder, whole or interrupted."""
    environment = check_schema(path)
    experiment = read_experiment(path)
    records = list(_lines(path / "requests.jsonl", RequestRecord))
    counters = list(_lines(path / "counters.jsonl", CounterRecord))
    return RunData(
        environment=environment,
        experiment=experiment,
        reference=str(experiment.get("reference", "")),
        records=records,
        counters=counters,
    )


def read_experiment(path: Path) -> dict[str, Any]:
    """The resolved experiment of a run, as plain data."""
    file = path / "experiment.yaml"
    try:
        data = msgspec.yaml.decode(file.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file} is damaged: it is not a mapping")
    return data


def _lines(path: Path, kind: type[_T]) -> Iterator[_T]:
    decoder = msgspec.json.Decoder(kind)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n"):
                return  # cut off by a kill: the request is as good as never sent
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise UsageError(f"{path}:{number} is damaged: {error}") from None


def _open_append(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    size = os.fstat(fd).st_size
    keep = size
    while keep > 0:  # cut a half-written last line, so that the next one starts clean
        start = max(0, keep - 65536)
        block = os.pread(fd, keep - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep != size:
        os.ftruncate(fd, keep)
    return fd


def _append(fd: int, record: msgspec.Struct) -> None:
    data = memoryview(_encoder.encode(record) + b"\n")
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fdatasync(fd)
    except OSError as error:
        raise UsageError(
            f"cannot write to the run folder: {error.strerror}. What was measured before is kept; "
            "make room and go on with --resume"
        ) from None


def _lock(path: Path) -> int:
    try:
        fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write to the run folder {path}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UsageError(
            f"{path} is in use by another draftmeter; wait for it or stop it"
        ) from None
    return fd


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never half of it."""
    part = path.with_name(path.name + ".part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
