"""Metrics pages: every sample with the name and value the page gives, whatever surrounds it."""

import math
from pathlib import Path

import pytest

from draftmeter.errors import ServerError
from draftmeter.wire.prometheus import Sample, parse

CAPTURES = Path(__file__).parent / "captures"


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.metrics")), ids=lambda p: p.name)
def test_every_sample_of_a_capture(path):
    text = path.read_text()
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    samples = parse(text)
    # No label of the captures holds a space, so an independent reading is name{...} and value.
    assert [s.name for s in samples] == [line.split("{")[0].split(" ")[0] for line in lines]
    assert [s.value for s in samples] == [float(line.rsplit(" ", 1)[1]) for line in lines]


def test_names_stay_as_the_page_has_them():
    # The library renames counters without _total once it knows their type.
    text = (
        "# TYPE a counter\na 1\n# TYPE b_total counter\nb_total 2\n"
        "# TYPE b_created gauge\nb_created 1.7e+09\n"
    )
    assert [s.name for s in parse(text)] == ["a", "b_total", "b_created"]


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("x 1.3e+06", {}, 1_300_000.0),
        ("x 5 1796124305025", {}, 5.0),
        ('x{m="a"} 5 1796124305025', {"m": "a"}, 5.0),
        ('x{m="org/model name, v2",engine="0"} 7', {"m": "org/model name, v2", "engine": "0"}, 7.0),
        (r'x{m="say \"hi\"} \\ {"} 7', {"m": 'say "hi"} \\ {'}, 7.0),
        ('x{m="a",} 7', {"m": "a"}, 7.0),
        ('x{m="a\u2028b # c"}   7', {"m": "a\u2028b # c"}, 7.0),
        ('x{m="a"} 7 # {trace_id="b c"} 0.5 1796124305.0', {"m": "a"}, 7.0),
        ('x 7 # {trace_id="b"} 0.5', {}, 7.0),
        ('  x{ m = "a" } 7\r', {"m": "a"}, 7.0),
    ],
)
def test_a_line(line, labels, value):
    assert parse(f"{line}\n# EOF\n") == (Sample("x", labels, value),)


def test_values_that_are_not_finite():
    values = [s.value for s in parse("a NaN\nb +Inf\nc -Inf\n")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize(
    "broken",
    ["x{", "x", '{m="a"} 1', 'x{m="a} 1', "x one", "x{m=a} 1", "# TYPE", "# HELP é y", "é 1",
     'x{m="a",m="b"} 1', "x " + "9" * 400, "x 1_0", "\x00", "<html>", "x" * 9000 + " 1"],
)  # fmt: skip
def test_a_broken_line_loses_only_itself(broken):
    assert [s.name for s in parse(f"before 1\n{broken}\nafter 2\n")] == ["before", "after"]


def test_prefixes():
    text = '# TYPE vllm:a counter\nvllm:a 1\nvllm:b 2\npython_info 3\n{"vllm:c",m="x"} 4\n'
    assert [s.name for s in parse(text, ("vllm:",))] == ["vllm:a", "vllm:b", "vllm:c"]
    assert [s.name for s in parse(text, ("vllm:b", "python"))] == ["vllm:b", "python_info"]
    assert parse(text, ()) == ()


def test_too_many_samples():
    assert len(parse("x 1\n" * 10, max_samples=10)) == 10
    with pytest.raises(ServerError, match="more than 10 samples"):
        parse("x 1\n" * 11, max_samples=10)


def test_nothing():
    assert parse("") == ()
    assert parse("<!doctype html><title>404</title>") == ()
