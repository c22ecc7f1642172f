"""llama.cpp's server: one chunk per token, drafting in ``timings``, counters without labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from draftmeter.engines.model import Drafted, Engine, Facts, Identity, Speculation
from draftmeter.engines.pages import (
    Series,
    has_series,
    mapping,
    owned_by,
    positive,
    served_models,
    word,
)
from draftmeter.record.types import CounterSnapshot, DraftCounts
from draftmeter.wire.chat import FinalFields
from draftmeter.wire.prometheus import Sample

_PREFIX = "llamacpp:"
_DRAFTS = f"{_PREFIX}spec_decode_num_drafts"
_DRAFTED = f"{_PREFIX}spec_decode_num_draft_tokens"
_ACCEPTED = f"{_PREFIX}spec_decode_num_accepted_tokens"
_PER_POSITION = f"{_PREFIX}spec_decode_num_accepted_tokens_per_pos"


def recognises(facts: Facts) -> bool:
    """Its ``Server`` header, metrics, owner of models, or properties that only it has."""
    props = mapping(facts.props)
    return (
        facts.headers.get("server", "").lower() == "llama.cpp"
        or has_series(facts.samples, _PREFIX)
        or owned_by(facts.models, "llamacpp")
        or ("build_info" in props and "default_generation_settings" in props)
    )


def identify(facts: Facts) -> Identity:
    """Speculation is told by ``/slots`` (its kind only once a slot was used).

    The drafting series say nothing at zero: this engine shows them with speculation off too.
    """
    props = mapping(facts.props)
    settings = mapping(props.get("default_generation_settings"))
    served = served_models(facts.models)
    model = served[0] if served else {}
    meta = mapping(model.get("meta"))
    speculative, method = _speculation(facts.slots)
    if speculative is None and facts.samples is not None:
        speculative = True if read_counters(facts.samples, None).drafted else None
    return Identity(
        version=word(props.get("build_info")),
        model=model.get("id"),
        speculative=speculative,
        method=method,
        max_context=positive(settings.get("n_ctx")) or positive(meta.get("n_ctx")),
    )


def _speculation(slots: Any) -> tuple[bool | None, str | None]:
    """Whether some slot speculates, and by what (``speculative.types``)."""
    entries = [mapping(slot) for slot in slots] if isinstance(slots, list) else []
    kinds = [_kind(mapping(slot.get("params")).get("speculative.types")) for slot in entries]
    method = next((kind for kind in kinds if kind is not None), None)
    told = [slot["speculative"] for slot in entries if isinstance(slot.get("speculative"), bool)]
    if told:
        return any(told), method if any(told) else None
    return (True if method else None), method


def _kind(types: Any) -> str | None:
    if isinstance(types, list):
        types = ",".join(one for one in types if isinstance(one, str))
    kind = word(types)
    return None if kind == "none" else kind


def read_counters(samples: tuple[Sample, ...], model: str | None) -> CounterSnapshot:
    """The server's counters; it serves one model, and its series have no labels.

    Positions appear once a draft had a token there: with no draft yet there are none of them.
    """
    del model
    series = Series([s for s in samples if s.name.startswith(_PREFIX)])
    drafts, accepted_at = series.total(_DRAFTS), series.positions(_PER_POSITION)
    if drafts == 0 and not has_series(series.samples, _PER_POSITION):
        accepted_at = []
    return CounterSnapshot(
        drafts=drafts,
        drafted=series.total(_DRAFTED),
        accepted=series.total(_ACCEPTED),
        accepted_at=accepted_at,
        generation_tokens=series.total(f"{_PREFIX}tokens_predicted"),
        prompt_tokens=series.total(f"{_PREFIX}prompt_tokens"),
        running=series.total(f"{_PREFIX}requests_processing"),
        waiting=series.total(f"{_PREFIX}requests_deferred"),
        notes=series.notes,
    )


def read_drafting(final: FinalFields) -> Drafted | None:
    """``timings`` of the last chunk; absent when nothing was drafted. It does not count drafts."""
    told = final.timings
    if told is None or told.draft_n is None:
        return None
    return Drafted(DraftCounts(drafted=told.draft_n, accepted=told.draft_n_accepted))


# Flags that set K, by method; the last two are those of draftmeter's own launcher.
_LENGTH_FLAGS = (
    "--spec-draft-n-max", "--draft-max", "--draft-n", "--draft",
    "--spec-ngram-simple-size-m", "--spec-ngram-map-k-size-m", "--spec-ngram-map-k4v-size-m",
    "--spec-ngram-mod-n-max", "--spec-ngram-size-m", "--draft-length", "--ngram-draft",
)  # fmt: skip
_BY_METHOD = {
    "ngram-simple": "--spec-ngram-simple-size-m", "ngram-map-k": "--spec-ngram-map-k-size-m",
    "ngram-map-k4v": "--spec-ngram-map-k4v-size-m", "ngram-mod": "--spec-ngram-mod-n-max",
}  # fmt: skip


def read_launch(words: Sequence[str]) -> Speculation:
    """K as the command sets it, and the method after ``--spec-type``."""
    told = _length_place(words)
    kind = next((b for a, b in pairwise(words) if a == "--spec-type"), None)
    return Speculation(kind, None if told is None else positive(int(words[told])))


def _length_place(words: Sequence[str]) -> int | None:
    places = [i + 1 for i, found in enumerate(words[:-1]) if found in _LENGTH_FLAGS]
    return next((place for place in places if words[place].isdecimal()), None)


def with_draft_tokens(words: Sequence[str], draft_tokens: int) -> list[str] | None:
    """The command with another number after the flag that sets K."""
    place = _length_place(words)
    if place is None:
        return None
    return [*words[:place], str(draft_tokens), *words[place + 1 :]]


def flags(draft_tokens: int, method: str | None, words: Sequence[str]) -> str:
    """``--spec-draft-n-max K``, or what the n-gram method calls it."""
    if draft_tokens == 0:
        return "leave --spec-type out"
    place = _length_place(words)
    name = _BY_METHOD.get((method or "").replace("_", "-"), "--spec-draft-n-max")
    return f"{words[place - 1] if place else name} {draft_tokens}"


_USAGE = {"include_usage": True}

LLAMACPP = Engine(
    name="llamacpp",
    recognises=recognises,
    identify=identify,
    request_ladder=(
        {"timings_per_token": True, "stream_options": _USAGE},
        {"stream_options": _USAGE},
        {},
    ),
    read_counters=read_counters,
    read_drafting=read_drafting,
    chunk_is_step=False,
    series=(_PREFIX,),
    draft_metrics=f"{_DRAFTS}_total, {_DRAFTED}_total, {_ACCEPTED}_total, {_PER_POSITION}_total",
    flags=flags,
    read_launch=read_launch,
    with_draft_tokens=with_draft_tokens,
    how_to_measure="Start llama-server with --metrics; /slots (on by default) tells what drafts.",
    launch_example="llama-server -m MODEL.gguf --port {port} --metrics --spec-type ngram-simple",
)
