"""Servers that draftmeter starts: launched without a shell, logged, waited for, ended for sure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from draftmeter.errors import ServerError, UsageError

GRACE_S = 10.0
POLL_S = 0.25
_TAIL_BYTES = 65536
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_TELLING = re.compile(r"error|exception|fatal|cannot|failed|not found|out of memory", re.IGNORECASE)
_NOISE = re.compile(r"^\s*(?:File \"|\^+\s*$|Traceback \(most recent)|\bINFO\b|\bDEBUG\b")


def split_command(launch: str, port: int) -> tuple[list[str], dict[str, str]]:
    """A ``launch`` line as arguments and leading ``NAME=value`` words; no shell is involved.

    Only ``{port}`` is replaced: other braces belong to the command (JSON in vLLM's
    ``--speculative-config``).

    Raises:
        UsageError: unbalanced quotes, or nothing to run.
    """
    try:
        words = shlex.split(launch)
    except ValueError as error:
        raise UsageError(f"launch {launch[:120]!r} cannot be split: {error}") from None
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words:
        raise UsageError(f"launch {launch[:120]!r} names no command")
    return [word.replace("{port}", str(port)) for word in words], env


def free_port() -> int:
    """A TCP port that is free on the loopback address now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ChildServer:
    """A launched server behind its guard; see ``guard.py`` for how it ends."""

    def __init__(
        self,
        name: str,
        launch: str,
        *,
        port: int,
        log_path: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command, words = split_command(launch, port)
        self._env = {**os.environ, **words, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0

    async def start(self) -> None:
        """Start the server; its output goes to the log, appended to what an earlier start wrote."""
        fd = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as log:
            self._begin = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(  # noqa: ASYNC220  returns at once, and polled
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")),
                 str(GRACE_S), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._env,
            )  # fmt: skip

    def exited(self) -> int | None:
        """The server's exit code, None while it runs."""
        return None if self._process is None else self._process.poll()

    def last_line(self) -> str:
        """The last line of the log that says anything, made printable, at most 200 characters."""
        lines = self._lines()
        return lines[-1][:200] if lines else ""

    def error_lines(self, count: int = 3) -> list[str]:
        """The lines of the log that most likely say why it failed."""
        lines = [line for line in self._lines() if not _NOISE.search(line)]
        telling = [line for line in lines if _TELLING.search(line)]
        return [line[:300] for line in (telling or lines)[-count:]]

    async def stop(self) -> None:
        """End the server and everything it started; returns when nothing is left."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        # Shielded by hand: a second Ctrl-C must not leave the wait before the guard is done.
        deadline = time.monotonic() + GRACE_S + 15
        while process.poll() is None and time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue
        if process.poll() is None:
            process.kill()
        process.wait()

    def _lines(self) -> list[str]:
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._begin, size - _TAIL_BYTES))
                raw = log.read(_TAIL_BYTES)
        except OSError:
            return []
        text = _ESCAPES.sub(b"", raw).decode("utf-8", "replace")
        # A progress bar writes over its line: what stands after the last return is what is seen.
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
        printable = ("".join(c if c.isprintable() else " " for c in line).strip() for line in lines)
        return [line for line in printable if line]


async def wait_ready(
    child: ChildServer,
    *,
    probe: Callable[[], Awaitable[bool]],
    timeout_s: float,
    on_line: Callable[[str], None],
) -> None:
    """Wait until ``probe`` says that the server answers.

    Raises:
        ServerError: it ended, or was not ready in time; with the lines of its log that tell why.
    """
    deadline = time.monotonic() + timeout_s
    shown = ""
    while True:
        code = child.exited()
        if code is not None:
            raise ServerError(_ended(child, code))
        if await probe():
            return
        line = child.last_line()
        if line != shown:
            shown = line
            on_line(line)
        if time.monotonic() > deadline:
            raise ServerError(
                f"target {child.name!r}: no first token within {timeout_s:g} s of its start "
                f"(start_timeout); its log ends with: {line or 'nothing'}; log: {child.log_path}"
            )
        await asyncio.sleep(POLL_S)


def _ended(child: ChildServer, code: int) -> str:
    why = " | ".join(child.error_lines()) or "it printed nothing"
    if code == 127 and "cannot start" in why:
        return f"target {child.name!r}: the launch command was not found: {why}"
    return (
        f"target {child.name!r}: the server ended during start (exit code {code}): {why}; "
        f"log: {child.log_path}"
    )
