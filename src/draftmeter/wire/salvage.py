"""JSON that a strict reader refuses, read for what can be used of it.

Servers written in Python send ``NaN`` and halves of surrogate pairs, others put a list where a
text belongs. This is the slow way, taken only when the strict decoder refused a payload.
"""

from __future__ import annotations

import functools
import json
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

S = TypeVar("S", bound=msgspec.Struct)


def loosely(data: bytes) -> Any:
    """The JSON value of ``data``, None where even a tolerant reader finds none.

    ``NaN`` and infinities become null, invalid UTF-8 U+FFFD, lone surrogates ``?``.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None)
        whole = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return msgspec.json.decode(whole.encode("utf-8", "replace"))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def salvage(kind: type[S], raw: Any) -> S | None:
    """A struct from what of ``raw`` fits it: fields of a wrong type take their default.

    None when ``raw`` is not an object. The depth is that of the struct, not of the input.
    """
    if not isinstance(raw, dict):
        return None
    values = {
        field.name: _salvage(field.type, raw[field.encode_name], field.default)
        for field in _fields(kind)
        if field.encode_name in raw
    }
    return kind(**values)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _salvage(kind: Any, raw: Any, default: Any) -> Any:
    try:
        return msgspec.convert(raw, kind, strict=False)
    except (msgspec.ValidationError, RecursionError):
        pass
    for option in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return salvage(option, raw)
        if get_origin(option) is list and isinstance(raw, list):
            (member,) = get_args(option)
            if isinstance(member, type) and issubclass(member, msgspec.Struct):
                return [one for one in (salvage(member, item) for item in raw) if one is not None]
    return default
