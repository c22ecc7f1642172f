"""``draftmeter measure``: one live server."""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import CACERT_OPTION, INSECURE_OPTION, JSON_OPTION, OUT_OPTION


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="measure")(measure)


def measure(
    url: str = typer.Argument(metavar="URL", help="The server, like http://localhost:8000."),
    scenario: list[str] = typer.Option(
        [], "--scenario", "-s", metavar="NAME|FILE",
        help="Workload: a built-in name, or a file of prompts. May be repeated.",
    ),
    against: str | None = typer.Option(
        None, "--against", metavar="URL",
        help="A second server without speculation, measured side by side: gives the speedup.",
    ),
    model: str | None = typer.Option(None, "--model", help="Model, if the server has several."),
    requests: int | None = typer.Option(None, "--requests", "-n", help="Requests per scenario."),
    precision: str | None = typer.Option(None, "--precision", help="Half-width wanted, e.g. 3%."),
    budget: str | None = typer.Option(None, "--budget", help="Time for measuring, e.g. 5m."),
    max_tokens: int | None = typer.Option(None, "--max-tokens", help="Cap the output length."),
    metrics_url: str | None = typer.Option(None, "--metrics-url", help="Where the counters are."),
    api_key_env: str | None = typer.Option(
        None, "--api-key-env", metavar="NAME", help="Environment variable that holds the API key."
    ),
    predictability: bool = typer.Option(
        False, "--predictability", help="Ask each prompt once more, with log-probabilities."
    ),
    keep_cache: bool = typer.Option(False, "--keep-cache", help="Let the prefix cache answer."),
    out: Path | None = OUT_OPTION,
    as_json: bool = JSON_OPTION,
    cacert: Path | None = CACERT_OPTION,
    insecure: bool = INSECURE_OPTION,
) -> None:  # fmt: skip
    """Measure one live server: TTFT, decode tok/s, acceptance, each with its interval.

    One stream at a time. Without --scenario: en_chat and code_agent, ten requests each,
    within a budget of five minutes.
    """
    from draftmeter import api
    from draftmeter.cli.common import finish, parse_count, watching, with_scheme
    from draftmeter.experiment.load import experiment_of

    wish = parse_count(requests, precision, budget)
    if not wish:
        wish = {"count": 10, "budget": "5m"}
    url, against = with_scheme(url), with_scheme(against) if against is not None else None
    target = {"url": url, "model": model, "metrics_url": metrics_url, "api_key_env": api_key_env}
    targets = {"server": {k: v for k, v in target.items() if v is not None}}
    if against is not None:
        targets["plain"] = {"url": against} | (
            {"api_key_env": api_key_env} if api_key_env is not None else {}
        )
    plan = experiment_of(
        {
            "name": "measure",
            "reference": "plain" if against is not None else "server",
            "targets": targets,
            "scenarios": scenario or ["en_chat", "code_agent"],
            "requests": wish,
            "predictability": predictability,
            "cache": "keep" if keep_cache else "bust",
        },
        Path.cwd(),
        max_tokens=max_tokens,
    )
    with watching(plan, as_json) as on_event:
        path, results = api.run(
            plan, out, on_event=on_event, connection=api.Connection(cacert, insecure)
        )
    finish(path, results, as_json)
