"""Any other server that speaks OpenAI's protocol: what the protocol tells, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from draftmeter.engines import llamacpp, vllm
from draftmeter.engines.model import Drafted, Engine, Facts, Identity
from draftmeter.engines.pages import mapping, only_model, positive, word
from draftmeter.record.types import CounterSnapshot
from draftmeter.wire.chat import FinalFields
from draftmeter.wire.prometheus import Sample


def recognises(facts: Facts) -> bool:
    """Every server."""
    del facts
    return True


def identify(facts: Facts) -> Identity:
    """The model, if there is just one; nobody told whether it speculates."""
    model = only_model(facts.models)
    meta = mapping(model.get("meta"))
    return Identity(
        version=word(mapping(facts.version).get("version")),
        model=model.get("id"),
        max_context=(
            positive(model.get("max_model_len"))
            or positive(model.get("context_length"))
            or positive(meta.get("n_ctx"))
        ),
    )


def read_counters(samples: tuple[Sample, ...], model: str | None) -> CounterSnapshot:
    """No counters: which of these series count drafting is not known."""
    del samples, model
    return CounterSnapshot(notes=["the drafting counters of this engine are not known"])


def read_drafting(final: FinalFields) -> Drafted | None:
    """A known engine behind a gateway still tells its drafting in the response."""
    return vllm.read_drafting(final) or llamacpp.read_drafting(final)


def flags(draft_tokens: int, method: str | None, words: Sequence[str]) -> str:
    """SGLang's three flags, since SGLang is recognised by nothing of its own here."""
    del method, words
    if draft_tokens == 0:
        return "start it without speculation"
    return (
        f"SGLang: --speculative-num-steps {draft_tokens} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {draft_tokens + 1}"
    )


_USAGE = {"include_usage": True}

OPENAI = Engine(
    name="openai",
    recognises=recognises,
    identify=identify,
    request_ladder=(
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stream_options": _USAGE},
        {},
    ),
    read_counters=read_counters,
    read_drafting=read_drafting,
    chunk_is_step=None,
    series=(),
    draft_metrics="none that are known",
    flags=flags,
    how_to_measure=(
        "This engine's drafting cannot be read; speed can, if the stream ends with usage."
    ),
    launch_example="COMMAND --port {port}",
)
