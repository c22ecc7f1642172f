"""Measured memory bandwidth of this machine: reads, copies and STREAM's add.

Bytes are counted as STREAM does (McCalpin): what the program asks for, so a copy counts its read
and its write, an add two reads and a write; lines fetched only to be overwritten are not counted.
Add (a = b + c) moves what triad (a = b + 3 c) moves, and is one numpy call: blocks of several calls
would measure Python's lock instead of the memory on a machine with many cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

MIN_ARRAY = 64 * 2**20
MAX_ARRAY = 1024 * 2**20
GPU_ARRAY = 4 * 2**30
GPU_PASSES = 10  # per sample: launching and waiting cost some 2 % of a single pass
PASSES = 4  # over a thread's part per sample: starting threads must not be what is timed
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Median GB/s (1e9 bytes) over ``repeats``; add is None where it was not measured."""

    device: str
    read_gb_s: float
    copy_gb_s: float
    add_gb_s: float | None
    array_bytes: int
    threads: int | None
    repeats: int
    method: str


def probe(repeats: int = 15) -> Bandwidth:
    """This machine's bandwidth: its NVIDIA GPU through torch or CuPy, else its CPUs."""
    return probe_gpu(repeats) or probe_cpu(repeats)


def probe_gpu(repeats: int = 15) -> Bandwidth | None:
    """The first NVIDIA GPU; None when there is none or neither torch nor CuPy is installed."""
    return _probe_torch(repeats) or _probe_cupy(repeats)


def probe_cpu(repeats: int = 15, threads: int | None = None) -> Bandwidth:
    """The CPUs this process may use, with numpy, each thread on its own part of the arrays."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    count = threads or usable_cpus()
    size = array_bytes(largest_cache(), available_memory())
    length = size // 8 // count * count
    a, b, c = (np.full(length, value) for value in (1.0, 2.0, 0.5))
    part = length // count
    slices = [slice(i * part, (i + 1) * part) for i in range(count)]

    def read(i: int) -> None:
        b[slices[i]].max()  # numpy's fastest reduction: vectorised on every processor

    def copy(i: int) -> None:
        np.copyto(a[slices[i]], b[slices[i]])

    def add(i: int) -> None:
        np.add(b[slices[i]], c[slices[i]], out=a[slices[i]])

    with ThreadPoolExecutor(count) as pool:

        def timed(work: Callable[[int], None], bytes_moved: int) -> float:
            def passes(i: int) -> None:
                for _ in range(PASSES):
                    work(i)

            def sample() -> None:
                list(pool.map(passes, range(count)))

            return _median_gb_s(sample, PASSES * bytes_moved, repeats)

        return Bandwidth(
            device=cpu_name(),
            read_gb_s=timed(read, 8 * length),
            copy_gb_s=timed(copy, 16 * length),
            add_gb_s=timed(add, 24 * length),
            array_bytes=8 * length,
            threads=count,
            repeats=repeats,
            method="numpy in threads",
        )


def array_bytes(cache_bytes: int | None, memory_bytes: int | None) -> int:
    """Bytes per array: four times the largest cache (STREAM's rule), at most a tenth of memory."""
    wanted = max(MIN_ARRAY, 4 * (cache_bytes or 0))
    bound = MAX_ARRAY if memory_bytes is None else min(MAX_ARRAY, memory_bytes // 10)
    return min(wanted, bound)


def largest_cache() -> int | None:
    """Bytes of the largest cache the kernel tells of."""
    found = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdecimal() and text[-1:] in "KM":
            found.append(int(text[:-1]) * (2**10 if text.endswith("K") else 2**20))
    return max(found, default=None)


def available_memory() -> int | None:
    """Bytes of memory that are free to use: the kernel's figure, or the container's limit."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        rows = (line.split() for line in meminfo.read_text().splitlines())
        found += [int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
        found.append(int(text))
    return min(found, default=None)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name."""
    import platform

    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


def _median_gb_s(work: Callable[[], object], bytes_moved: int, repeats: int) -> float:
    from statistics import median

    seconds = []
    for _ in range(WARM_UP + repeats):
        begin = time.perf_counter_ns()
        work()
        seconds.append((time.perf_counter_ns() - begin) / 1e9)
    return bytes_moved / median(seconds[WARM_UP:]) / 1e9


def _probe_torch(repeats: int) -> Bandwidth | None:
    try:
        torch: Any = import_module("torch")  # an extra: its types are not installed
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    length = min(GPU_ARRAY, free // 8) // 4
    a, b = (torch.ones(length, dtype=torch.float32, device="cuda") for _ in range(2))
    return _gpu(
        str(torch.cuda.get_device_name()), "torch", 4 * length, repeats,
        (torch.cuda.synchronize, b.sum, lambda: a.copy_(b)),
    )  # fmt: skip


def _probe_cupy(repeats: int) -> Bandwidth | None:
    try:
        cupy: Any = import_module("cupy")
        free, _ = cupy.cuda.runtime.memGetInfo()
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        length = min(GPU_ARRAY, free // 8) // 4
        a, b = cupy.ones(length, dtype="float32"), cupy.ones(length, dtype="float32")
    except Exception:  # noqa: BLE001 - no package, no driver or no device: all mean no GPU here
        return None
    wait = cupy.cuda.Device().synchronize
    return _gpu(name, "cupy", 4 * length, repeats, (wait, b.sum, lambda: cupy.copyto(a, b)))


def _gpu(
    name: str, method: str, size: int, repeats: int,
    calls: tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]],
) -> Bandwidth:  # fmt: skip
    wait, read, copy = calls

    def timed(work: Callable[[], Any], bytes_moved: int) -> float:
        def sample() -> None:
            for _ in range(GPU_PASSES):
                work()
            wait()

        wait()
        return _median_gb_s(sample, GPU_PASSES * bytes_moved, repeats)

    return Bandwidth(
        device=name, read_gb_s=timed(read, size), copy_gb_s=timed(copy, 2 * size), add_gb_s=None,
        array_bytes=size, threads=None, repeats=repeats, method=method,
    )  # fmt: skip
