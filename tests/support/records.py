"""Small builders of records for the tests of analysis; times are made, not measured."""

from __future__ import annotations

from draftmeter.record.types import (
    CounterRecord,
    CounterSnapshot,
    Environment,
    RequestRecord,
    RunData,
    TargetInfo,
    Usage,
)

MTP3 = TargetInfo(
    engine="vllm", model="m", speculative=True, method="mtp", draft_tokens=3, chunk_is_step=True
)
PLAIN = TargetInfo(engine="vllm", model="m", speculative=False, chunk_is_step=True)
QUIET = TargetInfo(engine="openai", metrics_problem="no /metrics")


TOTAL_ONLY = {"tokens": None, "token_source": "final_usage"}
UNCOUNTED = {"tokens": None, "token_source": None, "usage": None}


def record(chunks=None, *, ttft_us=50_000, gap_us=10_000, target="t", pair=0, **more):
    """One chunk per entry of ``chunks`` (its tokens), the first after ``ttft_us``, then one per ``gap_us``."""
    chunks = [1] * 101 if chunks is None else chunks
    fields = {
        "id": 0,
        "target": target,
        "scenario": "s",
        "phase": "measure",
        "pair": pair,
        "prompt": 0,
        "at_us": [ttft_us + gap_us * i for i in range(len(chunks))],
        "pieces": [f"w{i} " for i in range(len(chunks))],
        "kinds": "c" * len(chunks),
        "tokens": chunks,
        "token_source": "token_ids",
        "usage": Usage(completion_tokens=sum(chunks)),
        "finish_reason": "length",
    }
    return RequestRecord(**{**fields, **more})


def readings(request, before, after, *, target="t", settled=True):
    """The two counter readings around a request."""
    return [
        CounterRecord(target=target, request=request, moment="before", at=0.0,
                      snapshot=CounterSnapshot(**before)),
        CounterRecord(target=target, request=request, moment="after", at=1.0,
                      snapshot=CounterSnapshot(**after), settled=settled),
    ]  # fmt: skip


def run_of(records, infos, *, counters=(), reference="plain", experiment=None):
    """A run folder's content."""
    environment = Environment(
        schema="draftmeter.run/1", run_id="r1", name="r", started="2026-01-01T00:00:00Z",
        draftmeter="0", python="3", platform="p", targets=infos,
    )  # fmt: skip
    plan = {"targets": {name: {} for name in infos}, "scenarios": [{"name": "s"}],
            "requests": {"count": 10, "pilot": 10}} | (experiment or {})  # fmt: skip
    return RunData(environment=environment, experiment=plan, reference=reference,
                   records=list(records), counters=list(counters))  # fmt: skip
