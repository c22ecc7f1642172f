"""``results.json``: written, read, and its JSON Schema (docs/schema/results-1.schema.json)."""

from __future__ import annotations

import msgspec

from draftmeter.errors import UsageError
from draftmeter.record.results import SCHEMA, Results


def to_json(results: Results) -> bytes:
    """The results as JSON, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def from_json(data: bytes) -> Results:
    """Read what ``to_json`` wrote; keys this version does not know are left out.

    Raises:
        UsageError: it is not JSON, of another schema, or a value has the wrong type.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"not results of draftmeter: {error}") from None
    if head.schema != SCHEMA:
        raise UsageError(
            f"results of schema {head.schema[:60]!r}; this version reads {SCHEMA!r}. "
            "Use the draftmeter version that made them."
        )
    try:
        return msgspec.json.decode(data, type=Results)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"damaged results: {error}") from None


def schema_json() -> bytes:
    """The JSON Schema of ``results.json``, from the types that write it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= msgspec.json.schema(Results)
    return msgspec.json.format(msgspec.json.encode(schema), indent=1) + b"\n"


class _Head(msgspec.Struct):
    schema: str = "?"
