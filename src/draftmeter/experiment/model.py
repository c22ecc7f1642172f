"""The experiment: which targets, which scenarios, how precisely, under which policy."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One chat message, as sent to the server."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A named workload: several distinct prompts and how they are sampled.

    ``prompts`` are message lists, ready to send. ``max_tokens`` caps the output;
    ``thinking`` None leaves the model's default, True/False asks for or against reasoning.
    """

    name: str
    prompts: list[list[Message]]
    max_tokens: int = 256
    temperature: float | None = 0.7
    language: str | None = None
    thinking: bool | None = None
    extra_body: dict[str, Any] = {}
    description: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server configuration under test: a running one (``url``) or a command (``launch``).

    ``files`` is where the model's files are (a folder, a .gguf, or a hub id), for the roofline;
    only their headers are read. ``kv_dtype`` is the type of its cache.
    ``launch`` is split without a shell; ``{port}`` in it is replaced by a free port.
    ``api_key_env`` and ``headers`` values of the form ``$NAME`` are read from the environment
    and never written anywhere.
    """

    name: str
    url: str | None = None
    launch: str | None = None
    model: str | None = None
    engine: str | None = None
    metrics_url: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    env: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    start_timeout_s: float = 900.0
    files: str | None = None
    kv_dtype: Literal["bf16", "fp8"] = "bf16"


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """How many pairs: ``count`` fixed, or a pilot and then Stein's n for ``precision``.

    ``precision`` is the wished half-width of the speedup's interval, as a fraction (0.03 = 3 %).
    ``budget_s`` ends measuring after that much time, but not before three pairs per scenario.
    """

    count: int | None = None
    pilot: int = 10
    precision: float = 0.03
    budget_s: float | None = None


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: to connect, to the first token, between chunks, and for a whole request."""

    connect_s: float = 10.0
    first_token_s: float = 120.0
    stall_s: float = 60.0
    total_s: float = 1800.0


class Level(msgspec.Struct, frozen=True):
    """A load: streams at a time, and tokens of context before each prompt (None: none added)."""

    concurrency: int = 1
    context_tokens: int | None = None


ONE_STREAM = Level()


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """A checked experiment file, all defaults filled in.

    ``together``: launched targets are all up at the same time and interleaved; otherwise they
    run one after the other in blocks, alternating over ``rounds``.
    ``cache`` "bust" makes every prompt new to the server's prefix cache, "keep" sends it verbatim.
    ``concurrency`` lists how many streams at a time; ``context`` how many tokens of other text
    stand before each prompt (empty: none, the prompt as it is). Every combination is measured.
    ``policy`` limits each scenario; ``traffic`` is each one's share of the tokens, ``candidates``
    the targets to judge (empty: those that no rule names to compare with).
    ``aa`` measures the reference against itself first; ``predictability`` asks plain targets for
    log-probabilities in requests of their own, that nothing else is taken from.
    ``device`` (its full name) or ``bandwidth_gb_s`` is what the roofline is drawn with; without
    either, the GPU of this machine if there is one.
    """

    name: str
    reference: str
    targets: dict[str, Target]
    scenarios: list[Scenario]
    requests: Requests = Requests()
    concurrency: list[int] = msgspec.field(default_factory=lambda: [1])
    context: list[int] = []
    policy: dict[str, dict[str, Any]] = {}
    traffic: dict[str, float] = {}
    candidates: list[str] = []
    aa: bool = False
    predictability: bool = False
    together: bool = False
    rounds: int = 2
    warmup: int = 1
    cache: Literal["bust", "keep"] = "bust"
    seed: int = 0
    timeouts: Timeouts = Timeouts()
    device: str | None = None
    bandwidth_gb_s: float | None = None

    @property
    def levels(self) -> list[Level]:
        """Every combination of context and concurrency, one stream without context first."""
        contexts: list[int | None] = [*self.context] if self.context else [None]
        return [Level(n, context) for context in contexts for n in self.concurrency]
