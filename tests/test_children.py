"""Child servers: started without a shell, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftmeter.errors import ServerError, UsageError
from draftmeter.measure import children
from draftmeter.measure.children import ChildServer, free_port, split_command, wait_ready

PY = sys.executable


def test_a_command_is_split_without_a_shell():
    words, env = split_command(
        """A=1 vllm serve m --port {port} --speculative-config '{"method":"mtp","k":{"x":3}}' $HOME ; ls""",
        81,
    )
    assert words == ["vllm", "serve", "m", "--port", "81", "--speculative-config",
                     '{"method":"mtp","k":{"x":3}}', "$HOME", ";", "ls"]  # fmt: skip
    assert env == {"A": "1"}


@pytest.mark.parametrize("text", ["vllm 'serve", "", "A=1"])
def test_a_command_that_is_none(text):
    with pytest.raises(UsageError, match="launch"):
        split_command(text, 1)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, limit_s=15):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it never came true")


def child(tmp_path, code, **more):
    script = tmp_path / "child.py"
    script.write_text(code)
    return ChildServer(
        "t", f"{PY} {script} {{port}}", port=free_port(), log_path=tmp_path / "log", **more
    )


def pids(tmp_path, count):
    file = tmp_path / "pids"
    lines = until(lambda: file.exists() and len(r := file.read_text().split()) >= count and r)
    return [int(p) for p in lines]


NOTE = """
import os, signal, subprocess, sys, time
def note():
    with open("{folder}/pids", "a") as f: f.write(f"{{os.getpid()}}\\n")
note()
"""
STUBBORN = NOTE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)\n"
FAMILY = (
    NOTE
    + """
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note()
        while True: time.sleep(1)
while True: time.sleep(1)
"""
)


async def test_stop_ends_it(tmp_path):
    server = child(tmp_path, NOTE.format(folder=tmp_path) + "time.sleep(600)\n")
    await server.start()
    (pid,) = pids(tmp_path, 1)
    await server.stop()
    assert not alive(pid)
    assert server.exited() is not None


async def test_one_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "GRACE_S", 0.3)
    server = child(tmp_path, STUBBORN.format(folder=tmp_path))
    await server.start()
    (pid,) = pids(tmp_path, 1)
    await server.stop()
    assert not alive(pid)


async def test_children_of_the_server_that_left_its_session_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "GRACE_S", 0.3)
    server = child(tmp_path, FAMILY.format(folder=tmp_path))
    await server.start()
    family = pids(tmp_path, 5)
    await server.stop()
    assert [pid for pid in family if alive(pid)] == []


async def test_what_a_dead_server_leaves_behind_is_ended_too(tmp_path):
    code = FAMILY.replace('while True: time.sleep(1)\n"', "").format(folder=tmp_path)
    code = code.rpartition("while True")[0] + "time.sleep(0.5); sys.exit(3)\n"
    server = child(tmp_path, code)
    await server.start()
    family = pids(tmp_path, 5)
    assert until(server.exited) == 3
    await server.stop()
    assert [pid for pid in family if alive(pid)] == []


def test_sigkill_of_draftmeter_leaves_nothing(tmp_path):
    (tmp_path / "child.py").write_text(STUBBORN.format(folder=tmp_path))
    code = (
        "import asyncio, pathlib, sys\n"
        "from draftmeter.measure import children\n"
        "children.GRACE_S = 0.3\n"
        "async def main():\n"
        f"    s = children.ChildServer('t', '{PY} {tmp_path}/child.py {{port}}', port=1,"
        f" log_path=pathlib.Path('{tmp_path}/log'))\n"
        "    await s.start(); await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    source = Path(children.__file__).parents[2]
    parent = subprocess.Popen([PY, "-c", code], env={**os.environ, "PYTHONPATH": str(source)})
    (pid,) = pids(tmp_path, 1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not alive(pid))


async def never():
    return False


async def ready(server, timeout_s=20.0, probe=never):
    seen = []
    try:
        await server.start()
        await wait_ready(server, probe=probe, timeout_s=timeout_s, on_line=seen.append)
    finally:
        await server.stop()
    return seen


async def test_one_that_dies_says_why(tmp_path):
    server = child(tmp_path, "print('INFO loading')\nraise RuntimeError('CUDA out of memory')\n")
    with pytest.raises(ServerError, match=r"'t'.*exit code 1.*CUDA out of memory.*log: "):
        await ready(server)


async def test_a_command_that_is_not_there(tmp_path):
    server = ChildServer("t", "no-such-engine {port}", port=1, log_path=tmp_path / "log")
    with pytest.raises(ServerError, match=r"launch command was not found.*no-such-engine"):
        await ready(server)


async def test_one_that_never_gets_ready(tmp_path):
    server = child(
        tmp_path, "import time\nprint('Loading weights: 3 %', flush=True)\ntime.sleep(600)\n"
    )
    with pytest.raises(ServerError, match=r"no first token within 1 s.*Loading weights: 3 %"):
        await ready(server, timeout_s=1.0)


async def test_the_last_line_is_shown_without_its_escapes(tmp_path):
    code = r"""
import sys, time
sys.stdout.write("\x1b[31mstart\x1b[0m\n10 %\r20 %\r\x1b]0;title\x0730 %\r"); sys.stdout.flush(); time.sleep(600)
"""
    server = child(tmp_path, code)
    await server.start()
    try:
        assert until(server.last_line) in ("start", "30 %")
        until(lambda: server.last_line() == "30 %")
    finally:
        await server.stop()


async def test_ready_when_the_probe_says_so(tmp_path):
    server = child(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")

    async def probe():
        await asyncio.sleep(0)
        return server.last_line() == "up"

    await ready(server, probe=probe)


async def test_a_restart_does_not_show_the_earlier_log(tmp_path):
    (tmp_path / "log").write_text("old error\n")
    server = child(tmp_path, "import sys\nsys.exit('new trouble')\n")
    with pytest.raises(ServerError) as caught:
        await ready(server)
    assert "new trouble" in str(caught.value)
    assert "old error" not in str(caught.value)
    assert (tmp_path / "log").read_text().startswith("old error")
