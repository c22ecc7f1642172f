"""The command line as people meet it: right exit codes, one clear message, no traceback."""

import json
import signal
import socket
import subprocess
import sys
import time

import pytest


@pytest.fixture
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_help_names_every_verb(cli):
    text = cli("--help", check=0).stdout
    for verb in ("demo", "check", "measure", "run", "report", "scenarios"):
        assert verb in text
        cli(verb, "--help", check=0)


def test_help_imports_nothing_heavy(cli):
    code = (
        "import sys; sys.argv=['draftmeter','--help']\n"
        "from draftmeter.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'aiohttp','msgspec','numpy','scipy','rich','yaml','prometheus_client'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_unreachable_server(cli, closed_port):
    for verb in ("check", "measure"):
        done = cli(verb, f"http://127.0.0.1:{closed_port}", check=3)
        assert "cannot be reached" in done.stderr
        assert done.stdout == ""


def test_an_address_that_is_none(cli):
    assert "not a server address" in cli("check", "ftp://x", check=2).stderr


def test_https_to_a_plain_server(cli, serve):
    url = serve().url.replace("http:", "https:")
    assert "cannot be reached" in cli("check", url, check=3).stderr


def test_a_missing_key_is_said(cli, serve):
    server = serve(api_key="s3cret-canary")
    done = cli("check", server.url, check=3)
    assert "refuses the credentials" in done.stderr
    assert "--api-key-env" in done.stderr
    done = cli("check", server.url, "--api-key-env", "KEY", check=2)
    assert "KEY, which is not set" in done.stderr
    done = cli("check", server.url, "--api-key-env", "KEY", env={"KEY": "s3cret-canary"}, check=0)
    assert "s3cret-canary" not in done.stdout + done.stderr


def test_a_model_that_is_not_there(cli, serve, tmp_path):
    done = cli("measure", serve().url, "--model", "gpt-99", "-n", "3", "-s", "en_chat", check=3)
    assert "gpt-99" in done.stderr
    assert "404" in done.stderr


@pytest.mark.parametrize(
    ("fault", "words"),
    [("not_streaming", "plain JSON"), ("error_in_stream", "EngineCore"), ("html_error", "502")],
)
def test_a_server_that_cannot_be_measured(cli, serve, fault, words):
    server = serve(fault={"request": "all", "kind": fault})
    done = cli("measure", server.url, "-n", "3", "-s", "en_chat", check=3)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_check_of_a_good_server(cli, serve):
    server = serve(draft_tokens=3, position_acceptance=[0.8, 0.6, 0.4], completion_tokens=96)
    done = cli("check", server.url, "--json", check=0)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["engine"]["text"].startswith("vllm 0.24.0")
    assert {f["status"] for f in found.values()} == {"ok"}
    assert "K=3" in found["speculation"]["text"]
    text = cli("check", server.url, check=0).stdout
    assert all(len(line) <= 80 for line in text.splitlines())


def test_check_sees_a_buffering_proxy_and_exits_1(cli, serve):
    server = serve(fault={"request": "all", "kind": "buffered"})
    done = cli("check", server.url, check=1)
    assert "proxy buffers" in " ".join(done.stdout.split())


def test_check_without_counters(cli, serve):
    done = cli("check", serve(metrics="404").url, "--json", check=0)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["counters"]["status"] == "warning"
    assert "404" in found["counters"]["text"]


def test_measure_prints_a_table_and_keeps_a_folder(cli, serve, tmp_path):
    server = serve(step_ms=2, completion_tokens=64, draft_tokens=1, position_acceptance=[0.6])
    done = cli("measure", server.url, "-n", "3", "-s", "en_chat", "--out", "here", check=0)
    assert "en_chat" in done.stdout
    assert (tmp_path / "here" / "results.json").is_file()
    again = cli("report", "here", check=0)
    assert again.stdout == done.stdout
    as_json = json.loads(cli("report", "here", "--format", "json", check=0).stdout)
    assert as_json == json.loads((tmp_path / "here" / "results.json").read_text())
    assert cli("report", "here", "--format", "md", check=0).stdout.count("|") > 10
    assert cli("report", "here", "--format", "csv", check=0).stdout.startswith(
        "run,scenario,target,"
    )


def test_measure_against_a_plain_server_gives_the_speedup(cli, serve):
    plain = serve(step_ms=4, completion_tokens=64)
    spec = serve(step_ms=5, completion_tokens=64, draft_tokens=1, position_acceptance=[0.8])
    done = cli(
        "measure", spec.url, "--against", plain.url, "-n", "4", "-s", "en_chat", "--json", check=0
    )
    cells = {c["target"]: c for c in json.loads(done.stdout)["cells"]}
    assert cells["server"]["speedup"]["pairs"] == 4
    assert cells["plain"]["speedup"] is None


def test_unknown_words_are_answered_with_the_nearest(cli, serve, tmp_path):
    done = cli("measure", serve().url, "-s", "ja_caht", check=2)
    assert "ja_chat" in done.stderr
    (tmp_path / "x.yaml").write_text(
        "name: x\ntargets:\n  a: {lunch: vllm serve m}\nscenarios: [ja_chat]\n"
    )
    done = cli("run", "x.yaml", check=2)
    assert "x.yaml:3" in done.stderr
    assert "launch" in done.stderr


def test_broken_and_missing_files(cli, tmp_path):
    assert "nowhere.yaml" in cli("run", "nowhere.yaml", check=2).stderr
    (tmp_path / "b.yaml").write_text("name: [unclosed\n")
    assert "b.yaml" in cli("run", "b.yaml", check=2).stderr
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "e.yaml").write_text(
        "name: e\ntargets: {a: {url: 'http://127.0.0.1:9'}}\nscenarios: [./empty.jsonl]\n"
    )
    assert "empty.jsonl" in cli("run", "e.yaml", check=2).stderr


