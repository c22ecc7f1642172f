"""GGUF headers, read within bounds: metadata and tensor list; vocabularies are stepped over.

Format (ggml docs/gguf.md): magic, version, number of tensors, number of metadata entries, the
entries, the tensor list, padding, the data. Files are untrusted; lengths are checked first.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftmeter.errors import UsageError

MAX_TENSORS = 200_000
MAX_ENTRIES = 10_000
MAX_NAME = 1024
MAX_TEXT = 65_536  # longer texts (chat templates) are stepped over
MAX_ARRAY = 4096  # longer arrays (vocabularies) are stepped over
MAX_HEADER = 64 * 2**20  # the largest vocabularies take some 10 MB
MAX_DIMENSIONS = 8

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip

Value = int | float | bool | str | list["int | float | bool"]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its type's name, its shape (fastest first), bytes and place in the data."""

    name: str
    kind: str
    shape: tuple[int, ...]
    elements: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata (without long texts and arrays), tensors, and where the data begins."""

    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]
    data_start: int


def read_gguf(path: Path) -> GgufHeader:
    """The header of a GGUF file.

    Raises:
        UsageError: Not a GGUF file, big-endian, cut off, or one that contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < 24:
                raise UsageError(f"{path.name}: too short to be a GGUF file ({size} bytes)")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_gguf(data, size, path.name)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path.name}: cannot be read: {str(error)[:120]}") from None


def parse_gguf(data: mmap.mmap | bytes, size: int, name: str) -> GgufHeader:
    """The header at the beginning of ``data``, of a file of ``size`` bytes.

    Raises:
        UsageError: As ``read_gguf``.
    """
    reader = _Reader(data, min(size, len(data), MAX_HEADER), name)
    if bytes(data[:4]) != b"GGUF":
        raise UsageError(f"{name}: not a GGUF file")
    reader.at = 4
    version = reader.number("I")
    if version not in {2, 3}:
        raise UsageError(f"{name}: GGUF version {version} is not known (2 and 3 are)")
    tensors, entries = reader.number("Q"), reader.number("Q")
    if tensors > MAX_TENSORS or entries > MAX_ENTRIES:
        raise UsageError(f"{name}: announces {tensors} tensors and {entries} entries: broken")
    metadata: dict[str, Value] = {}
    for _ in range(entries):
        key = reader.text(MAX_NAME)
        value = reader.value(reader.number("I"))
        if value is not None:
            metadata[key] = value
    found = [_tensor(reader) for _ in range(tensors)]
    return _checked(metadata, found, reader.at, size, name)


def _checked(
    metadata: dict[str, Value], tensors: list[GgufTensor], end: int, size: int, name: str
) -> GgufHeader:
    stated = metadata.get("general.alignment", 32)
    if not isinstance(stated, int) or not 1 <= stated <= 2**20:
        raise UsageError(f"{name}: impossible alignment")
    start = -(-end // stated) * stated
    last = 0
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset < last:
            raise UsageError(f"{name}: tensors overlap at {tensor.name[:80]!r}; the file is broken")
        last = tensor.offset + tensor.bytes
    if tensors and start + last > size:
        raise UsageError(
            f"{name}: cut off: its tensors need {start + last} bytes but the file has {size}; "
            "download it again"
        )
    return GgufHeader(metadata, tuple(tensors), start)


def _tensor(reader: _Reader) -> GgufTensor:
    name = reader.text(MAX_NAME)
    dimensions = reader.number("I")
    if dimensions > MAX_DIMENSIONS:
        raise UsageError(f"{reader.name}: tensor {name[:80]!r} has {dimensions} dimensions")
    shape = tuple(reader.number("Q") for _ in range(dimensions))
    kind, offset = reader.number("I"), reader.number("Q")
    label, block, block_bytes = _quant(kind, reader.name, name)
    elements = 1
    for length in shape:
        elements *= length
    if shape and shape[0] % block:
        raise UsageError(f"{reader.name}: tensor {name[:80]!r} does not divide into blocks")
    return GgufTensor(name, label, shape, elements, elements // block * block_bytes, offset)


def _quant(kind: int, file: str, tensor: str) -> tuple[str, int, int]:
    """Name, weights per block and bytes per block of a ggml type."""
    found = _quant_table().get(kind)
    if found is None:
        raise UsageError(
            f"{file}: tensor {tensor[:80]!r} has the unknown type {kind}; a newer gguf package "
            "may know it: pip install -U gguf"
        )
    return found


_TABLE: dict[int, tuple[str, int, int]] = {}


def _quant_table() -> dict[int, tuple[str, int, int]]:
    if not _TABLE:
        from gguf import GGML_QUANT_SIZES

        _TABLE.update({int(k): (k.name, v[0], v[1]) for k, v in GGML_QUANT_SIZES.items()})
    return _TABLE


class _Reader:
    """A place in the file; every step is checked against the end."""

    def __init__(self, data: mmap.mmap | bytes, end: int, name: str) -> None:
        self.data = data
        self.end = end
        self.name = name
        self.at = 0

    def skip(self, count: int) -> int:
        """Step over ``count`` bytes; where they began."""
        begin = self.at
        if count < 0 or begin + count > self.end:
            raise UsageError(
                f"{self.name}: the header is cut off or broken; download the file again"
            )
        self.at = begin + count
        return begin

    def number(self, form: str) -> int:
        """One integer of a struct format."""
        size = struct.calcsize("<" + form)
        found: int = struct.unpack_from("<" + form, self.data, self.skip(size))[0]
        return found

    def text(self, most: int) -> str:
        """One string, refused when longer than ``most`` bytes."""
        length = self.number("Q")
        if length > most:
            raise UsageError(f"{self.name}: a name of {length} bytes: not a GGUF file, or broken")
        begin = self.skip(length)
        return bytes(self.data[begin : self.at]).decode("utf-8", "replace")

    def value(self, kind: int) -> Value | None:
        """One metadata value; None where it was stepped over."""
        if kind == _STRING:
            length = self.number("Q")
            begin = self.skip(length)
            if length > MAX_TEXT:
                return None
            return bytes(self.data[begin : self.at]).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array()
        form = _SCALARS.get(kind)
        if form is None:
            raise UsageError(f"{self.name}: unknown metadata type {kind}: the file is broken")
        return self.number(form)

    def array(self) -> list[int | float | bool] | None:
        """A short array of numbers; long ones and arrays of strings are stepped over."""
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            self._skip_strings(count)
            return None
        form = _SCALARS.get(kind)
        if form is None:
            raise UsageError(f"{self.name}: arrays of type {kind} are not read")
        begin = self.skip(count * struct.calcsize("<" + form))
        if count > MAX_ARRAY:
            return None
        return list(struct.unpack_from(f"<{count}{form}", self.data, begin))

    def _skip_strings(self, count: int) -> None:
        if count * 8 > self.end - self.at:
            self.skip(count * 8)  # refuses
        unpack, data, at, last = struct.Struct("<Q").unpack_from, self.data, self.at, self.end - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + unpack(data, at)[0]
        self.skip(at - self.at)
