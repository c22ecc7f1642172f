"""A streaming chat server that knows its own answers: what it sent, when, and how it drafted.

``python tests/support/known_server.py --port N [--config JSON|@FILE]`` speaks like vLLM and says
at ``/truth`` what it did. Times are ``time.monotonic_ns``, on Linux the same clock in every
process. ``Config`` lists what can be asked of it; in tests use ``with start({...}) as server``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import math
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

STYLES = {
    "ascii": ("The ", "draft ", "was ", "kept, ", "so ", "on.\n"),
    # As vLLM: an unfinished character is a token with an empty text.
    "japanese": ("投", "", "機", "的", "", "", "推論", "。"),
    "hostile": ("\u2028", "\u2029", "<script>", "\x1b[31m", "data: ", "\u202e", "😀\r\n\n", '"}'),
}


@dataclass(frozen=True)
class Config:
    """Everything optional. ``*_ms`` are milliseconds; K is ``draft_tokens``.

    Each other stream makes a step last ``load_ms`` longer for each token it verifies.
    A step lasts ``step_ms``, with speculation plus ``fixed_ms`` plus K times ``per_draft_ms``.
    ``position_acceptance[i]`` is P(the first i+1 drafts are all accepted).
    ``fault`` is ``{"request": n | "all", "kind": ..., "after_chunks": n}``, or a list of them;
    ``foreign`` ``{"drafts", "drafted", "accepted", "generation_tokens"}`` is added per request.
    Every token's likeliest have ``probabilities``; ``top_logprobs`` beyond the most are refused.
    """

    seed: int = 0
    model: str = "known"
    version: str = "0.24.0"
    prefill_ms: float = 5.0
    step_ms: float = 2.0
    per_draft_ms: float = 0.0
    fixed_ms: float = 0.0
    spin_ms: float = 2.0
    load_ms: float = 0.0
    draft_tokens: int = 0
    position_acceptance: tuple[float, ...] = ()
    completion_tokens: int = 64
    stop_after: int | None = None
    first_chunk_tokens: int = 1
    role_chunk_ms: float = 0.0
    token_ids: bool = True
    continuous_usage: bool = True
    include_usage: bool = True
    per_request_metrics: bool = False
    usage_delay_ms: float = 0.0
    reasoning_tokens: int = 0
    style: str = "ascii"
    crlf: bool = False
    keepalive_ms: float = 0.0
    engines: int = 1
    counter_lag_ms: float = 0.0
    foreign: dict = field(default_factory=dict)
    restart_after: int | None = None
    refuse_fields: tuple[str, ...] = ()
    api_key: str | None = None
    metrics_auth: bool = False
    metrics: str = "on"
    fault: dict | list | None = None
    probabilities: tuple[float, ...] = ()
    most_logprobs: int = 20

    def __post_init__(self):
        law = tuple(self.position_acceptance)
        if len(law) != self.draft_tokens or list(law) != sorted(law, reverse=True):
            raise ValueError("position_acceptance: K values, none larger than the one before")

    def step_length_ms(self):
        drafts = self.draft_tokens
        return self.step_ms + (self.fixed_ms + drafts * self.per_draft_ms if drafts else 0.0)

    def fault_of(self, number):
        faults = self.fault if isinstance(self.fault, list) else [self.fault or {}]
        return next((f for f in faults if f.get("request", "all") in (number, "all")), {})


@dataclass(frozen=True)
class Chunk:
    """One engine step. ``accepted`` (None for the prefill) may exceed what was still wanted."""

    due_ms: float
    tokens: int
    accepted: int | None


def plan(config, number, cap):
    """The steps of request ``number``: the same for the same seed, whatever else goes on."""
    rng = random.Random(f"{config.seed}:{number}")
    chunks = [Chunk(config.prefill_ms, min(config.first_chunk_tokens, cap), None)]
    left = cap - chunks[0].tokens
    while left > 0:
        drawn = rng.random()
        accepted = sum(drawn < share for share in config.position_acceptance)
        due_ms = config.prefill_ms + len(chunks) * config.step_length_ms()
        # As vLLM: drafts accepted past the cap count in the counters but are never sent.
        tokens = min(1 + accepted, left)
        chunks.append(Chunk(due_ms, tokens, accepted if config.draft_tokens else None))
        left -= tokens
    return chunks


class Counters:
    """What ``/metrics`` shows; entries become visible ``counter_lag_ms`` after their time."""

    def __init__(self, config):
        self.config, self.pending, self.running = config, deque(), 0
        self.reset()

    def reset(self):
        self.created = time.time()
        self.pending.clear()
        self.seen = [Counter() for _ in range(self.config.engines)]

    def add(self, engine, amounts):
        self.pending.append((time.monotonic_ns(), engine, amounts))

    def text(self):
        horizon = time.monotonic_ns() - self.config.counter_lag_ms * 1e6
        while self.pending and self.pending[0][0] <= horizon:
            _, engine, amounts = self.pending.popleft()
            self.seen[engine].update(amounts)
        lines = []
        for name, about, keys in self.families():
            rows = [(e, extra, key) for e in range(self.config.engines) for extra, key in keys]
            for suffix, kind in (("total", "counter"), ("created", "gauge")):
                lines += [f"# HELP {name}_{suffix} {about}", f"# TYPE {name}_{suffix} {kind}"]
                for engine, extra, key in rows:
                    value = self.created if suffix == "created" else float(self.seen[engine][key])
                    labels = self.labels(engine, extra)
                    lines.append(f"{name}_{suffix}{{{labels}}} {value!r}")
        gauge = "vllm:num_requests_running"
        lines += [f"# HELP {gauge} Number of running requests.", f"# TYPE {gauge} gauge"]
        for engine in range(self.config.engines):
            value = float(self.running if engine == 0 else 0)
            lines.append(f"{gauge}{{{self.labels(engine, '')}}} {value}")
        return "\n".join(lines) + "\n"

    def labels(self, engine, extra):
        return f'engine="{engine}",model_name="{self.config.model}"{extra}'

    def families(self):
        if self.config.draft_tokens:
            spec = "vllm:spec_decode_num_"
            positions = [(f',position="{i}"', f"at{i}") for i in range(self.config.draft_tokens)]
            yield spec + "drafts", "Number of spec decoding drafts.", [("", "drafts")]
            yield spec + "draft_tokens", "Number of draft tokens.", [("", "drafted")]
            yield spec + "accepted_tokens", "Number of accepted tokens.", [("", "accepted")]
            yield spec + "accepted_tokens_per_pos", "Accepted tokens per position.", positions
        yield "vllm:prompt_tokens", "Number of prefill tokens processed.", [("", "prompt_tokens")]
        yield "vllm:generation_tokens", "Number of generation tokens.", [("", "generation_tokens")]
        reasons = [(f',finished_reason="{r}"', f"end_{r}") for r in ("stop", "length", "abort")]
        yield "vllm:request_success", "Count of successfully processed requests.", reasons


class Stream:
    """One answer: what is to be sent, and the record of what was."""

    def __init__(self, server, number, body, received_ns):
        config = self.config = server.config
        self.server, self.body, self.number = server, body, number
        options = body.get("stream_options") or {}
        self.ids = config.token_ids and body.get("return_token_ids") is True
        self.running_usage = config.continuous_usage and bool(options.get("continuous_usage_stats"))
        self.final_usage = config.include_usage and bool(options.get("include_usage"))
        wish = body.get("max_completion_tokens") or body.get("max_tokens")
        cap = min(config.completion_tokens, wish or config.completion_tokens)
        stop = None if body.get("ignore_eos") else config.stop_after
        self.reason = "stop" if stop is not None and stop <= cap else "length"
        self.chunks = plan(config, number, stop if self.reason == "stop" else cap)
        self.fault = config.fault_of(number)
        self.sent_tokens = 0
        self.prompt_tokens = 3 + len(json.dumps(body.get("messages", ""))) // 4
        self.truth = {
            "id": f"chatcmpl-{number}", "number": number, "body": body, "received_ns": received_ns,
            "role_ns": None, "due_ns": [], "sent_ns": [], "tokens": [], "accepted": [], "text": "",
            "reasoning": "", "prompt_tokens": self.prompt_tokens, "finish_reason": None,
            "done_ns": None, "aborted": False, "fault": self.fault.get("kind"),
        }  # fmt: skip

    def usage(self):
        done, asked = self.sent_tokens, self.prompt_tokens
        return {"prompt_tokens": asked, "total_tokens": asked + done, "completion_tokens": done}

    def payload(self, choices, **extra):
        head = {"id": self.truth["id"], "object": "chat.completion.chunk", "created": 1700000000}
        return {**head, "model": self.config.model, "choices": choices, **extra}

    def event(self, payload):
        text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        return f"data: {text}".encode() + (b"\r\n\r\n" if self.config.crlf else b"\n\n")

    def role(self):
        delta = {"role": "assistant", "content": ""}
        extra = {"prompt_token_ids": [1] * self.prompt_tokens} if self.ids else {}
        if self.running_usage:
            extra["usage"] = self.usage()
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self.event(self.payload([choice], **extra))

    def token_event(self, chunk, last):
        """The chunk as an event; its texts go on record, its tokens into the running usage."""
        numbers = range(self.sent_tokens, self.sent_tokens + chunk.tokens)
        pieces = STYLES[self.config.style]
        thought = "".join(
            pieces[n % len(pieces)] for n in numbers if n < self.config.reasoning_tokens
        )
        said = "".join(
            pieces[n % len(pieces)] for n in numbers if n >= self.config.reasoning_tokens
        )
        delta = {}
        if numbers.start < self.config.reasoning_tokens:
            delta["reasoning_content"] = thought
        if numbers.stop > self.config.reasoning_tokens:
            delta["content"] = said
        choice = {"index": 0, "delta": delta, "logprobs": None,
                  "finish_reason": self.reason if last else None}  # fmt: skip
        if self.config.probabilities and self.body.get("logprobs"):
            tops = [{"token": f"t{n}", "logprob": math.log(p)}
                    for n, p in enumerate(self.config.probabilities)]  # fmt: skip
            told = {**tops[-1], "top_logprobs": tops[: self.body.get("top_logprobs") or 0]}
            choice["logprobs"] = {"content": [told] * chunk.tokens}
        if self.ids:
            choice["token_ids"] = [100 + n % 1000 for n in numbers]
        self.sent_tokens += chunk.tokens
        self.truth["text"] += said
        self.truth["reasoning"] += thought
        extra = {"usage": self.usage()} if self.running_usage else {}
        return self.event(self.payload([choice], **extra))

    def note(self, chunk, due_ns, sent_ns):
        truth = self.truth
        truth["due_ns"].append(due_ns)
        truth["sent_ns"].append(sent_ns)
        truth["tokens"].append(chunk.tokens)
        amounts = Counter(generation_tokens=chunk.tokens)
        if chunk.accepted is None and len(truth["tokens"]) == 1:
            amounts["prompt_tokens"] = self.prompt_tokens
        if chunk.accepted is not None:
            truth["accepted"].append(chunk.accepted)
            amounts.update(drafts=1, drafted=self.config.draft_tokens, accepted=chunk.accepted)
            amounts.update({f"at{i}": 1 for i in range(chunk.accepted)})
        self.server.counters.add(self.number % self.config.engines, amounts)

    def tail(self):
        """The usage chunk (where asked for) and the end mark."""
        events = b""
        if self.final_usage:
            extra = {"usage": self.usage()}
            if self.config.per_request_metrics and self.config.draft_tokens:
                extra["metrics"] = {"speculative_decoding": self.speculative_decoding()}
            events += self.event(self.payload([], **extra))
        return events + self.event("[DONE]")

    def speculative_decoding(self):
        accepted, drafts = self.truth["accepted"], self.config.draft_tokens
        steps, total = len(accepted), sum(accepted)
        return {
            "mean_acceptance_length": 1 + total / steps if steps else 1.0,
            "draft_acceptance_rate": total / (steps * drafts) if steps else 0.0,
            "acceptance_histogram": [accepted.count(n) for n in range(drafts + 1)],
            "num_spec_steps": steps, "num_accepted_draft_tokens": total,
            "num_draft_tokens": steps * drafts, "num_spec_tokens": drafts,
            "per_step_accepted": accepted, "per_step_drafted": [drafts] * steps,
        }  # fmt: skip


class Server:
    def __init__(self, config):
        self.config, self.counters = config, Counters(config)
        self.requests, self.finished = [], 0

    async def connection(self, reader, writer):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ", 2)
                pairs = (line.partition(":") for line in head[1:] if line)
                headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(method, path.split("?")[0], headers, body, reader, writer)
        writer.close()

    async def answer(self, method, path, headers, body, reader, writer):
        received_ns = time.monotonic_ns()
        config = self.config
        guarded = path.startswith("/v1/") or (path == "/metrics" and config.metrics_auth)
        if (
            guarded
            and config.api_key
            and headers.get("authorization") != f"Bearer {config.api_key}"
        ):
            return reply(writer, 401, {"error": "Unauthorized"})
        if (method, path) == ("POST", "/v1/chat/completions"):
            return await self.chat(body, received_ns, reader, writer)
        if path == "/metrics" and config.metrics != "404":
            if config.metrics == "off":
                return reply(
                    writer, 501, error(501, "This server does not support metrics endpoint.")
                )
            return reply(writer, 200, self.counters.text(), kind="text/plain; version=0.0.4")
        model = {"id": config.model, "object": "model", "owned_by": "vllm", "max_model_len": 32768}
        pages = {
            "/health": "", "/version": {"version": config.version}, "/truth": self.truth(),
            "/v1/models": {"object": "list", "data": [model]},
        }  # fmt: skip
        if method == "GET" and path in pages:
            return reply(writer, 200, pages[path])
        return reply(writer, 404, {"detail": "Not Found"})

    def refusal(self, body):
        """Status and body for a request that is not taken; None for one that is."""
        for name in self.config.refuse_fields:
            place = body
            for part in name.split("."):
                place = place.get(part) if isinstance(place, dict) else None
            if place is not None:
                loc = ("body", *name.split("."))
                detail = {
                    "type": "extra_forbidden",
                    "loc": loc,
                    "msg": "Extra inputs are not permitted",
                }
                return 400, error(400, str([{**detail, "input": place}]))
        if (body.get("top_logprobs") or 0) > self.config.most_logprobs:
            return 400, error(400, f"top_logprobs: at most {self.config.most_logprobs}")
        if body.get("model", self.config.model) != self.config.model:
            return 404, error(404, f"The model `{body['model']}` does not exist.")
        return None

    async def chat(self, raw, received_ns, reader, writer):
        try:
            body = json.loads(raw)
        except ValueError:
            return reply(writer, 400, error(400, "JSON decode error"))
        refusal = self.refusal(body)
        if refusal is not None:
            return reply(writer, *refusal)
        stream = Stream(self, len(self.requests), body, received_ns)
        self.requests.append(stream.truth)
        kind = stream.fault.get("kind")
        if kind == "http_500":
            return reply(writer, 500, error(500, "EngineCore encountered an issue."))
        if kind == "http_429":
            return reply(writer, 429, error(429, "Too many requests"), extra="Retry-After: 2\r\n")
        if kind == "html_error":
            page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
            return reply(writer, 502, page, kind="text/html")
        self.counters.running += 1
        try:
            await self.send(stream, reader, writer)
        except ConnectionError:
            stream.truth["aborted"] = True
        finally:
            self.counters.running -= 1
            stream.truth["done_ns"] = time.monotonic_ns()

    async def send(self, stream, reader, writer):
        """Send an answer on its absolute schedule, which begins when the request was read."""
        config, kind, begun = self.config, stream.fault.get("kind"), stream.truth["received_ns"]
        if kind == "not_streaming" or not stream.body.get("stream"):
            return await self.whole(stream, writer)
        writer.write(b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; "
                     b"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")  # fmt: skip
        held = [] if kind == "buffered" else None
        pings = asyncio.create_task(self.keep_alive(writer)) if config.keepalive_ms else None
        try:
            await self.wait_until(begun + int((config.prefill_ms - config.role_chunk_ms) * 1e6))
            stream.truth["role_ns"] = put(writer, stream.role(), held)
            if kind == "no_first_token":
                return await silence(reader, stream)
            late_ms = 0.0
            for index, chunk in enumerate(stream.chunks):
                due = index == stream.fault.get("after_chunks", 3)
                due = due and kind not in (None, "buffered")
                if due and await trouble(stream, reader, writer):
                    return None
                data = stream.token_event(chunk, chunk is stream.chunks[-1])
                if index:
                    others = self.counters.running - 1
                    late_ms += config.load_ms * others * (1 + config.draft_tokens)
                due_ns = begun + int((chunk.due_ms + late_ms) * 1e6)
                await self.wait_until(due_ns)
                stream.note(chunk, due_ns, put(writer, data, held))
                await writer.drain()
            self.finish(stream)
            if config.usage_delay_ms:
                await asyncio.sleep(config.usage_delay_ms / 1e3)
            if held is not None:
                now = put(writer, b"".join(held), None)
                stream.truth.update(role_ns=now, sent_ns=[now] * len(stream.chunks))
            put(writer, stream.tail(), None)
        finally:
            if pings:
                pings.cancel()
        writer.write(b"0\r\n\r\n")
        return await writer.drain()

    async def wait_until(self, due_ns):
        """Sleep, and for the last ``spin_ms`` look at the clock instead (sleeping is too coarse)."""
        rest_s = (due_ns - time.monotonic_ns()) / 1e9 - self.config.spin_ms / 1e3
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        while time.monotonic_ns() < due_ns:
            if self.counters.running > 1:  # other streams must keep their times too
                await asyncio.sleep(0 if self.config.spin_ms else 5e-4)

    async def whole(self, stream, writer):
        for chunk in stream.chunks:
            stream.token_event(chunk, last=False)
            due_ns = stream.truth["received_ns"] + int(chunk.due_ms * 1e6)
            await self.wait_until(due_ns)
            stream.note(chunk, due_ns, time.monotonic_ns())
        self.finish(stream)
        message = {"role": "assistant", "content": stream.truth["text"]}
        choice = {"index": 0, "message": message, "finish_reason": stream.reason}
        answer = stream.payload([choice], usage=stream.usage())
        reply(writer, 200, {**answer, "object": "chat.completion"})

    def finish(self, stream):
        """Count what ends with a request, before its last line goes out."""
        stream.truth["finish_reason"] = stream.reason
        engine = stream.number % self.config.engines
        self.counters.add(engine, Counter({f"end_{stream.reason}": 1, **self.config.foreign}))
        self.finished += 1
        if self.finished == self.config.restart_after:
            self.counters.reset()

    async def keep_alive(self, writer):
        while True:
            await asyncio.sleep(self.config.keepalive_ms / 1e3)
            put(writer, b": ping\r\n\r\n" if self.config.crlf else b": ping\n\n", None)

    def truth(self):
        steps = [n for r in self.requests for n in r["accepted"]]
        sent = sum(sum(r["tokens"]) for r in self.requests)
        totals = {
            "requests": len(self.requests), "finished": self.finished, "completion_tokens": sent,
            "drafts": len(steps), "drafted": len(steps) * self.config.draft_tokens,
            "accepted": sum(steps),
            "accepted_at": [sum(n > i for n in steps) for i in range(self.config.draft_tokens)],
        }  # fmt: skip
        return {"requests": self.requests, "totals": totals}


def put(writer, data, held):
    """Write one event as one HTTP chunk, or hold it back; the time just before the write."""
    if held is not None:
        held.append(data)
        return time.monotonic_ns()
    framed = b"%x\r\n%b\r\n" % (len(data), data)
    now = time.monotonic_ns()
    writer.write(framed)
    return now


async def silence(reader, stream):
    await reader.read(1)  # until the client gives up
    stream.truth["aborted"] = True


async def trouble(stream, reader, writer):
    """Make the fault of a stream happen; True when the answer ends with it."""
    kind = stream.fault["kind"]
    if kind == "stall":
        await silence(reader, stream)
    elif kind == "error_in_stream":
        put(writer, stream.event(error(500, "EngineCore encountered an issue.")), None)
        put(writer, stream.event("[DONE]"), None)
        writer.write(b"0\r\n\r\n")
    elif kind == "end_midstream":
        writer.write(b"0\r\n\r\n")
    elif kind == "close_midstream":
        writer.close()
    elif kind == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    elif kind == "garbage_json":
        put(writer, stream.event('{"choices": [{"delta": {"content": "cut'), None)
        return False
    elif kind == "huge_line":
        put(writer, b"data: ", None)
        for _ in range(stream.fault.get("mib", 64)):
            put(writer, b"x" * 2**20, None)
            await writer.drain()
        put(writer, b"\n\n", None)
        return False
    else:
        raise ValueError(f"no such fault: {kind}")
    return True


def error(code, message):
    names = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}
    kind = names.get(code, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def reply(writer, status, page, *, kind="application/json", extra=""):
    data = page.encode() if isinstance(page, str) else json.dumps(page).encode()
    head = f"HTTP/1.1 {status} X\r\nserver: uvicorn\r\ncontent-type: {kind}\r\n{extra}"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)


async def serve(config, port, until_eof):
    server = await asyncio.start_server(Server(config).connection, "127.0.0.1", port, limit=2**24)
    print("ready", *([] if port else [server.sockets[0].getsockname()[1]]), flush=True)
    ended = asyncio.Event()
    if until_eof:
        loop = asyncio.get_running_loop()
        wait = lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set))  # noqa: E731
        threading.Thread(target=wait, daemon=True).start()
    await ended.wait()


@dataclass
class Running:
    """A server that ``start`` started."""

    url: str
    config: Config

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def truth(self):
        return json.loads(self.get("/truth"))


def parse_config(settings):
    lists = {
        name: tuple(v)
        for name, v in settings.items()
        if name in ("position_acceptance", "refuse_fields")
    }
    return dataclasses.replace(Config(), **{**settings, **lists})


@contextlib.contextmanager
def start(config=None):
    """Run a server with these settings in a process of its own; it ends with the caller."""
    settings = dict(config or {})
    checked = parse_config(settings)
    command = [
        sys.executable,
        __file__,
        "--port",
        "0",
        "--until-eof",
        "--config",
        json.dumps(settings),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            word, _, port = process.stdout.readline().strip().partition(" ")
            if word != "ready":
                raise RuntimeError(f"the known server did not start: {word!r}")
            yield Running(f"http://127.0.0.1:{port}", checked)
        finally:
            process.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", default="{}", help="JSON, or @FILE with JSON in it")
    parser.add_argument("--speculative-config", help="as vLLM's: sets K, cuts the law to it")
    parser.add_argument("--until-eof", action="store_true", help="end when stdin is closed")
    options = parser.parse_args()
    text = options.config
    settings = json.loads(Path(text[1:]).read_text("utf-8") if text.startswith("@") else text)
    if options.speculative_config:
        k = json.loads(options.speculative_config)["num_speculative_tokens"]
        law = settings.get("position_acceptance", [])[:k]
        settings |= {"draft_tokens": k, "position_acceptance": law}
    config = parse_config(settings)
    gc.disable()  # a collection in mid-stream would be a pause nobody configured
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(config, options.port, options.until_eof))


if __name__ == "__main__":
    main()
