import contextlib
import os
import stat

import pytest

from draftmeter.errors import UsageError
from draftmeter.measure.environment import describe
from draftmeter.record.folder import RunFolder, load, new_run_id
from draftmeter.record.types import CounterRecord, CounterSnapshot, RequestRecord


def record(number: int, **more) -> RequestRecord:
    fields = {"target": "t", "scenario": "s", "phase": "measure", "pair": number, "prompt": 0}
    return RequestRecord(id=number, **(fields | more))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "runs" / "x"
    made = RunFolder.create(path, {"name": "x", "reference": "t"}, describe("x", "x", 7))
    yield made
    with contextlib.suppress(OSError):
        made.close()


def test_what_was_added_is_read_back_the_same(folder):
    first = record(0, at_us=[10, 20], pieces=["a", "の\u2028"], kinds="cc", tokens=[1, 3])
    folder.add_request(first)
    folder.add_counters(
        CounterRecord(
            target="t", request=0, moment="after", at=1.0, snapshot=CounterSnapshot(drafts=3.0)
        )
    )
    data = load(folder.path)
    assert data.records == [first]
    assert data.counters[0].snapshot.drafts == 3.0
    assert (data.reference, data.environment.seed) == ("t", 7)


def test_a_line_is_on_disk_when_add_request_returns(folder):
    folder.add_request(record(0))
    assert (folder.path / "requests.jsonl").read_bytes().endswith(b"}\n")


def test_a_half_written_last_line_is_dropped_and_the_next_starts_clean(folder):
    folder.add_request(record(0))
    folder.close()
    with (folder.path / "requests.jsonl").open("ab") as file:
        file.write(b'{"id": 1, "target": "t", "scen')
    assert [r.id for r in load(folder.path).records] == [0]
    again = RunFolder.open(folder.path)
    again.add_request(record(1))
    again.close()
    assert [r.id for r in load(folder.path).records] == [0, 1]


def test_a_damaged_line_in_the_middle_is_named(folder):
    folder.add_request(record(0))
    folder.close()
    with (folder.path / "requests.jsonl").open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(UsageError, match=r"requests\.jsonl:2 is damaged"):
        load(folder.path)


def test_only_one_writer(folder):
    with pytest.raises(UsageError, match="in use by another draftmeter"):
        RunFolder.open(folder.path)


def test_only_its_owner_can_read_it(folder):
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / "requests.jsonl").stat().st_mode) == 0o600


def test_another_schema_version_is_refused(folder):
    file = folder.path / "environment.json"
    file.write_text(file.read_text().replace("draftmeter.run/1", "draftmeter.run/9"))
    with pytest.raises(UsageError, match=r"draftmeter\.run/9.*this version reads"):
        load(folder.path)


def test_a_folder_in_use_for_something_else_is_not_written_into(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="not empty"):
        RunFolder.create(tmp_path, {}, describe("x", "x", 1))
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_not_a_run_folder(tmp_path):
    with pytest.raises(UsageError, match=r"no environment\.json"):
        load(tmp_path)


def test_run_ids_suit_a_folder_name():
    assert new_run_id("私の/run name").startswith("-run-name-")
