"""What was seen: one record per request, one per scrape of counters, one per server.

Times ending in ``_us`` are microseconds of a monotonic clock since the request was sent;
``started`` is wall-clock Unix seconds and is for reading only, never for arithmetic.
``None`` means not measured or not told; it never stands for zero.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Phase = Literal["warmup", "measure", "aa", "logprobs"]
TokenSource = Literal["token_ids", "running_usage", "final_usage"]
ErrorKind = Literal[
    "connect", "tls", "http", "stream", "closed", "first_token_timeout", "stall", "timeout",
    "not_streaming", "no_tokens", "too_large", "protocol",
]  # fmt: skip


class DraftCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Drafting as one witness saw it, over one request or a sum of them.

    Attributes:
        drafts: proposals verified (one per speculative step).
        drafted: tokens proposed.
        accepted: proposed tokens that were kept.
        accepted_at: ``accepted_at[i]`` counts drafts whose tokens 0..i were all accepted.
        drafted_at: drafts that reached position i; None where every draft has the same length.
    """

    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_at: list[int] | None = None
    drafted_at: list[int] | None = None


class CounterSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of a server's counters, for one model, summed over its engines.

    ``drafts`` and its neighbours are None when the server has no drafting series at all
    (speculation is off, or nothing was drafted yet). ``created`` is the newest creation
    time of those series (Unix seconds): a change means the server restarted in between.
    """

    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    accepted_at: list[float] | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    created: float | None = None
    engines: int = 1
    models: list[str] = []
    notes: list[str] = []


class CounterRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``counters.jsonl``: the snapshot around a request.

    ``settled`` is False when two equal readings could not be had within the time allowed.
    """

    target: str
    request: int
    moment: Literal["before", "after"]
    at: float
    snapshot: CounterSnapshot | None = None
    settled: bool = True
    problem: str | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token counts as the server stated them at the end of a response."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class RequestError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request failed: ``message`` is the server's own words, shortened and made printable."""

    kind: ErrorKind
    message: str
    status: int | None = None
    retry_after_s: float | None = None


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``requests.jsonl``: one request, whole.

    The arrays ``at_us``, ``pieces``, ``kinds`` and ``tokens`` run in parallel, one entry per
    *token-bearing* chunk. Role-only chunks, usage chunks and keep-alives have no entry.

    Attributes:
        id: unique in the run; the order in which requests were sent.
        pair: requests of different targets with the same scenario, concurrency and pair were
            given the same prompt and are compared with each other.
        arm: 0 or 1 in phase "aa", where the reference is measured against itself.
        prompt: index into the scenario's prompts; nonce: what was put before it to make it new
            to the server's prefix cache (None with ``cache: keep``).
        at_us: arrival of each chunk's bytes at the socket.
        pieces: its text; empty for a token whose character is not complete yet.
        kinds: one letter per chunk: c content, r reasoning, t tool call arguments,
            e a token without text.
        tokens: tokens each chunk carried; None when the server does not tell.
        first_byte_us, done_us: first byte of the response's body; end of the stream.
        token_source: where token counts come from; None: nowhere, counts are unknown.
        drafting: the response's own account of its drafting.
        drafted_steps, accepted_steps: the same, step by step, where the engine tells.
        accepted_so_far: drafted tokens accepted until each chunk, by the engine's running count
            (llama.cpp with ``timings_per_token``); empty: it stayed 0; None: no such count.
        server_decode_ms: the engine's own decode time for this response (llama.cpp
            ``timings.predicted_ms``).
        client_cpu: CPU time this process used while the request ran, as a share of one core.
        logprobs: in phase "logprobs", which is for nothing else: natural log-probabilities of
            each token's likeliest candidates, the likeliest first.
    """

    id: int
    target: str
    scenario: str
    phase: Phase
    pair: int
    prompt: int
    concurrency: int = 1
    context_tokens: int | None = None
    arm: int | None = None
    round: int = 0
    nonce: str | None = None
    started: float = 0.0
    session_s: float = 0.0
    max_tokens: int = 0
    connect_ms: float | None = None
    first_byte_us: int | None = None
    done_us: int | None = None
    at_us: list[int] = []
    pieces: list[str] = []
    kinds: str = ""
    tokens: list[int] | None = None
    token_source: TokenSource | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    model: str | None = None
    drafting: DraftCounts | None = None
    drafted_steps: list[int] | None = None
    accepted_steps: list[int] | None = None
    accepted_so_far: list[int] | None = None
    server_decode_ms: float | None = None
    client_cpu: float | None = None
    logprobs: list[list[float]] | None = None
    error: RequestError | None = None

    @property
    def completion_tokens(self) -> int | None:
        """Tokens generated, as the server counts them; None when it does not say."""
        if self.usage is not None and self.usage.completion_tokens is not None:
            return self.usage.completion_tokens
        return sum(self.tokens) if self.tokens is not None else None


class StepSize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes that one step of a target moves for one stream, from its model's headers.

    ``draft_bytes`` are those of all K draft passes (0 without a draft head, as with n-grams);
    ``plain_bytes`` is the step of the same model without drafting. ``context_tokens`` is the mean
    over the measured requests, half of the answer included. A part that is not known is None.
    """

    files: str
    source: str
    weights: str
    parameters: int
    read_parameters: float | None
    context_tokens: int
    kv_dtype: str
    draft_tokens: int
    weight_bytes: float | None
    state_bytes: float | None
    kv_bytes: float | None
    draft_bytes: float | None
    step_bytes: float | None
    plain_bytes: float | None
    notes: list[str] = []


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server said it is, when the run began.

    ``chunk_is_step``: the engine sends one chunk per step, so tokens per chunk are tokens
    per step (vLLM); False where it sends one chunk per token (llama.cpp); None: not known.
    ``speculative``: True, False, or None when the server does not tell.
    """

    engine: str
    engine_version: str | None = None
    model: str | None = None
    speculative: bool | None = None
    method: str | None = None
    draft_tokens: int | None = None
    chunk_is_step: bool | None = None
    url: str | None = None
    metrics_url: str | None = None
    metrics_problem: str | None = None
    launch: str | None = None
    max_context: int | None = None
    step: StepSize | None = None
    step_problem: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``environment.json``: where and with what a run was made."""

    schema: str
    run_id: str
    name: str
    started: str
    draftmeter: str
    python: str
    platform: str
    cpu: str | None = None
    cpu_count: int | None = None
    gpus: list[str] = []
    device: str | None = None
    bandwidth_gb_s: float | None = None
    bandwidth_source: str | None = None
    seed: int = 0
    targets: dict[str, TargetInfo] = {}


class RunData(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder, read: everything analysis needs.

    ``experiment`` is the resolved experiment as plain data (secrets out);
    ``reference`` its reference target.
    """

    environment: Environment
    experiment: dict[str, Any]
    reference: str
    records: list[RequestRecord]
    counters: list[CounterRecord]
