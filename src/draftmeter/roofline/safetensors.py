"""Safetensors headers, read within bounds: nothing of the weights is touched.

Format: 8 bytes little-endian length, that many bytes of JSON (name -> dtype, shape, offsets),
then the data. Files are untrusted.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from draftmeter.errors import UsageError

MAX_HEADER = 100_000_000
MAX_COLONS = 400_000  # four an entry: a hundred thousand tensors in one file
MAX_COMMAS = 2_000_000
MAX_DIMENSIONS = 16
MAX_FILES = 2000

# Bits per element: safetensors' own table.
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One tensor as stored: ``elements`` of a dtype in ``bytes`` bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """Number of stored elements (a packed element holds several weights)."""
        return math.prod(self.shape)


class _Entry(msgspec.Struct):
    dtype: str = ""  # ``__metadata__`` has none
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] = (0, 0)


def read_file(path: Path) -> list[Stored]:
    """The tensors of one file.

    Raises:
        UsageError: Unreadable, truncated, or a header that contradicts itself or the file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = header_length(file.read(8), size, path.name)
            header = file.read(length)
    except OSError as error:
        raise UsageError(f"{path.name}: cannot be read: {error.strerror or error}") from None
    if len(header) < length:
        raise UsageError(f"{path.name}: the header is cut off; download the file again")
    return parse_header(header, size - 8 - length, path.name)


def header_length(first: bytes, file_size: int, name: str) -> int:
    """The header's length from the first eight bytes of a file of ``file_size`` bytes.

    Raises:
        UsageError: Longer than the file or than 100 MB.
    """
    if len(first) < 8:
        raise UsageError(f"{name}: too short to be a safetensors file ({file_size} bytes)")
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER or 8 + length > file_size:
        raise UsageError(
            f"{name}: not a safetensors file, or cut off: it announces a header of {length} bytes "
            f"in a file of {file_size}"
        )
    return length


def parse_header(header: bytes, data_bytes: int, name: str) -> list[Stored]:
    """The tensors a header lists; offsets must lie within ``data_bytes`` and not overlap.

    Raises:
        UsageError: Not such a header, an unknown dtype, or offsets that do not fit.
    """
    # Counted before anything is built: what is decoded stays in proportion to a model's header.
    if header.count(b":") > MAX_COLONS or header.count(b",") > MAX_COMMAS:
        raise UsageError(f"{name}: the header lists too many tensors to be a model's")
    try:
        entries = msgspec.json.decode(header, type=dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{name}: the header is not valid: {str(error)[:120]}") from None
    entries.pop("__metadata__", None)
    found = [_stored(key, entry, name) for key, entry in entries.items()]
    _check_offsets([entry.data_offsets for entry in entries.values()], data_bytes, name)
    return found


def _stored(key: str, entry: _Entry, file: str) -> Stored:
    shape, bits = entry.shape, BITS.get(entry.dtype)
    if bits is None:
        raise UsageError(
            f"{file}: tensor {key[:80]!r} has the unknown dtype {entry.dtype[:40]!r}: "
            "its size is not known"
        )
    if len(shape) > MAX_DIMENSIONS or (shape and min(shape) < 0):
        raise UsageError(f"{file}: tensor {key[:80]!r} has an impossible shape")
    begin, end = entry.data_offsets
    needed = -(-math.prod(shape) * bits // 8)
    if begin < 0 or end - begin != needed:
        raise UsageError(
            f"{file}: tensor {key[:80]!r} needs {needed} bytes but its offsets are {begin} to {end}"
        )
    return Stored(key, entry.dtype, shape, needed)


def _check_offsets(offsets: list[tuple[int, int]], data_bytes: int, name: str) -> None:
    last = 0
    for begin, end in sorted(offsets):
        if begin < last:
            raise UsageError(f"{name}: tensors overlap at byte {begin}; the file is broken")
        last = end
    if last > data_bytes:
        raise UsageError(
            f"{name}: cut off: its tensors need {last} bytes but {data_bytes} are there; "
            "download it again"
        )


def shard_names(index: Any) -> list[str]:
    """The files that ``model.safetensors.index.json`` names, each a bare file name.

    Raises:
        UsageError: Not an index, too many files, or a name that leads out of the folder.
    """
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where:
        raise UsageError("model.safetensors.index.json: no weight_map in it")
    names = {v for v in where.values() if isinstance(v, str)}
    for name in names:
        if not name or "/" in name or "\\" in name or name.startswith(".") or "\0" in name:
            raise UsageError(
                f"model.safetensors.index.json: {name[:80]!r} is not a file of this folder"
            )
    if len(names) > MAX_FILES:
        raise UsageError(f"model.safetensors.index.json: names {len(names)} files")
    return sorted(names)
