"""What draftmeter knows of each engine."""

from __future__ import annotations

import difflib

from draftmeter.engines.llamacpp import LLAMACPP
from draftmeter.engines.model import Engine, Facts, Identity
from draftmeter.engines.openai import OPENAI
from draftmeter.engines.vllm import VLLM
from draftmeter.errors import UsageError

# In the order in which they are tried; the last one recognises every server.
ENGINES: tuple[Engine, ...] = (VLLM, LLAMACPP, OPENAI)


def by_name(name: str) -> Engine:
    """The engine of that name.

    Raises:
        UsageError: there is none.
    """
    known = {engine.name: engine for engine in ENGINES}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"engine {name[:80]!r} is not known{hint} (known: {', '.join(known)})")


def recognise(facts: Facts) -> tuple[Engine, Identity]:
    """Which engine a server runs, and what it says of itself."""
    for engine in ENGINES:
        if engine.recognises(facts):
            return engine, engine.identify(facts)
    return OPENAI, OPENAI.identify(facts)
