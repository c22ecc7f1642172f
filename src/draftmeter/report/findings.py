"""The table of ``draftmeter check``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from draftmeter.analysis.findings import Finding
from draftmeter.report.safe import printable

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def show_findings(url: str, found: Sequence[Finding]) -> None:
    """Print the findings; the status is a word, so that colour is never needed to read it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(printable(url), style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for width in (13, 7, None):
        table.add_column(width=width, no_wrap=width is not None)
    for finding in found:
        text = Text(printable(finding.text, limit=400))
        if finding.advice and finding.status != "ok":
            text.append(f"\n-> {printable(finding.advice, limit=400)}", style="dim")
        table.add_row(finding.name, Text(finding.status, style=_STYLES[finding.status]), text)
    console.print(table)


def findings_json(url: str, found: Sequence[Finding]) -> bytes:
    """The findings for programs: ``{"url", "ok", "findings": [...]}``."""
    ok = not any(f.status == "problem" for f in found)
    body = {"url": url, "ok": ok, "findings": list(found)}
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"
