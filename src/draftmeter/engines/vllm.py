"""vLLM: V1 counters per engine and model, token ids and drafting in the response."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from draftmeter.engines.model import Drafted, Engine, Facts, Identity, Speculation
from draftmeter.engines.pages import (
    Series,
    has_series,
    labels_of,
    mapping,
    only_model,
    owned_by,
    positive,
    served_models,
    word,
)
from draftmeter.record.types import CounterSnapshot, DraftCounts
from draftmeter.wire.chat import FinalFields
from draftmeter.wire.prometheus import Sample

_SPEC = "vllm:spec_decode_"
_DRAFTS = f"{_SPEC}num_drafts"
_DRAFTED = f"{_SPEC}num_draft_tokens"
_ACCEPTED = f"{_SPEC}num_accepted_tokens"
_PER_POSITION = f"{_SPEC}num_accepted_tokens_per_pos"
_GENERATION = "vllm:generation_tokens"
_PROMPT = "vllm:prompt_tokens"
_COUNTERS = (_DRAFTS, _DRAFTED, _ACCEPTED, _PER_POSITION, _GENERATION, _PROMPT)
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
# Gauges of the engine before V1: averages since some start, not counts (field case 19).
_V0_GAUGES = (f"{_SPEC}draft_acceptance_rate", f"{_SPEC}efficiency")


def recognises(facts: Facts) -> bool:
    """``vllm:`` metrics, models owned by vllm, or a ``/version`` that nobody else claims."""
    if has_series(facts.samples, "vllm:") or owned_by(facts.models, "vllm"):
        return True
    claimed = any(m.get("owned_by") for m in served_models(facts.models))
    return not claimed and word(mapping(facts.version).get("version")) is not None


def identify(facts: Facts) -> Identity:
    """Speculation is told by its series, which appear only when it is on (field case 18)."""
    model = only_model(facts.models)
    name = model.get("id")
    speculative, draft_tokens = None, None
    if has_series(facts.samples, "vllm:"):
        samples = facts.samples or ()
        speculative = has_series(samples, _SPEC)
        draft_tokens = len(read_counters(samples, name).accepted_at or ()) or None
    return Identity(
        version=word(mapping(facts.version).get("version")),
        model=name,
        speculative=speculative,
        draft_tokens=draft_tokens,
        max_context=positive(model.get("max_model_len")),
    )


def read_counters(samples: tuple[Sample, ...], model: str | None) -> CounterSnapshot:
    """Counters of one model, summed over its engines (field cases 12, 13, 18, 19).

    When the model cannot be told apart from others, nothing but the models is known.
    """
    ours = [s for s in samples if s.name.startswith("vllm:")]
    models = list(labels_of(ours, "model_name"))
    chosen, note = _choose(models, model)
    notes = [note] if note else []
    if models and chosen is None:
        return CounterSnapshot(models=models, notes=notes)
    series = Series([s for s in ours if s.labels.get("model_name") == chosen], notes)
    gauges = [gauge for gauge in _V0_GAUGES if has_series(ours, gauge)]
    if gauges:
        notes.append(f"gauges of an older vLLM, averages that are not used: {', '.join(gauges)}")
    return CounterSnapshot(
        drafts=series.total(_DRAFTS),
        drafted=series.total(_DRAFTED),
        accepted=series.total(_ACCEPTED),
        accepted_at=series.positions(_PER_POSITION),
        generation_tokens=series.total(_GENERATION),
        prompt_tokens=series.total(_PROMPT),
        running=series.total(_RUNNING),
        waiting=series.total(_WAITING),
        created=series.created(_COUNTERS),
        engines=max(1, len(list(labels_of(series.samples, "engine")))),
        models=models,
        notes=notes,
    )


def _choose(models: list[str], wanted: str | None) -> tuple[str | None, str | None]:
    """The ``model_name`` to read, and what the reader should know about the choice."""
    if wanted in models:
        return wanted, None
    if not models:
        return None, None
    if len(models) == 1:
        if wanted is None:
            return models[0], None
        return models[0], f"counters are of {word(models[0])}, the only model there"
    some = ", ".join(str(word(m)) for m in models[:5])
    if wanted is None:
        return None, f"counters are of several models, and none was named: {some}"
    return None, f"no counters of {word(wanted)}; there are those of {some}"


_CONFIG_FLAGS = ("--speculative-config", "--speculative_config", "-sc")


def read_launch(words: Sequence[str]) -> Speculation:
    """Method and K of ``--speculative-config JSON``; no page of the server tells the method."""
    place = _config_place(words)
    if place is None:
        return Speculation()
    config = place[2]
    return Speculation(word(config.get("method")), positive(config.get("num_speculative_tokens")))


def _config_place(words: Sequence[str]) -> tuple[int, str, dict[str, Any]] | None:
    """Where a command holds its speculation: index of the word, what stands before the JSON, it."""
    for i, found in enumerate(words):
        flag, equals, value = found.partition("=")
        if flag not in _CONFIG_FLAGS:
            continue
        place = i if equals else i + 1
        text = value if equals else "".join(words[i + 1 : i + 2])
        try:
            return place, f"{flag}=" if equals else "", dict(mapping(msgspec.json.decode(text)))
        except (msgspec.DecodeError, RecursionError):
            return None
    return None


def with_draft_tokens(words: Sequence[str], draft_tokens: int) -> list[str] | None:
    """The command with another ``num_speculative_tokens``; a table by batch size is dropped."""
    place = _config_place(words)
    if place is None:
        return None
    index, before, config = place
    config.pop("num_speculative_tokens_per_batch_size", None)
    text = msgspec.json.encode({**config, "num_speculative_tokens": draft_tokens}).decode()
    return [*words[:index], before + text, *words[index + 1 :]]


def flags(draft_tokens: int, method: str | None, words: Sequence[str]) -> str:
    """``--speculative-config JSON`` with K, everything else as it was launched with."""
    if draft_tokens == 0:
        return "leave --speculative-config out"
    changed = with_draft_tokens(words, draft_tokens)
    place = _config_place(changed or ())
    config = place[2] if place else {"method": method or "METHOD"}
    text = msgspec.json.encode({**config, "num_speculative_tokens": draft_tokens}).decode()
    return f"--speculative-config {shlex.quote(text)}"


def read_drafting(final: FinalFields) -> Drafted | None:
    """``metrics.speculative_decoding`` of the last chunk.

    accepted_at[i] = steps that accepted more than i tokens = sum of histogram[j] over j > i.
    """
    told = final.speculative_decoding
    if told is None or (told.num_spec_steps is None and told.num_draft_tokens is None):
        return None
    drafted, accepted = told.per_step_drafted, told.per_step_accepted
    if drafted is not None and accepted is not None and len(drafted) != len(accepted):
        drafted = accepted = None
    counts = DraftCounts(
        drafts=told.num_spec_steps,
        drafted=told.num_draft_tokens,
        accepted=told.num_accepted_draft_tokens,
        accepted_at=_accepted_at(told.acceptance_histogram, told.num_accepted_draft_tokens),
        drafted_at=_drafted_at(drafted),
    )
    return Drafted(counts, drafted_steps=drafted, accepted_steps=accepted)


def _accepted_at(histogram: list[int] | None, accepted: int | None) -> list[int] | None:
    if not histogram:
        return None
    at_least = list(accumulate(reversed(histogram)))[::-1]
    # Summed over positions, accepted_at is the number of accepted tokens again.
    return at_least[1:] if accepted is None or sum(at_least[1:]) == accepted else None


def _drafted_at(drafted: list[int] | None) -> list[int] | None:
    """Drafts that reached each position, where their lengths differ (field case 21)."""
    if not drafted or min(drafted) == max(drafted) or max(drafted) > len(drafted) + 1024:
        return None
    return [sum(length > i for length in drafted) for i in range(max(drafted))]


_USAGE = {"include_usage": True}
_RUNNING_USAGE = {"include_usage": True, "continuous_usage_stats": True}

VLLM = Engine(
    name="vllm",
    recognises=recognises,
    identify=identify,
    request_ladder=(
        {"return_token_ids": True, "stream_options": _USAGE},
        {"stream_options": _RUNNING_USAGE},
        {"stream_options": _USAGE},
        {},
    ),
    read_counters=read_counters,
    read_drafting=read_drafting,
    chunk_is_step=True,
    series=(*_COUNTERS, _SPEC, _RUNNING, _WAITING),
    draft_metrics=f"{_DRAFTS}_total, {_DRAFTED}_total, {_ACCEPTED}_total, {_PER_POSITION}_total",
    read_launch=read_launch,
    flags=flags,
    with_draft_tokens=with_draft_tokens,
    how_to_measure=(
        "vLLM 0.10 or newer tells token ids per chunk and shows /metrics unless started with "
        "--disable-log-stats; add --per-request-spec-decode-metrics detailed where it is known."
    ),
    launch_example=(
        "vllm serve MODEL --port {port} "
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"""
    ),
)