def test_a_launch_command_that_does_not_exist(cli, tmp_path):
    (tmp_path / "x.yaml").write_text(
        "name: x\ntargets:\n  a: {launch: no-such-engine --port {port}}\nscenarios: [en_chat]\n".replace(
            "{launch: no-such-engine --port {port}}", "{launch: 'no-such-engine --port {port}'}"
        )
    )
    done = cli("run", "x.yaml", check=3)
    assert "no-such-engine" in done.stderr
    assert "not found" in done.stderr


def test_report_of_something_else(cli, tmp_path):
    assert "not a run folder" in cli("report", ".", check=2).stderr
    assert "unknown format" in cli("report", ".", "--format", "pdf", check=2).stderr


def test_an_unwritable_place(cli, serve, tmp_path):
    (tmp_path / "file").write_text("x")
    done = cli("measure", serve().url, "-n", "3", "-s", "en_chat", "--out", "file/run", check=2)
    assert "run folder" in done.stderr


def test_a_server_that_is_no_llm(cli):
    code = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            port = server.stdout.readline().strip()
            assert "OpenAI-compatible" in cli("check", f"127.0.0.1:{port}", check=3).stderr
        finally:
            server.kill()


def test_a_reader_that_goes_away_is_no_failure(cli, serve, tmp_path):
    cli("measure", serve().url, "-n", "3", "-s", "en_chat", "--out", "r", check=0)
    done = subprocess.run(
        f"{sys.executable} -m draftmeter report r | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_interrupted_says_how_to_go_on(serve, tmp_path):
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from draftmeter.cli import main; main()"
    )
    server = serve(step_ms=5, completion_tokens=64)
    with subprocess.Popen(
        [sys.executable, "-c", code, "measure", server.url, "-n", "50", "-s", "en_chat", "--out", "r"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    ) as run:  # fmt: skip
        file = tmp_path / "r" / "requests.jsonl"
        end = time.monotonic() + 30
        while time.monotonic() < end and not (file.exists() and file.read_bytes().count(b"\n") > 4):
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert err.splitlines() == [
        "draftmeter: interrupted",
        "  what was measured is kept; go on with: draftmeter run --resume r",
    ]
    assert json.loads((tmp_path / "r" / "results.json").read_text())["cells"][0]["requests"] > 0
