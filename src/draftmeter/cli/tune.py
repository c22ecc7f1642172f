"""``draftmeter tune``: the best draft length, predicted from a run, and tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftmeter.cli.common import JSON_OPTION, OUT_OPTION

if TYPE_CHECKING:
    from draftmeter.decision.verify import Verified
    from draftmeter.record.results import Tuning


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="tune")(tune)


def tune(
    run: Path = typer.Argument(metavar="RUN", help="A run folder."),
    verify: bool = typer.Option(
        False, "--verify", help="Start the target with the proposed K and measure it."
    ),
    draft_tokens: int | None = typer.Option(
        None, "--draft-tokens", "-k", min=1, help="With --verify: this K, whatever is proposed."
    ),
    out: Path | None = OUT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say which number of draft tokens (K) is best for each scenario, with flags to paste.

    A run with one K predicts the shorter ones within a bracket; a second K narrows it.
    """
    from draftmeter import api
    from draftmeter.cli.common import emit

    tunings = api.tune(run)
    found: list[Verified] = []
    if verify:
        from draftmeter.cli.common import watching
        from draftmeter.decision.verify import verified

        plan, tried = api.verification(run, tunings, draft_tokens)
        with watching(plan, as_json) as on_event:
            _, results = api.run(plan, out, on_event=on_event)
        found = verified(tunings, tried, results)
    if as_json:
        emit(_json(tunings, found))
    else:
        from draftmeter.report.tuning import tuning_text

        emit(tuning_text(tunings, found))


def _json(tunings: list[Tuning], found: list[Verified]) -> bytes:
    import msgspec

    data = {"schema": "draftmeter.tuning/1", "tuning": tunings, "verified": found}
    return msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n"
