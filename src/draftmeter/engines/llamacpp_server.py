"""llama.cpp's own server, from the ``xllamacpp`` wheel, as a command.

``python -m draftmeter.engines.llamacpp_server --model FILE --port N [--ngram]`` starts an
OpenAI-compatible server on the loopback address and runs until it is ended. It is what
``draftmeter demo`` measures, and a real engine for tests on machines without a GPU.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any


def parameters(options: argparse.Namespace) -> Any:
    """The options as llama.cpp parameters."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.model.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.context * options.parallel
    params.endpoint_metrics = True
    params.endpoint_slots = True
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = options.threads
        cpu.poll = 0  # an idle server must not steal time from the one being measured
    if options.ngram:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = options.ngram_match
        params.speculative.ngram_simple.size_m = options.ngram_draft
    if options.draft_model is not None:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = str(options.draft_model)
        params.speculative.draft.n_max = options.draft_length
        params.speculative.draft.p_min = 0.0  # every step drafts K tokens
    return params


def main(arguments: list[str] | None = None) -> int:
    """Start the server and wait for a signal."""
    parser = argparse.ArgumentParser(prog="draftmeter.engines.llamacpp_server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=4096, help="tokens per stream")
    parser.add_argument("--parallel", type=int, default=1, help="streams at the same time")
    parser.add_argument(
        "--ngram", action="store_true", help="draft from n-grams of the text so far"
    )
    parser.add_argument("--ngram-match", type=int, default=3, help="tokens that must match")
    parser.add_argument("--ngram-draft", type=int, default=8, help="tokens drafted at most")
    parser.add_argument("--draft-model", type=Path, help="draft with this model")
    parser.add_argument("--draft-length", type=int, default=3, help="tokens it drafts per step")
    options = parser.parse_args(arguments)
    if not options.model.is_file():
        print(f"error: no model file at {options.model}", file=sys.stderr)  # noqa: T201
        return 2
    import xllamacpp

    server = xllamacpp.Server(parameters(options))
    print(f"listening on http://127.0.0.1:{options.port}", flush=True)  # noqa: T201
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while server is not None:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
