"""In which order requests are sent: decided before the first one, from a recorded seed.

Targets that are up together are interleaved ABBA, prompt by prompt, so that a drift of the
machine falls on both alike (with 5 % linear drift, ten requests each: blocks bias the ratio by
2.7 %, ABBA by nothing; theory, section 6.2). The first direction of each ABBA group, the order of
scenarios within a round and the order of prompts are drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One prompt for several targets: who goes when. ``targets`` in order of sending."""

    scenario: str
    pair: int
    prompt: int
    targets: tuple[str, ...]


def abba(targets: Sequence[str], pair: int, scenario: str, seed: int) -> tuple[str, ...]:
    """The order of targets for one pair: drawn for even pairs, mirrored for the odd one after."""
    order = list(targets)
    _rng(seed, scenario, "abba", pair // 2).shuffle(order)
    return tuple(order if pair % 2 == 0 else reversed(order))


def prompt_of(pair: int, prompts: int, scenario: str, seed: int) -> int:
    """Which prompt a pair uses: each once before any comes again, in a drawn order."""
    cycle, place = divmod(pair, prompts)
    order = list(range(prompts))
    _rng(seed, scenario, "prompts", cycle).shuffle(order)
    return order[place]


def turns(
    pair: int, scenarios: Sequence[tuple[str, int]], targets: Sequence[str], seed: int
) -> list[Turn]:
    """One round: the same pair of every scenario (name, number of prompts), in drawn order."""
    order = list(scenarios)
    _rng(seed, "", "scenarios", pair).shuffle(order)
    return [
        Turn(name, pair, prompt_of(pair, count, name, seed), abba(targets, pair, name, seed))
        for name, count in order
    ]


def blocks(targets: Sequence[str], round_number: int) -> tuple[str, ...]:
    """The order of blocks: forward in even rounds, backward in odd ones."""
    return tuple(targets if round_number % 2 == 0 else reversed(targets))


def share(total: int, rounds: int, round_number: int) -> range:
    """The pairs of a round, when ``total`` are spread over ``rounds`` as evenly as they go."""
    return range(total * round_number // rounds, total * (round_number + 1) // rounds)


def nonce(seed: int, scenario: str, pair: int, extra: str = "") -> str:
    """Eight hex digits that make a prompt new to a prefix cache, the same for all targets."""
    text = f"{seed}/{scenario}/{pair}/{extra}"
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _rng(seed: int, scenario: str, what: str, number: int) -> random.Random:
    # Seeded by text, so that adding a scenario changes no other's order.
    return random.Random(f"{seed}/{scenario}/{what}/{number}")  # noqa: S311  not a secret
