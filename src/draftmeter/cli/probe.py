"""``draftmeter probe``: the memory bandwidth of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from draftmeter.cli.common import JSON_OPTION, emit

if TYPE_CHECKING:
    from draftmeter.roofline.bandwidth import Bandwidth
    from draftmeter.roofline.devices import Device


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="probe")(probe)


def probe(
    as_json: bool = JSON_OPTION,
    repeats: int = typer.Option(15, "--repeats", min=3, max=1000, help="Repeats; the median."),
    cpu: bool = typer.Option(False, "--cpu", help="Measure the CPUs even if there is a GPU."),
) -> None:
    """Measure the memory bandwidth of this machine: reads, copies and STREAM's add.

    An NVIDIA GPU is measured through torch or CuPy where one is installed, else the CPUs.
    """
    from draftmeter.roofline import bandwidth
    from draftmeter.roofline.devices import local_gpu

    found = bandwidth.probe_cpu(repeats) if cpu else bandwidth.probe(repeats)
    gpu = None if cpu else local_gpu()
    if as_json:
        import msgspec

        peak = gpu.bandwidth_gb_s if gpu is not None and found.threads is None else None
        body = {**msgspec.to_builtins(found), "peak_gb_s": peak}
        emit(msgspec.json.format(msgspec.json.encode(body)) + b"\n")
        return
    for line in lines(found, gpu):
        print(line)  # noqa: T201 - results belong on stdout


def lines(found: Bandwidth, gpu: Device | None) -> list[str]:
    """What was measured, in words."""
    from draftmeter.report.safe import printable

    name = printable(found.device, 60)
    text = [f"{name}: reads {found.read_gb_s:.4g} GB/s, copies {found.copy_gb_s:.4g} GB/s"]
    if found.add_gb_s is not None:
        text[0] += f", adds {found.add_gb_s:.4g} GB/s"
    where = f"{found.threads} threads" if found.threads is not None else "GPU"
    text.append(
        f"Median of {found.repeats}, arrays of {found.array_bytes / 2**20:.0f} MiB, {where}, "
        f"{found.method}."
    )
    if gpu is not None and found.threads is None:
        share = 100 * found.read_gb_s / gpu.bandwidth_gb_s
        text.append(
            f"Peak {gpu.bandwidth_gb_s:.4g} GB/s ({gpu.source}): reads reach {share:.0f} %."
        )
    elif gpu is not None:
        text.append(
            f"{printable(gpu.name, 60)} is here too (peak {gpu.bandwidth_gb_s:.4g} GB/s): install "
            "torch to measure it."
        )
    return text
