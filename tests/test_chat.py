"""Chunks: what each captured server says, and what odd servers may say without harm."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmeter.wire.chat import ChatError, Chunk, ChunkUsage, decode, decode_error_body
from draftmeter.wire.sse import SseParser

CAPTURES = Path(__file__).parent / "captures"


def chunks_of(name):
    parser = SseParser()
    events = parser.feed((CAPTURES / name).read_bytes()) + parser.close()
    return [decode(event.data) for event in events]


def choice(delta, **rest):
    return json.dumps({"choices": [{"index": 0, "delta": delta, **rest}]}).encode()


@pytest.mark.parametrize(
    ("name", "sizes"),
    # Sizes of the token_ids lists, counted with json.loads over the capture's lines.
    # chat: 93 + 2*65 + 3*43 + 4*40 = 512; code: 26 + 2*19 + 3*16 + 4*100 = 512.
    [("vllm-0.24.0-mtp3-chat-512.sse", {1: 93, 2: 65, 3: 43, 4: 40}),
     ("vllm-0.24.0-mtp3-code-512.sse", {1: 26, 2: 19, 3: 16, 4: 100})],
)  # fmt: skip
def test_vllm_token_ids_per_chunk(name, sizes):
    chunks = chunks_of(name)
    counts = [c.token_ids_count for c in chunks if c and c.token_ids_count is not None]
    assert Counter(counts) == sizes
    assert sum(counts) == 512
    first, last, done = chunks[0], chunks[-2], chunks[-1]
    assert done is None
    assert first.role
    assert first.token_ids_count is None  # prompt_token_ids are no tokens of the answer
    assert (last.has_choice, last.finish_reason) == (False, None)
    assert last.usage == ChunkUsage(prompt_tokens=138, completion_tokens=512)
    assert chunks[-3].finish_reason == "length"
    # Empty text with a token id is a token (field case 4); usage comes once, at the end.
    assert all(c.content == "" and c.running_tokens is None for c in chunks[1:-2])
    assert chunks[1].model == "m"


def test_vllm_running_usage_and_drafting():
    chunks = chunks_of("vllm-0.32.0-mtp3-detailed.sse")
    running = [c.running_tokens for c in chunks if c and c.has_choice]
    assert running == list(range(201))  # 0 on the role chunk, then one token per chunk
    told = chunks[-2].speculative_decoding
    assert (told.num_spec_steps, told.num_draft_tokens, told.num_accepted_draft_tokens) == (
        199,
        597,
        0,
    )
    assert told.acceptance_histogram == [199, 0, 0, 0]
    assert told.per_step_drafted == [3] * 199
    assert told.per_step_accepted == [0] * 199
    assert chunks[-2].running_tokens is None


def test_llamacpp_final_timings():
    chunks = chunks_of("llamacpp-b11549-ngram.sse")
    assert sum(bool(c.content) for c in chunks if c) == 256
    assert "".join(c.content for c in chunks if c).startswith("```python\nclass Stack")
    assert chunks[0].role
    assert not chunks[0].content  # "content": null
    assert chunks[-3].finish_reason == "length"
    assert chunks[-2].usage == ChunkUsage(prompt_tokens=58, completion_tokens=256, cached_tokens=0)
    told = chunks[-2].timings
    assert (told.predicted_n, told.draft_n, told.draft_n_accepted) == (256, 184, 28)
    assert (told.predicted_ms, told.cache_n) == (4404.719, 0)


def test_llamacpp_timings_on_every_chunk_are_running_counts():
    chunks = chunks_of("llamacpp-b11549-timings-per-token.sse")
    running = [c.running_tokens for c in chunks if c and c.has_choice]
    # The role chunk and the finish chunk carry none; the end token (the 17th) has no chunk.
    assert running == [None, *range(1, 17), None]
    assert chunks[-2].usage.completion_tokens == 17
    assert chunks[-2].timings.draft_n is None  # nothing was drafted


def test_error_inside_a_stream():
    role, error, done = chunks_of("vllm-error-inside-stream.sse")
    assert role.error is None
    assert (
        error.error
        == "EngineCore encountered an issue. See stack trace (above) for the root cause."
    )
    assert (error.error_type, error.error_code) == ("InternalServerError", "500")
    assert done is None


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"error": "overloaded"}, ("overloaded", None, None)),
        ({"error": {"message": "a\n\x1b[31mb", "code": "x"}}, ("a \\x1b[31mb", None, "x")),
        ({"error": {}}, ("an error without a message", None, None)),
        ({"object": "error", "message": "too long", "type": "BadRequest", "code": 400},
         ("too long", "BadRequest", "400")),
        ({"choices": [{"delta": {"content": ""}}], "error": {"message": "m"}}, ("m", None, None)),
        ({"choices": [{"delta": {"content": "x"}}], "error": None}, (None, None, None)),
    ],
)  # fmt: skip
def test_forms_of_errors(payload, expected):
    chunk = decode(json.dumps(payload).encode())
    assert (chunk.error, chunk.error_type, chunk.error_code) == expected


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning(field):
    chunk = decode(choice({field: "hm", "content": None}))
    assert (chunk.reasoning, chunk.content) == ("hm", "")


def test_reasoning_under_both_names_is_not_doubled():
    assert decode(choice({"reasoning": "hm", "reasoning_content": "hm"})).reasoning == "hm"


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (
            {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
            "f",
        ),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}, '{"a"'),
        (
            {"tool_calls": [{"function": {"arguments": "x"}}, {"function": {"arguments": "y"}}]},
            "xy",
        ),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, 'f{"a":1}'),
        ({"function_call": {"name": "f", "arguments": "z"}}, "fz"),
        ({"tool_calls": [{"function": None}]}, ""),
        ({"tool_calls": None}, ""),
    ],
)
def test_tool_calls(delta, text):
    assert decode(choice(delta)).tool_arguments == text


def test_text_completion():
    chunk = decode(
        b'{"object":"text_completion","choices":[{"index":0,"text":"hi","logprobs":null}]}'
    )
    assert (chunk.content, chunk.has_choice) == ("hi", True)


def test_token_ids_beside_the_choices():
    assert decode(b'{"choices":[{"delta":{}}],"token_ids":[1,2,3]}').token_ids_count == 3
    assert decode(b'{"choices":[{"delta":{},"token_ids":[]}]}').token_ids_count == 0


def test_only_choice_0_is_read():
    chunk = decode(
        b'{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"yes"}}]}'
    )
    assert chunk.content == "yes"
    other = decode(b'{"choices":[{"index":1,"delta":{"content":"no"}}]}')
    assert (other.has_choice, other.content) == (False, "")


def test_usage_details():
    usage = {
        "prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    told = decode(json.dumps({"choices": [], "usage": usage}).encode())
    assert told.usage == ChunkUsage(9, 5, 8, 3)
    assert decode(b'{"choices":[],"usage":{"completion_tokens":5,"reasoning_tokens":2}}').usage == (
        ChunkUsage(completion_tokens=5, reasoning_tokens=2)
    )


def test_sglang_meta_info_is_kept():
    chunk = decode(
        b'{"choices":[{"delta":{"content":"a"},"meta_info":{"spec_accept_length":2.5}}]}'
    )
    assert chunk.extra == {"meta_info": {"spec_accept_length": 2.5}}


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": "none"}, {"usage": {"completion_tokens": "many"}}, {"usage": []},
        {"usage": {"completion_tokens": -1}}, {"usage": {"prompt_tokens_details": 3}},
        {"timings": [1]}, {"timings": {"predicted_n": -4}}, {"metrics": 1}, {"model": 7},
        {"metrics": {"speculative_decoding": {"acceptance_histogram": "x"}}}, {"object": 1},
        {"token_ids": "x"}, {"meta_info": 1}, {"unknown": {"a": [1]}},
        {"usage": {"completion_tokens": 10**30}},
    ],
)  # fmt: skip
def test_odd_extras_do_no_harm(odd):
    chunk = decode(json.dumps({"choices": [{"delta": {"content": "hi"}}], **odd}).encode())
    assert (chunk.content, chunk.running_tokens) == ("hi", None)


@pytest.mark.parametrize(
    "odd",
    [{"index": "zero"}, {"finish_reason": 3}, {"token_ids": {"a": 1}}, {"logprobs": [None]},
     {"text": 5}, {"meta_info": []}],
)  # fmt: skip
def test_odd_fields_of_a_choice_do_no_harm(odd):
    assert decode(choice({"content": "hi"}, **odd)).content == "hi"


@pytest.mark.parametrize("odd", [{"role": 1}, {"tool_calls": "x"}, {"reasoning": [1]}])
def test_odd_fields_of_a_delta_do_no_harm(odd):
    assert decode(choice({"content": "hi", **odd})).content == "hi"


def test_counts_written_as_text_or_with_a_point():
    for written in (b"256.0", b'"256"'):
        told = decode(b'{"choices":[],"usage":{"completion_tokens":' + written + b"}}")
        assert told.usage.completion_tokens == 256


@pytest.mark.parametrize(
    ("payload", "content"),
    [
        (b'{"choices":[{"delta":{"content":"a"},"logprobs":{"p":NaN,"q":-Infinity}}]}', "a"),
        (b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', "a?"),
        (b'{"choices":[{"delta":{"content":"a\xe3\x81"}}]}', "a\ufffd"),
        (b'{"choices":[{"delta":{"content":"\\ud83d\\ude00"}}]}', "😀"),
        ('{"choices":[{"delta":{"content":"a\u2028b\u0085"}}]}'.encode(), "a\u2028b\u0085"),
    ],
)
def test_json_that_strict_readers_refuse(payload, content):
    assert decode(payload).content == content


@pytest.mark.parametrize("payload", [b"[DONE]", b" [DONE] ", b"[DONE]\n"])
def test_done(payload):
    assert decode(payload) is None


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"null", b"[]", b"3", b'"x"', b"{}", b'{"a":1}', b"<html>", b'{"choices":[{',
     b'{"choices":"x"}', b"\xff\x00\x1b[2J", b"[DONE]x"],
)  # fmt: skip
def test_not_a_chunk(payload):
    with pytest.raises(ChatError, match="not a chunk of a chat completion") as caught:
        decode(payload)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_chunks_that_say_only_what_they_are():
    assert decode(b'{"id":"x","object":"chat.completion.chunk"}') == Chunk()
    assert decode(b'{"choices":null,"usage":{"completion_tokens":3}}').usage.completion_tokens == 3


@pytest.mark.parametrize("depth", [3_000, 300_000])
@pytest.mark.parametrize("key", [b"unknown", b"error", b"meta_info", b"choices"])
def test_deep_json_is_refused(depth, key):
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(ChatError):
            decode(b'{"' + key + b'":' + opening * depth + b"1" + closing * depth + b"}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "delta", "content", "usage", "error", "index", "token_ids", "timings",
         "tool_calls", "function", "arguments", "metrics", "object", "completion_tokens"]),
        inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_any_json_is_a_chunk_or_refused(value):
    try:
        chunk = decode(json.dumps(value).encode())
    except ChatError:
        return
    assert isinstance(chunk, Chunk)
    assert all(isinstance(t, str) for t in (chunk.content, chunk.reasoning, chunk.tool_arguments))
    for count in (chunk.token_ids_count, chunk.running_tokens):
        assert count is None or count >= 0


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("application/json", b'{"error":{"code":400,"message":"Expected \'messages\' to be an array"}}',
         "Expected 'messages' to be an array"),
        ("application/json", b'{"error":"model not found"}', "model not found"),
        ("application/json", b'{"object":"error","message":"too long","code":400}', "too long"),
        ("application/json", b'{"detail":"Not Found"}', "Not Found"),
        ("application/json", b'{"detail":[{"loc":["body","stream"],"msg":"not a bool"}]}',
         "body.stream: not a bool"),
        ("text/html", b"<html><head><title>502 Bad Gateway</title></head><body>x</body></html>",
         "502 Bad Gateway"),
        ("text/html", b"<p>down for <b>repair</b> &amp; tea</p><script>alert(1)</script>",
         "down for repair & tea"),
        ("", b"<!doctype html><body>oops", "oops"),
        ("text/plain", b"rate limit\n\x1b[31mred\x07", "rate limit \\x1b[31mred\\x07"),
        ("text/plain", b"\xff\xfe", "\ufffd\ufffd"),
        ("application/json", b"", "HTTP 503"),
        ("application/json", b"{}", "{}"),
        ("application/json", b'{"error":', '{"error":'),
        ("application/json", b"[" * 100_000, "[" * 299 + "…"),
        ("text/plain", b"x" * 1000, "x" * 299 + "…"),
    ],
)  # fmt: skip
def test_error_bodies(kind, body, words):
    assert decode_error_body(503, kind, body) == words
