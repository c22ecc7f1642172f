"""The demo's experiment: one small model, without and with n-gram speculation."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from draftmeter.experiment.model import Experiment, Requests, Scenario, Target
from draftmeter.experiment.scenario import load_scenario

# Longer drafts of so small a model cost more to verify on a CPU than they bring.
DRAFT_TOKENS = 3


def demo_scenarios() -> list[Scenario]:
    """Small talk, where n-grams guess badly, and text editing, where they guess well."""
    here = Path(__file__).parent
    return [load_scenario(str(here / f"{name}.yaml"), here) for name in ("en_chat", "text_edit")]


def demo_experiment(model: Path, pairs: int) -> Experiment:
    """Two llama.cpp servers with the same model, up together, measured prompt by prompt."""
    # Half the cores: threads that wait for each other stall when anything else runs.
    threads = max(1, min(4, (os.cpu_count() or 1) // 2))
    command = (
        f"{shlex.quote(sys.executable)} -m draftmeter.engines.llamacpp_server "
        f"--model {shlex.quote(str(model))} --port {{port}} --threads {threads}"
    )
    targets = [
        Target(name="plain", launch=command),
        Target(name="ngram", launch=f"{command} --ngram --ngram-draft {DRAFT_TOKENS}"),
    ]
    return Experiment(
        name="demo",
        reference="plain",
        targets={t.name: t for t in targets},
        scenarios=demo_scenarios(),
        requests=Requests(count=pairs),
        together=True,
        cache="keep",  # the prompts are all different, and so small a model copies a mark
    )
