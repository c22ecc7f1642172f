"""Peak memory bandwidth: of a device by its full name, or of the GPU that is here."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache

from draftmeter.errors import UsageError


@dataclass(frozen=True, slots=True)
class Device:
    """A device's name as its driver prints it, peak GB/s (1e9 bytes), and where that is from.

    ``lead``: the source is weak or sources conflict.
    """

    name: str
    bandwidth_gb_s: float
    memory_gb: float | None
    source: str
    lead: bool = False


@cache
def devices() -> tuple[Device, ...]:
    """The table (``devices.toml``)."""
    import tomllib
    from importlib.resources import files

    text = files("draftmeter.roofline").joinpath("devices.toml").read_text("utf-8")
    return tuple(
        Device(
            name=row["name"],
            bandwidth_gb_s=float(row["bandwidth_gb_s"]),
            memory_gb=row.get("memory_gb"),
            source=row["source"],
            lead=row.get("lead", False),
        )
        for row in tomllib.loads(text)["device"]
    )


def device_named(name: str) -> Device:
    """The device of exactly this name, upper and lower case alike.

    Never by a part of the name: "H100" is not "H100 PCIe", "L4" is not "L40" (field case 28).

    Raises:
        UsageError: Not in the table; offers the nearest names.
    """
    wanted = " ".join(name.split()).casefold()
    table = {d.name.casefold(): d for d in devices()}
    if wanted in table:
        return table[wanted]
    words = set(wanted.split())
    sharing = [k for k in table if words & (set(k.split()) - {"nvidia", "amd", "apple", "rtx"})]
    near = list(dict.fromkeys([*difflib.get_close_matches(wanted, table, 4, 0.6), *sharing]))[:5]
    offer = "; ".join(table[k].name for k in near)
    hint = f"did you mean: {offer}" if offer else "no name in the table is near"
    raise UsageError(
        f"device {name[:80]!r}: not in the device table\n{hint}. Or give the bandwidth in GB/s"
    )


def peak_gb_s(memory_clock_mhz: int, bus_width_bits: int) -> float:
    """Peak of double-data-rate memory = 2 x clock x bus width / 8, in GB/s (1e9 bytes).

    14001 MHz and 512 bit are 1792 GB/s; 3996 MHz and 7680 bit 7672 (pytorch/ao#4002).
    """
    return 2 * memory_clock_mhz * bus_width_bits / 8 / 1000


def local_gpu(index: int = 0) -> Device | None:
    """The NVIDIA GPU of this machine by its own memory clock and bus width; None without one.

    Where the driver does not tell the bus width the table answers for its name.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no package, no library, no driver: all mean no GPU here
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found = pynvml.nvmlDeviceGetName(handle)
        name = found.decode() if isinstance(found, bytes) else str(found)
        return _by_clock(pynvml, handle, name) or _by_name(name)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _by_clock(pynvml: object, handle: object, name: str) -> Device | None:
    try:
        clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, 2)  # type: ignore[attr-defined]  # memory
        width = pynvml.nvmlDeviceGetMemoryBusWidth(handle)  # type: ignore[attr-defined]
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - unified-memory devices answer none of these
        return None
    if clock <= 0 or width <= 0:
        return None
    source = f"memory clock {clock} MHz x {width} bit"
    return Device(name, peak_gb_s(clock, width), round(memory / 1e9, 1), source)


def _by_name(name: str) -> Device | None:
    try:
        return device_named(name)
    except UsageError:
        return None
