"""A model's headers from the Hugging Face Hub by ranges: no weights are downloaded."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from draftmeter.errors import DraftmeterError, ServerError, UsageError
from draftmeter.roofline.safetensors import Stored, header_length, parse_header, shard_names

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
FIRST_BYTES = 256 * 1024
MAX_JSON = 32 * 2**20
TIMEOUT_S = 20
CONNECTIONS = 8

# (file, first byte, last byte) -> (bytes, size of the whole file); None: no such file.
Fetch = Callable[[str, int, int], tuple[bytes, int] | None]


def read_hub(fetch: Fetch, repo: str) -> tuple[list[Stored], Any]:
    """All tensors of a repository and its decoded config.json (None without one).

    Raises:
        UsageError: The repository has no safetensors, or broken ones.
        ServerError: The hub could not be reached.
    """
    from concurrent.futures import ThreadPoolExecutor

    config = _json(fetch, "config.json", repo)
    index = _json(fetch, "model.safetensors.index.json", repo)
    names = ["model.safetensors"] if index is None else shard_names(index)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        found = list(pool.map(lambda name: _header(fetch, name), names))
    missing = [name for name, tensors in zip(names, found, strict=True) if tensors is None]
    if missing and (index is not None or config is None):
        raise UsageError(f"{repo}: no {missing[0]} there; a .gguf must be downloaded first")
    return [t for tensors in found if tensors is not None for t in tensors], config


def hub_fetch(repo: str) -> Fetch:
    """Ranges of a repository's files through huggingface_hub (its token, its mirror)."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers

    def fetch(file: str, first: int, last: int) -> tuple[bytes, int] | None:
        headers = {**build_hf_headers(), "Range": f"bytes={first}-{last}",
                   "Accept-Encoding": "identity"}  # fmt: skip
        url = hf_hub_url(repo, file)
        try:
            with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as answer:
                return _range(answer, f"{repo}/{file}", last + 1 - first)
        except DraftmeterError:
            raise
        except Exception as error:
            raise ServerError(
                f"the hub could not be reached for {repo} ({type(error).__name__}); offline, give "
                "the folder, the .gguf, or a config.json with --weights"
            ) from error

    return fetch


def _range(answer: Any, what: str, most: int) -> tuple[bytes, int] | None:
    """The body of an answer, at most ``most`` bytes of it even if the server sends the file."""
    if answer.status_code == 404:
        return None
    if answer.status_code in {401, 403}:
        raise ServerError(f"{what}: no such model, or it is gated: log in with `hf auth login`")
    if answer.status_code != 206:
        raise ServerError(
            f"{what}: the hub answered {answer.status_code}, not the range that was asked for"
        )
    body = b""
    for piece in answer.iter_raw():
        body += piece
        if len(body) >= most:
            break
    total = str(answer.headers.get("content-range", "")).rpartition("/")[2]
    return body[:most], int(total) if total.isdecimal() else len(body)


def _json(fetch: Fetch, file: str, repo: str) -> Any:
    import msgspec

    found = fetch(file, 0, MAX_JSON - 1)
    if found is None:
        return None
    body, size = found
    if size > MAX_JSON:
        raise UsageError(f"{repo}/{file}: {size} bytes are too many")
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise UsageError(f"{repo}/{file}: not valid JSON: {str(error)[:120]}") from None


def _header(fetch: Fetch, file: str) -> list[Stored] | None:
    found = fetch(file, 0, FIRST_BYTES - 1)
    if found is None:
        return None
    body, size = found
    length = header_length(body[:8], size, file)
    header = body[8 : 8 + length]
    if len(header) < length:
        rest = fetch(file, 8 + len(header), 8 + length - 1)
        header += rest[0] if rest is not None else b""
    if len(header) < length:
        raise UsageError(f"{file}: the hub sent only part of the header; try again")
    return parse_header(header[:length], size - 8 - length, file)
