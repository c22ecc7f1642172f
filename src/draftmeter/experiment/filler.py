"""Text to put before a prompt, for scenarios that are run behind more context.

Made from a fixed grammar and a fixed seed: the same words on every machine, no sentence twice in
sight, and nothing in it that a question could be about.
"""

from __future__ import annotations

import random
from functools import cache

WORDS_PER_TOKEN = 0.75
"""A first guess for English text; the server's own count replaces it."""

_WHO = (
    "The harbour office", "A surveyor", "The night shift", "Our supplier in Lyon", "The council",
    "The second crew", "An auditor", "The laboratory", "The tenants", "A volunteer",
    "The editor", "The ferry company",
)  # fmt: skip
_DID = (
    "reported", "confirmed", "corrected", "postponed", "measured", "described", "questioned",
    "recorded", "withdrew", "approved",
)  # fmt: skip
_WHAT = (
    "the repair of pump {n}", "a delivery of {n} boxes", "the reading of {n} millimetres",
    "the timetable for week {n}", "an invoice over {n} euros", "the survey of plot {n}",
    "the count of {n} visitors", "the inventory of shelf {n}", "an outage of {n} minutes",
    "the draft of chapter {n}",
)  # fmt: skip
_WHERE = (
    "near the old mill", "at the north gate", "in building {n}", "on the eastern quay",
    "behind the station", "in the upper reservoir", "at kilometre {n}", "in the reading room",
)  # fmt: skip
_MORE = (
    "and asked for a reply before {day}", "although nobody had expected it",
    "which settled the matter for now", "after two days of rain", "as agreed on {day}",
    "and attached three photographs", "without giving a reason", "for the third time this year",
    "so the order was changed", "and the file was closed on {day}",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@cache
def filler(words: int) -> str:
    """About that many words of background notes, in paragraphs; empty for none."""
    rng = random.Random("draftmeter filler 1")  # noqa: S311  not a secret
    lines: list[str] = []
    count = 0
    while count < words:
        parts = (rng.choice(_WHO), rng.choice(_DID), rng.choice(_WHAT), rng.choice(_WHERE),
                 rng.choice(_MORE))  # fmt: skip
        sentence = " ".join(parts).format(n=rng.randrange(2, 9000), day=rng.choice(_DAYS)) + "."
        lines.append(sentence + ("\n" if rng.random() < 0.2 else ""))
        count += len(sentence.split())
    if not lines:
        return ""
    return (
        "Background notes, for reference only:\n\n" + " ".join(lines).replace("\n ", "\n") + "\n\n"
    )
