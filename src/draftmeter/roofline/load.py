"""Finding a model: folder, config.json, .gguf, .safetensors, or an id on the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from draftmeter.errors import UsageError
from draftmeter.roofline.checkpoint import from_stored
from draftmeter.roofline.formula import from_config
from draftmeter.roofline.model import Model
from draftmeter.roofline.safetensors import Stored, read_file, shard_names

MAX_JSON = 32 * 2**20
MAX_LISTED = 10_000
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def load_model(where: str, weights: str | None = None) -> Model:
    """The model at a path, or with an id like ``org/name`` on the hub; only headers are read.

    Raises:
        UsageError: Nothing there, or a file that is broken or not known.
        ServerError: The hub could not be reached.
    """
    path = Path(where)
    try:
        if path.is_dir():
            return _from_folder(path, weights)
        if path.is_file():
            return _from_file(path, weights)
    except (OSError, ValueError) as error:
        raise UsageError(f"{where[:200]}: cannot be read: {str(error)[:120]}") from None
    return _from_hub(where, weights)


def _from_file(path: Path, weights: str | None) -> Model:
    if path.suffix == ".gguf":
        return _from_gguf(path, weights)
    if path.suffix == ".safetensors":
        config = path.with_name("config.json")
        raw = read_json(config) if config.is_file() else None
        return from_stored(read_file(path), raw, path.stem, weights)
    if path.suffix == ".json":
        if path.name.endswith(".index.json"):
            return _from_folder(path.parent, weights)
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return from_config(read_json(path), name, weights)
    raise UsageError(
        f"{path.name}: not a model; give a folder, a config.json, a .safetensors or a .gguf"
    )


def _from_folder(path: Path, weights: str | None) -> Model:
    name = path.resolve().name
    config = path / "config.json"
    raw = read_json(config) if config.is_file() else None
    files = safetensors_files(path)
    if files:
        return from_stored([t for f in files for t in read_file(f)], raw, name, weights)
    ggufs = sorted(p for p in path.glob("*.gguf") if not p.name.startswith("mmproj"))
    heads = [p for p in ggufs if not (m := _SPLIT.search(p.name)) or int(m[1]) == 1]
    if len(heads) == 1:
        return _from_gguf(heads[0], weights)
    if heads:
        raise UsageError(f"{path}: {len(heads)} .gguf files; name one, like {heads[0].name}")
    if raw is not None:
        return from_config(raw, name, weights)
    raise UsageError(f"{path}: no .safetensors, .gguf or config.json in this folder")


def safetensors_files(path: Path) -> list[Path]:
    """The folder's safetensors: those of the index, ``model*``, else all but consolidated.

    Raises:
        UsageError: The index names a file that is not there.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        files = [path / name for name in shard_names(read_json(index))]
        missing = [f.name for f in files if not f.is_file()]
        if missing:
            raise UsageError(
                f"{path}: {len(missing)} of {len(files)} files are missing, the first is "
                f"{missing[0]}; download them, or give config.json with --weights"
            )
        return files
    files = sorted(path.glob("*.safetensors"))[:MAX_LISTED]
    whole = [f for f in files if not f.name.startswith(("consolidated", "adapter_"))]
    return whole or files


def read_json(path: Path) -> Any:
    """A JSON file of bounded size.

    Raises:
        UsageError: Too large or not JSON.
    """
    if path.stat().st_size > MAX_JSON:
        raise UsageError(f"{path.name}: larger than {MAX_JSON >> 20} MiB; not a model's file")
    try:
        return msgspec.json.decode(path.read_bytes())
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not valid JSON: {str(error)[:120]}") from None


def _from_gguf(path: Path, weights: str | None) -> Model:
    from draftmeter.roofline.gguf import read_gguf
    from draftmeter.roofline.gguf_model import from_gguf

    if weights is not None:
        raise UsageError(f"{path.name}: a .gguf has its own types; leave --weights out")
    return from_gguf([read_gguf(part) for part in gguf_parts(path)], path.stem)


def gguf_parts(path: Path) -> list[Path]:
    """All files of a split GGUF (``name-00001-of-00003.gguf``), or the file itself.

    Raises:
        UsageError: A part is missing.
    """
    found = _SPLIT.search(path.name)
    if found is None:
        return [path]
    count = min(int(found[2]), MAX_LISTED)
    stem = path.name[: found.start()]
    parts = [path.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    missing = [p.name for p in parts if not p.is_file()]
    if missing or not parts:
        raise UsageError(f"{path.name}: its part {missing[0] if missing else '1'} is missing")
    return parts


def _from_hub(where: str, weights: str | None) -> Model:
    from draftmeter.roofline.hub import REPO_ID, hub_fetch, read_hub

    if not REPO_ID.fullmatch(where):
        raise UsageError(
            f"{where[:200]}: no such file or folder, and not an id of the hub (org/name)"
        )
    stored, raw = read_hub(hub_fetch(where), where)
    return _from_parts(stored, raw, where, weights)


def _from_parts(stored: list[Stored], raw: Any, name: str, weights: str | None) -> Model:
    return from_stored(stored, raw, name, weights) if stored else from_config(raw, name, weights)
