"""Event streams: any split of the bytes, any line end, and nothing lost or invented."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftmeter.wire.sse import Event, SseParser, SseTooLargeError

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*.sse"))
LIGHT = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def events_of(data, cuts=(), **options):
    parser = SseParser(**options)
    edges = [0, *sorted(cuts), len(data)]
    found = [parser.feed(data[a:b]) for a, b in itertools.pairwise(edges)]
    return [event for events in (*found, parser.close()) for event in events]


def payloads_of(data):
    # The captures are LF streams of one-line events, so a plain split is an independent reading.
    return [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.name)
def test_a_capture_gives_its_payloads_in_any_segmentation(path):
    data = path.read_bytes()
    expected = [Event(payload, None) for payload in payloads_of(data)]
    assert events_of(data) == expected

    @LIGHT
    @given(st.lists(st.integers(0, len(data)), max_size=40), st.booleans())
    def check(cuts, crlf):
        sent = data.replace(b"\n", b"\r\n") if crlf else data
        assert events_of(sent, cuts) == expected

    check()


@pytest.mark.parametrize(
    ("name", "count"),
    # Counted with grep -c '^data: ': role, text and finish chunks, usage, [DONE].
    [("llamacpp-b11549-ngram", 260), ("vllm-0.24.0-mtp3-chat-512", 244),
     ("vllm-0.24.0-mtp3-code-512", 164), ("vllm-0.24.0-plain-512-head", 93),
     ("vllm-0.32.0-mtp3-detailed", 203), ("vllm-error-inside-stream", 3)],
)  # fmt: skip
def test_events_per_capture(name, count):
    path = next(p for p in CAPTURES if p.stem == name)
    assert len(events_of(path.read_bytes())) == count


def test_byte_by_byte():
    data = next(p for p in CAPTURES if "error" in p.name).read_bytes()
    for sent in (data, data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r")):
        found = events_of(sent, range(1, len(sent)))
        assert [e.data for e in found] == payloads_of(data)


MESSY = (
    b"\xef\xbb\xbf: hello\r\n"
    b"\r\n"
    b"data:no space\n\n"
    b"event: usage\r\ndata:  two\rdata: lines\n\r\n"
    b": ping\n\n"
    b"id: 7\nretry: 10\ndata\n\n"
    b"data:\n\n"
    b"datas: no\nData: no\n\n"
    b'data: {"t":"a\xe2\x80\xa8b\xe2\x80\xa9c\xc2\x85d \xf0\x9f\x98\x80"}\r\r'
    b"event: last\ndata: end"
)
MESSY_EVENTS = [
    Event(b"no space", None),
    Event(b" two\nlines", "usage"),
    Event('{"t":"a\u2028b\u2029c\x85d 😀"}'.encode(), None),
    Event(b"end", "last"),
]


@pytest.mark.parametrize("size", range(1, 12))
def test_comments_fields_line_ends_and_a_last_event_without_blank_line(size):
    assert events_of(MESSY, range(size, len(MESSY), size)) == MESSY_EVENTS


@LIGHT
@given(st.lists(st.integers(0, len(MESSY)), max_size=20))
def test_messy_stream_in_any_segmentation(cuts):
    assert events_of(MESSY, cuts) == MESSY_EVENTS


def test_cr_at_the_end_of_one_feed_and_lf_at_the_start_of_the_next():
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\n\r") == [Event(b"a", None)]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\n\n") == [Event(b"b", None)]


def test_an_event_is_given_as_soon_as_its_blank_line_is_there():
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b\n\ndata: c") == [Event(b"a", None), Event(b"b", None)]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\n") == [Event(b"c", None)]
    assert parser.close() == []


def test_a_name_belongs_to_one_event_only():
    assert events_of(b"event: x\n\ndata: a\n\n") == [Event(b"a", None)]
    parser = SseParser()
    parser.feed(b"data: first\n\nevent: x\n")
    assert parser.feed(b"data: a\n\n") == [Event(b"a", "x")]


def test_a_byte_order_mark_is_dropped_only_at_the_start():
    bom = b"\xef\xbb\xbf"
    assert events_of(bom + b"data: a\n\n", (1, 2)) == [Event(b"a", None)]
    assert events_of(b"data: a\n\n" + bom + b"data: b\n\n") == [Event(b"a", None)]
    assert events_of(bom[:2]) == []


@pytest.mark.parametrize("cuts", [(), range(1, 200)])
def test_bound(cuts):
    line = b"data: " + b"x" * 94  # 100 bytes: fits exactly
    assert events_of(line + b"\n\n", cuts, max_event_bytes=100) == [Event(b"x" * 94, None)]
    with pytest.raises(SseTooLargeError):
        events_of(line + b"x\n\n", cuts, max_event_bytes=100)
    with pytest.raises(SseTooLargeError):
        events_of(b"data: 12345678\n" * 20, cuts, max_event_bytes=100)
    with pytest.raises(SseTooLargeError):
        events_of(b":" + b"x" * 150, cuts, max_event_bytes=100)
    # Many small events, and many comments, are not one big event.
    assert len(events_of(b"data: 12345678\n\n" * 20, cuts, max_event_bytes=100)) == 20
    assert events_of(b": ping\n" * 50, cuts, max_event_bytes=100) == []


def test_a_huge_line_in_small_pieces_is_joined_once():
    # 4 MiB in pieces of 64 bytes: 65536 feeds. Joining at every feed would copy 128 GiB.
    parser = SseParser()
    parser.feed(b"data: ")
    piece = b"x" * 64
    for _ in range(65536):
        assert parser.feed(piece) == []
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == 4 * 2**20


@LIGHT
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_noise_gives_the_same_events_in_any_segmentation(noise, cuts):
    inside = [cut for cut in cuts if cut <= len(noise)]
    assert events_of(noise, inside) == events_of(noise)


@LIGHT
@given(
    st.lists(st.sampled_from([b"data: a", b"data:b", b"event: n", b": c", b"data", b"", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf"]), max_size=30),
    st.lists(st.integers(0, 200), max_size=10),
)  # fmt: skip
def test_streams_of_field_lines_in_any_segmentation(parts, cuts):
    stream = b"".join(parts)
    assert events_of(stream, [c for c in cuts if c <= len(stream)]) == events_of(stream)
