"""Where a run is made: host, processor, GPUs. Nothing that identifies a person."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from draftmeter import __version__
from draftmeter.record.folder import SCHEMA
from draftmeter.record.types import Environment


def describe(run_id: str, name: str, seed: int) -> Environment:
    """This machine and this draftmeter, for ``environment.json``."""
    return Environment(
        schema=SCHEMA,
        run_id=run_id,
        name=name,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        draftmeter=__version__,
        python=sys.version.split()[0],
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_model(),
        cpu_count=os.cpu_count(),
        gpus=gpu_names(),
        seed=seed,
    )


def gpu_names() -> list[str]:
    """Full names of the NVIDIA GPUs, as the driver prints them; empty without a driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)
        ]
        return [n.decode() if isinstance(n, bytes) else str(n) for n in names]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def gpu_memory_used_bytes() -> int | None:
    """Memory in use on all NVIDIA GPUs together; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  no driver, no library: the same answer
        return None
    try:
        return sum(
            int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i)).used)
            for i in range(pynvml.nvmlDeviceGetCount())
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None
