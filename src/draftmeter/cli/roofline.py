"""``draftmeter roofline``: what a decode step must read, and what the device could reach."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import typer

from draftmeter.cli.common import JSON_OPTION, emit
from draftmeter.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from draftmeter.roofline.answer import Answer

KvDtype = Literal["bf16", "fp8"]
Weights = Literal["bf16", "fp8", "nvfp4", "mxfp4", "q4_k_m"]
NAMES = {
    "other": "norms, other",
    "linear_attention": "linear attention",
    "shared_expert": "shared expert",
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="roofline")(roofline)


def roofline(
    model: str = typer.Argument(
        metavar="MODEL", help="Folder, config.json, .safetensors, .gguf, or org/name on the hub."
    ),
    device: str | None = typer.Option(
        None, "--device", metavar="NAME", help="Device, by the full name its driver prints."
    ),
    bandwidth: float | None = typer.Option(
        None, "--bandwidth", metavar="GB/s", help="Memory bandwidth (see `draftmeter probe`)."
    ),
    context: int = typer.Option(0, "--context", min=0, max=10**9, help="Tokens of context."),
    kv_dtype: KvDtype = typer.Option("bf16", "--kv-dtype", help="Type of the KV cache."),
    draft_tokens: int | None = typer.Option(
        None, "--draft-tokens", min=1, max=64, help="Tokens drafted per step (default 1 to 5)."
    ),
    batch: int = typer.Option(1, "--batch", min=1, max=100_000, help="Sequences per step."),
    weights: Weights | None = typer.Option(
        None, "--weights", help="Weight scheme, for a config.json or as a what-if."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Say what one decode step must read, and what the device could reach.

    Only headers are read, never weights: any size takes about a second.
    """
    from draftmeter.roofline.answer import Question, answer, asked_draft_tokens, to_dict
    from draftmeter.roofline.load import load_model

    peak, name, source = _bandwidth(device, bandwidth)
    question = Question(
        context, batch, kv_dtype, asked_draft_tokens(draft_tokens), peak, name, source
    )
    found = answer(load_model(model, weights), question)
    if as_json:
        import msgspec

        emit(msgspec.json.format(msgspec.json.encode(to_dict(found))) + b"\n")
    else:
        show(found)


def _bandwidth(
    device: str | None, bandwidth: float | None
) -> tuple[float | None, str | None, str | None]:
    """Bandwidth, device and where the figure is from: as given, by name, or of the GPU here."""
    from draftmeter.roofline.devices import device_named, local_gpu

    if device is not None and bandwidth is not None:
        raise UsageError("give --device or --bandwidth, not both")
    if bandwidth is not None:
        if not 0 < bandwidth < 1e7:
            raise UsageError(f"--bandwidth {bandwidth:g}: must be a number of GB/s above 0")
        return bandwidth, None, "given"
    found = device_named(device) if device is not None else local_gpu()
    if found is None:
        return None, None, None
    source = f"{found.source}{' (unchecked)' if found.lead else ''}"
    return found.bandwidth_gb_s, found.name, source


def show(found: Answer) -> None:
    """Print the answer: a sentence, the components, speculation, notes."""
    import os

    from rich.console import Console
    from rich.text import Text

    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "80"))
    console = Console(width=width, highlight=False, soft_wrap=False)
    for i, line in enumerate(sentences(found)):
        console.print(Text(line, style="bold" if i == 0 else ""))
    console.print()
    console.print(_components(found))
    console.print()
    console.print(Text(_speculation_title(found), style="bold"))
    console.print(_speculation(found))
    for note in found.notes:
        from draftmeter.report.safe import printable

        console.print(Text(f"note: {printable(note, 400)}", style="yellow"))


def sentences(found: Answer) -> list[str]:
    """The answer in words: bytes and ceiling first, then where the figures are from."""
    from draftmeter.report.safe import printable

    q = found.question
    step = f"{gigabytes(found.step_bytes)} GB" if found.step_bytes else "an unknown number of bytes"
    many = f" for {q.batch} sequences" if q.batch > 1 else ""
    first = f"{printable(found.model, 80)}: a decode step must read {step}{many}"
    if found.ceiling_tok_s is not None:
        where = printable(q.device or "", 60) or "this bandwidth"
        first += f", so {where} ({q.bandwidth_gb_s:g} GB/s) could reach {found.ceiling_tok_s:.4g}"
        first += " tok/s."
    else:
        first += ". Give --device or --bandwidth for tok/s."
    read = "an unknown part" if found.read_parameters is None else billions(found.read_parameters)
    second = (
        f"{billions(found.parameters)} B parameters ({gigabytes(found.file_bytes)} GB, "
        f"{printable(found.weights, 60)}, from {found.source}); a token reads {read}"
        f"{' B' if found.read_parameters is not None else ''}."
    )
    per_token = found.kv_bytes_per_token
    cache = "unknown" if per_token is None else f"{per_token / 1024:.4g} KiB"
    third = f"Context {q.context}: {q.kv_dtype} cache {cache} per token"
    third += f", {gigabytes(found.kv_bytes)} GB read per step" if q.context else ""
    state = found.state_bytes
    third += f"; linear-attention state {gigabytes(state)} GB." if state != 0 else "."
    return [first, second, third]


def gigabytes(value: float | None) -> str:
    """Bytes as GB (1e9)."""
    return "unknown" if value is None else billions(value)


def billions(value: float) -> str:
    """A count in units of 1e9, four digits or more."""
    digits = 2 if value >= 1e10 else 3 if value >= 1e9 else 4
    return f"{value / 1e9:.{digits}f}"


def _components(found: Answer) -> Table:
    table = _table("component", "param B", "stored GB", "read GB", "why")
    for c in found.components:
        read = gigabytes(c.bytes) if c.read else "-"
        name = NAMES.get(c.name, c.name)
        table.add_row(name, billions(c.parameters), gigabytes(c.stored_bytes), read, c.why)
    return table


def _speculation_title(found: Answer) -> str:
    if not found.draft_head:
        return "Speculation by bytes (no draft head in the model: n-gram drafts, no draft passes)"
    return f"Speculation by bytes (a draft pass reads {gigabytes(found.draft_bytes_per_pass)} GB)"


def _speculation(found: Answer) -> Table:
    table = _table("K", "GB/step", "x plain", "break-even", "tok/s if all are accepted")
    for s in found.speculative:
        table.add_row(
            str(s.draft_tokens),
            gigabytes(s.bytes),
            "unknown" if s.step_ratio is None else f"{s.step_ratio:.2f}",
            "unknown" if s.break_even_rate is None else f"{100 * s.break_even_rate:.1f} %",
            "-" if s.ceiling_tok_s is None else f"{s.ceiling_tok_s:.4g}",
        )
    return table


def _table(*titles: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
        header_style="dim", border_style="dim",
    )  # fmt: skip
    for i, title in enumerate(titles):
        last = i == len(titles) - 1
        right = i > 0 and not (last and title == "why")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "why")
    return table
