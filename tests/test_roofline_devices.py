"""Device names, the bandwidth probe, and the two verbs."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from draftmeter.errors import UsageError
from draftmeter.roofline import bandwidth
from draftmeter.roofline.devices import device_named, devices, peak_gb_s
from support.roofline_models import CONFIGS, QWEN_27B

RTX = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def test_devices_are_matched_by_their_full_name():
    assert device_named("nvidia  h100 PCIe").bandwidth_gb_s == 2000
    assert device_named("NVIDIA H100 80GB HBM3").bandwidth_gb_s == 3350
    assert device_named("NVIDIA L4").bandwidth_gb_s == 300
    assert device_named("NVIDIA L40").bandwidth_gb_s == 864
    assert device_named(RTX).bandwidth_gb_s == 1792


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("H100", "NVIDIA H100 PCIe"),  # three different cards: never guessed
        ("L4", "NVIDIA L4"),
        ("NVIDIA RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell"),
        ("RTX 5090", "NVIDIA GeForce RTX 5090"),
        ("M4 Max", "Apple M4 Max"),
    ],
)
def test_a_part_of_a_name_is_a_question_not_an_answer(name, offered):
    with pytest.raises(UsageError, match="not in the device table") as caught:
        device_named(name)
    assert offered in str(caught.value)
    assert "bandwidth in GB/s" in str(caught.value)


def test_the_table_is_whole():
    names = [d.name.casefold() for d in devices()]
    assert len(names) == len(set(names)) > 60
    assert all(50 < d.bandwidth_gb_s < 10_000 and d.source for d in devices())


def test_peak_from_clock_and_bus_width():
    assert peak_gb_s(14001, 512) == pytest.approx(1792, abs=0.2)
    assert peak_gb_s(3996, 7680) == pytest.approx(7672, abs=0.5)


def test_arrays_are_beyond_the_cache_and_within_memory():
    mib = 2**20
    assert bandwidth.array_bytes(32 * mib, 64 * 2**30) == 128 * mib
    assert bandwidth.array_bytes(None, None) == 64 * mib
    assert bandwidth.array_bytes(512 * mib, 2**40) == 1024 * mib
    assert bandwidth.array_bytes(512 * mib, 1000 * mib) == 100 * mib


def test_probe_of_the_cpus(monkeypatch):
    monkeypatch.setattr(bandwidth, "array_bytes", lambda *_: 8 * 2**20)
    tracemalloc.start()
    found = bandwidth.probe_cpu(3, threads=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.threads == 2
    assert found.array_bytes == 8 * 2**20
    assert min(found.read_gb_s, found.copy_gb_s, found.add_gb_s) > 0
    assert peak < 48 * 2**20  # three arrays, and what importing costs


@pytest.fixture
def configured(tmp_path):
    """A folder with the 27B's configuration."""
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN_27B))
    return folder


def test_json_contract(cli, configured):
    done = cli("roofline", configured, "--weights", "nvfp4", "--device", RTX, "--json", check=0)
    found = json.loads(done.stdout)
    assert found["model"] == "qwen"
    assert found["parameters"] == 27_781_427_952
    assert found["read_parameters"] == pytest.approx(25.625e9, rel=1e-4)
    assert found["weight_bytes"] == pytest.approx(16.25e9, rel=1e-3)
    assert found["state_bytes"] == 301_989_888
    assert found["kv_bytes_per_token"] == 65_536
    assert found["draft_bytes_per_pass"] == pytest.approx(3.392e9, rel=1e-3)
    assert found["bandwidth_gb_s"] == 1792
    assert found["ceiling_tok_s"] == pytest.approx(108.3, abs=0.05)
    read = [c for c in found["components"] if c["read"]]
    assert sum(c["bytes"] for c in read) == pytest.approx(found["weight_bytes"], abs=9)
    assert all(c["bytes"] == 0 and c["why"] for c in found["components"] if not c["read"])
    third = found["speculative"][2]
    assert third["step_ratio"] == pytest.approx(1.642, abs=1e-3)
    assert third["break_even_rate"] == pytest.approx(0.214, abs=1e-3)
    assert third["ceiling_tok_s"] == pytest.approx(4 * 1792 / 27.18, rel=1e-3)


def test_what_is_not_known_is_null(cli, configured, tmp_path):
    raw = {**CONFIGS["Llama-3.1-8B"]}
    (configured / "config.json").write_text(json.dumps(raw))
    done = cli("roofline", configured / "config.json", "--json", "--draft-tokens", "2", check=0)
    found = json.loads(done.stdout)
    assert found["draft_bytes_per_pass"] is None
    assert [s["draft_tokens"] for s in found["speculative"]] == [2]
    if found["bandwidth_gb_s"] is None:  # a machine without an NVIDIA GPU
        assert found["ceiling_tok_s"] is None


def test_words_fit_eighty_columns_and_begin_with_the_answer(cli, configured):
    done = cli("roofline", configured, "--weights", "nvfp4", "--bandwidth", "1792",
               "--context", "32768", "--kv-dtype", "fp8", "--batch", "2", check=0)  # fmt: skip
    lines = done.stdout.splitlines()
    # 16.245 GB + 2 x (0.302 + 1.074) = 18.997 GB
    assert lines[0].startswith("qwen: a decode step must read 19.00 GB for 2 sequences, so")
    assert max(map(len, lines)) <= 80
    assert "vision" in done.stdout
    assert "note: sizes follow from config.json" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "H100"], "did you mean"),
        (["--bandwidth", "0"], "must be a number of GB/s above 0"),
        (["--bandwidth", "nan"], "must be a number of GB/s above 0"),
        (["--bandwidth", "1", "--device", "NVIDIA L4"], "not both"),
        (["--weights", "int3"], "int3"),
        (["--draft-tokens", "0"], "draft-tokens"),
    ],
)
def test_wrong_options_end_with_two(cli, configured, options, message):
    done = cli("roofline", configured, *options, check=2)
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_no_such_model(cli):
    done = cli("roofline", "nowhere", check=2)
    assert "no such file or folder" in done.stderr
