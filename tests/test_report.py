"""The report: every number written once, every sentence true, nothing hostile let through."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from draftmeter.errors import UsageError
from draftmeter.record.results import (
    SCHEMA,
    Cell,
    Drafting,
    Estimate,
    MachineNoise,
    Results,
    Run,
    Speedup,
    Spread,
    TargetResult,
    Warn,
)
from draftmeter.report import numbers, safe
from draftmeter.report.json import from_json, schema_json, to_json
from draftmeter.report.markdown import to_markdown
from draftmeter.report.table_csv import COLUMNS, to_csv
from draftmeter.report.terminal import to_text
from draftmeter.report.words import answers, explain, outcome_of

SCHEMA_FILE = Path(__file__).parent.parent / "docs" / "schema" / "results-1.schema.json"
HOSTILE = "a\x1b[31m|b\nc\u202ed`<script>\x9b2J\u2066*_x_*"


def target(method=None, k=None, engine="vllm", model="thinkingcap", version="0.24.0"):
    return TargetResult(
        engine=engine, engine_version=version, model=model, method=method, draft_tokens=k
    )


def spread(median, low=None, high=None, p95=None):
    return Spread(median=median, low=low, high=high, p95=p95)


def cell(name, scenario, *, tok_s=None, ttft=None, **changes):
    base = Cell(
        target=name,
        scenario=scenario,
        concurrency=1,
        context_tokens=None,
        requests=12,
        speed_requests=12,
        errors={},
        completion_tokens=None,
        ttft_ms=spread(*ttft) if ttft else None,
        visible_ttft_ms=None,
        decode_tok_s=spread(*tok_s) if tok_s else None,
        decode_tok_s_article=None,
        step_ms=None,
        tokens_per_engine_step=None,
        speedup=None,
        drafting=None,
        step_cost=None,
        break_even_rate=None,
        warnings=[],
    )
    return msgspec.structs.replace(base, **changes)


def drafting(drafts, drafted, accepted, low=None, high=None, positions=None, share=None):
    return Drafting(
        witness="counters",
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        rate=accepted / drafted if drafted else None,
        rate_low=low,
        rate_high=high,
        tokens_per_step=1 + accepted / drafts if drafts else None,
        position_acceptance=positions,
        drafted_share=share,
        witnesses_agree=True,
    )


def ratio(value, low=None, high=None, pairs=12):
    return Speedup(ratio=value, low=low, high=high, pairs=pairs)


def results(targets, cells, reference="plain", **changes):
    base = Results(
        schema=SCHEMA,
        run=Run("bench-20261201-090000", "bench", "2026-12-01T09:00:00Z", "0.1.0"),
        reference=reference,
        targets=targets,
        cells=cells,
        machine_noise=[],
        tuning=[],
        roofline=[],
        waterfall=[],
        verdicts=[],
        warnings=[],
    )
    return msgspec.structs.replace(base, **changes)


def article():
    """The published measurement: medians, acceptance 92/255 and 2795/3912, K = 3.

    Step cost = (1 + accepted/drafts) x plain / speculative tok/s:
    (1 + 92/85) x 72.0 / 80.5 = 1.862 and (1 + 2795/1304) x 70.7 / 131.0 = 1.697.
    """
    ja = drafting(85, 255, 92, 0.28, 0.44, share=92 / 177)
    code = drafting(1304, 3912, 2795, 0.69, 0.74, [0.84, 0.71, 0.59], share=2795 / 4099)
    return results(
        {
            "moe": target(model="agents-a1"),
            "dense": target(),
            "dense-mtp": target("qwen3_5_mtp", 3),
        },
        [
            cell(
                "moe", "ja_chat", tok_s=(177, 175, 179), ttft=(52, 49, 57),
                speedup=ratio(2.46, 2.41, 2.51), tokens_per_engine_step=1.0,
            ),
            cell(
                "dense", "ja_chat", tok_s=(72.0, 71.6, 72.3), ttft=(88, 80, 97),
                tokens_per_engine_step=1.0,
            ),
            cell(
                "dense-mtp", "ja_chat", tok_s=(80.5, 74.0, 87.1), ttft=(91, 84, 100),
                drafting=ja, tokens_per_engine_step=1 + 92 / 85,
                speedup=ratio(1.12, 0.98, 1.28), step_cost=Estimate(1.862, 1.80, 1.93),
                break_even_rate=0.287,
            ),
            cell(
                "moe", "code_agent", tok_s=(177, 176, 178), ttft=(55, 50, 61),
                speedup=ratio(2.50, 2.47, 2.54), tokens_per_engine_step=1.0,
            ),
            cell(
                "dense", "code_agent", tok_s=(70.7, 70.5, 70.9), ttft=(93, 88, 99),
                tokens_per_engine_step=1.0,
            ),
            cell(
                "dense-mtp", "code_agent", tok_s=(131.0, 129.1, 133.2), ttft=(96, 90, 104),
                drafting=code, tokens_per_engine_step=1 + 2795 / 1304,
                speedup=ratio(1.85, 1.81, 1.90), step_cost=Estimate(1.697, 1.66, 1.74),
                break_even_rate=0.232,
            ),
        ],
        reference="dense",
    )  # fmt: skip


def demo_like():
    """n-gram drafting: rare drafts on chat, long runs on text that repeats."""
    rare = drafting(9, 36, 34, 0.80, 1.0, share=0.04)
    runs = drafting(200, 1600, 1300, 0.75, 0.87, share=0.70)
    noise = [
        MachineNoise(scenario="en_chat", ratio=1.01, low=0.94, high=1.064, pairs=10),
        MachineNoise(scenario="text_edit", ratio=1.02, low=None, high=None, pairs=2),
    ]
    slow_text = Warn("drift", "decode speed changed by -8% from the first to the last request")
    return results(
        {"plain": target(engine="llama.cpp"), "ngram": target("ngram-simple", 8, "llama.cpp")},
        [
            cell("plain", "en_chat", tok_s=(98.2, 96.0, 99.0), ttft=(210, 190, 240), warnings=[slow_text]),
            cell(
                "ngram", "en_chat", tok_s=(98.9, 97.0, 99.9), ttft=(212, 188, 244), drafting=rare,
                speedup=ratio(1.01, 0.99, 1.03), tokens_per_engine_step=1.042,
                step_cost=Estimate(1.03, 1.01, 1.06), warnings=[slow_text],
            ),
            cell("plain", "text_edit", tok_s=(97.0, 96.0, 98.1), ttft=(1210, 1190, 1240)),
            cell(
                "ngram", "text_edit", tok_s=(233, 210, 260), ttft=(1212, 1188, 1244), drafting=runs,
                speedup=ratio(2.38, 2.11, 2.68), tokens_per_engine_step=3.33,
                step_cost=Estimate(1.40, 1.30, 1.51),
            ),
        ],
        machine_noise=noise,
    )  # fmt: skip


def single():
    d = drafting(1304, 3912, 2795, 0.69, 0.74, [0.84, 0.71, 0.59], share=0.68)
    return results(
        {"server": target("qwen3_5_mtp", 3)},
        [
            cell("server", "en_chat", tok_s=(96.1, 93.0, 99.0), ttft=(61.2, 58.0, 64.9), drafting=d,
                 tokens_per_engine_step=3.14, visible_ttft_ms=spread(2341.0, 2200.0, 2500.0)),
            cell("server", "code_agent", tok_s=(131.0, None, None), ttft=(60.0, None, None), requests=4),
        ],
        reference="server",
    )  # fmt: skip


def nothing():
    failed = cell("spec", "en_chat", requests=0, speed_requests=0, errors={"connect": 10})
    gone = Warn("errors", "10 of 10 requests failed (connect 10): refused", "error")
    return results(
        {"plain": target(), "spec": target("eagle3", 3)},
        [
            cell("plain", "en_chat", requests=0, speed_requests=0),
            msgspec.structs.replace(failed, warnings=[gone]),
        ],
    )


def hostile():
    bad = Warn("errors", HOSTILE * 30)
    return results(
        {"plain": target(model=HOSTILE), HOSTILE: target(HOSTILE, 3, HOSTILE, HOSTILE, HOSTILE)},
        [
            cell("plain", HOSTILE, tok_s=(70.0, 69.0, 71.0)),
            cell(HOSTILE, HOSTILE, tok_s=(80.0, 79.0, 81.0), warnings=[bad], speedup=ratio(1.1, 1.05, 1.2)),
        ],
        warnings=[bad],
        run=Run(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
    )  # fmt: skip


def wide():
    """Long names, Japanese names (two columns a character), and figures of every size."""
    long = "本番サーバー-qwen3.6-27b-nvfp4-with-mtp-k3-kv-fp8"
    d = drafting(1304, 3912, 2795, 0.6912, 0.7431)
    return results(
        {"plain": target(), long: target("mtp", 3), long + "-2": target("mtp", 2)},
        [
            cell("plain", "日本語の雑談" * 9, tok_s=(10_707.0, 10_705.0, 10_709.0), ttft=(12_345.0, 12_001.0, 13_000.0)),
            cell(long, "日本語の雑談" * 9, tok_s=(12_131.0, 11_129.1, 14_133.2), ttft=(12_345.6, 12_001.0, 13_000.0),
                 drafting=d, tokens_per_engine_step=3.143, speedup=ratio(1.1331, 1.0004, 1.90),
                 step_cost=Estimate(12.697, 11.66, 13.74), visible_ttft_ms=spread(2341.0), concurrency=1),
            cell(long + "-2", "日本語の雑談" * 9, tok_s=(2_131.0, None, None), speedup=ratio(0.2, None, None, 2)),
        ],
    )  # fmt: skip


ALL = {
    "article": article, "demo": demo_like, "single": single, "nothing": nothing, "hostile": hostile,
    "wide": wide, "empty": lambda: results({}, []),
}  # fmt: skip


# --- numbers


def test_figures_carry_as_many_digits_as_their_interval_allows():
    # half-widths: 0.045 -> ratios keep two decimals; 2.05 -> whole; 0.35 -> one decimal
    assert numbers.with_interval(1.853, 1.81, 1.90, "x") == "1.85x (1.81-1.90)"
    assert numbers.with_interval(131.04, 129.1, 133.2, "tok/s") == "131 tok/s (129-133)"
    assert numbers.with_interval(72.04, 71.6, 72.3) == "72.0 (71.6-72.3)"
    assert numbers.with_interval(61.2, 58.0, 64.9, "ms") == "61 ms (58-65)"
    assert numbers.with_interval(1.00123, 1.0005, 1.0019, "x") == "1.0012x (1.0005-1.0019)"
    assert numbers.ratio_with_interval(1.697, 1.66, 1.74) == "1.70 (1.66-1.74)"


def test_without_an_interval_three_significant_digits_and_thousands():
    assert numbers.number(131.04) == "131"
    assert numbers.number(8.314) == "8.31"
    assert numbers.number(24576) == "24,576"
    assert numbers.number(0.0) == "0"
    assert numbers.with_interval(1.853, None, None, "x") == "1.85x"
    assert numbers.duration(125) == "2 min 5 s"
    assert numbers.duration(4800) == "1 h 20 min"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_unknown_is_a_dash_and_never_zero(value):
    assert numbers.number(value, "ms") == "-"
    assert numbers.with_interval(value, 1.0, 2.0, "x") == "-"
    assert numbers.percent(value) == "-"
    assert numbers.duration(value) == "-"
    assert numbers.with_interval(131.0, value, 140.0, "tok/s") == "131 tok/s"


def test_a_small_or_incomplete_share_is_not_rounded_to_nothing_or_everything():
    assert numbers.percent(0.714) == "71 %"
    assert numbers.percent(0.036) == "3.6 %"
    assert numbers.percent(0.0001) == "<0.1 %"
    assert numbers.percent(0.9999) == ">99.9 %"
    assert (numbers.percent(0.0), numbers.percent(1.0)) == ("0 %", "100 %")
    assert numbers.percent_with_interval(0.7145, 0.69, 0.74) == "71 % (69-74)"


def test_a_bound_beside_one_does_not_read_as_one():
    assert numbers.with_interval(1.13, 1.0004, 1.90, "x") == "1.13x (>1.00-1.90)"
    assert numbers.with_interval(0.9, 0.8, 0.9999, "x") == "0.90x (0.80-<1.00)"
    assert numbers.with_interval(1.13, 1.0, 1.90, "x") == "1.13x (1.00-1.90)"


# --- words


def compared(speedup, seen=None, *, noise=None, k=3, method="eagle3", model="m", **changes):
    """One scenario, a plain reference and one speculative target."""
    cells = [
        cell("plain", "s", tok_s=(70.0, 69.0, 71.0)),
        cell("spec", "s", tok_s=(90.0, 89.0, 91.0), speedup=speedup, drafting=seen, **changes),
    ]
    band = [] if noise is None else [
        MachineNoise(scenario="s", ratio=1.0, low=noise[0], high=noise[1], pairs=12)
    ]  # fmt: skip
    targets = {"plain": target(model="m"), "spec": target(method, k, model=model)}
    return results(targets, cells, machine_noise=band)


@pytest.mark.parametrize(
    ("speedup", "noise", "outcome", "first"),
    [
        (ratio(1.85, 1.81, 1.90), None, "faster", "Switch it on: 1.85x (1.81-1.90) the speed of plain."),
        (ratio(0.37, 0.35, 0.39), None, "slower", "Leave it off: 0.37x (0.35-0.39) the speed of plain."),
        (ratio(1.02, 1.01, 1.03), None, "barely", "Hardly worth it: 1.02x (1.01-1.03) the speed of plain."),
        (ratio(1.00, 0.98, 1.02), None, "same", "No difference that matters: 1.00x (0.98-1.02) the speed of plain."),
        (ratio(1.12, 0.98, 1.28), None, "undecided",
         "Undecided: 1.12x (0.98-1.28) the speed of plain after 12 pairs of requests; slower and faster are both possible."),
        (ratio(1.85, None, None, 1), None, "undecided",
         "Undecided: 1.85x the speed of plain, from 1 pair of requests, too few for an interval."),
        (ratio(1.08, 1.03, 1.12), (0.87, 1.15), "noise",
         "No difference beyond this machine's own noise (0.87-1.15): 1.08x (1.03-1.12) the speed of plain."),
        (ratio(1.15, 1.05, 1.26), (0.87, 1.15), "undecided",
         "Undecided: 1.15x (1.05-1.26) the speed of plain, which reaches into this machine's own noise (0.87-1.15)."),
        (ratio(1.30, 1.20, 1.40), (0.87, 1.15), "faster", "Switch it on: 1.30x (1.20-1.40) the speed of plain."),
        (ratio(0.80, 0.75, 0.86), (0.87, 1.15), "slower", "Leave it off: 0.80x (0.75-0.86) the speed of plain."),
    ],
)  # fmt: skip
def test_the_first_sentence_is_the_answer_that_the_interval_supports(
    speedup, noise, outcome, first
):
    (answer,) = answers(compared(speedup, noise=noise))
    assert (answer.outcome, answer.sentences[0]) == (outcome, first)


def test_an_interval_that_touches_one_decides_nothing():
    assert outcome_of(ratio(1.2, 1.0, 1.44)) == "undecided"
    assert outcome_of(ratio(0.8, 0.64, 1.0)) == "undecided"
    assert outcome_of(ratio(1.2, 1.0001, 1.44)) == "faster"


def test_the_article_in_words():
    assert explain(article(), "code_agent") == [
        (
            "code_agent, dense-mtp: switch it on: 1.85x (1.81-1.90) the speed of dense. 71 % (69-74) of "
            "drafted tokens were accepted; a step gave 3.14 tokens for the price of 1.70 plain steps. "
            "59 % of drafts were accepted whole: a larger K may bring more."
        ),
        "code_agent, moe: faster: 2.50x (2.47-2.54) the speed of dense.",
    ]


def why(found):
    (answer,) = answers(found)
    assert len(answer.sentences) <= 3
    return " ".join(answer.sentences[1:])


def test_acceptance_is_fine_but_no_acceptance_pays_for_the_step():
    # field case 22: 96.6 % accepted, 342 -> 128 tok/s. K = 1: 1.966 tokens x 342 / 128 = 5.25 > 2
    text = why(compared(
        ratio(0.374, 0.36, 0.39), drafting(1000, 1000, 966, 0.95, 0.98), k=1,
        tokens_per_engine_step=1.966, step_cost=Estimate(5.25, 5.1, 5.4), break_even_rate=4.25,
    ))  # fmt: skip
    assert text == (
        "97 % (95-98) of drafted tokens were accepted; a step gave 1.97 tokens for the price of 5.25 "
        "plain steps. The step is too dear for any acceptance: a draft of 1 gives at most 2 tokens a "
        "step, and a step costs 5.25 (5.10-5.40) plain ones; look at CUDA graphs and the draft head, not at the text."
    )


def test_too_dear_for_any_acceptance_is_not_said_when_the_step_cost_may_be_lower():
    text = why(compared(
        ratio(0.8, 0.7, 0.9), drafting(1000, 3000, 2400, 0.78, 0.82), tokens_per_engine_step=3.4,
        step_cost=Estimate(4.1, 3.5, 4.8), break_even_rate=1.03,
    ))  # fmt: skip
    assert "for any acceptance" not in text
    assert "Acceptance is fine, the step is too dear" in text


def test_slower_with_low_acceptance_names_the_break_even():
    text = why(compared(
        ratio(0.8, 0.75, 0.85), drafting(1000, 3000, 900, 0.28, 0.32), tokens_per_engine_step=1.9,
        step_cost=Estimate(2.375, 2.3, 2.45), break_even_rate=0.458,
    ))  # fmt: skip
    assert text.endswith("At this step cost it breaks even at 46 % accepted.")
    assert "fine" not in text


def test_rare_drafts_say_what_they_can_bring_at_most():
    # 4 % of tokens from drafts: 1 / 0.96 = 1.04
    (chat, _) = answers(demo_like())
    assert chat.outcome == "same"
    assert chat.sentences[1:] == (
        (
            "94 % (80-100) of drafted tokens were accepted, but only 4.0 % of all tokens came from "
            "drafts, so 1.04x is the most they can bring."
        ),
    )


def test_long_accepted_runs_are_named():
    # 1300 accepted in 200 drafts: 6.5 each
    (_, edit) = answers(demo_like())
    assert edit.sentences[-1] == "Accepted runs are long: 6.5 tokens per draft."
    assert "3.33 tokens (7.50 where there was a draft)" in edit.sentences[1]


def test_a_larger_k_is_only_named_where_the_last_position_outweighs_its_cost():
    shared = {"tokens_per_engine_step": 3.14, "step_cost": Estimate(2.6, 2.5, 2.7)}
    seen = drafting(100, 300, 214, positions=[0.84, 0.71, 0.59])
    # 0.59 < 1.21 x (2.6 - 1) / 3 = 0.645
    assert "larger K" not in why(compared(ratio(1.21, 1.15, 1.28), seen, **shared))


def test_nothing_drafted_and_nothing_accepted_are_different_things():
    assert why(compared(ratio(1.0, 0.9, 1.1), drafting(0, 0, 0))) == "Nothing was drafted."
    assert why(compared(ratio(0.6, 0.5, 0.7), drafting(199, 597, 0))) == (
        "None of the 597 drafted tokens was accepted."
    )
    assert (
        why(compared(ratio(1.3, 1.2, 1.4))) == "How many drafted tokens were accepted is not known."
    )


def test_switch_it_on_is_said_only_of_the_same_model_without_speculation():
    (answer,) = answers(compared(ratio(1.85, 1.81, 1.90), model="another"))
    assert answer.sentences[0].startswith("Faster: ")
    (answer,) = answers(compared(ratio(1.85, 1.81, 1.90), method=None, k=None))
    assert answer.sentences[0].startswith("Faster: ")


def test_an_error_anywhere_in_the_comparison_comes_before_its_figure():
    found = compared(ratio(1.85, 1.81, 1.90))
    bad = Warn("throttled", "the GPU was throttled", "error")
    for place in (0, 1):
        cells = list(found.cells)
        cells[place] = msgspec.structs.replace(cells[place], warnings=[bad])
        (answer,) = answers(msgspec.structs.replace(found, cells=cells))
        assert answer.outcome == "untrustworthy"
        assert answer.sentences == ("Do not rely on these figures: the GPU was throttled.",)


def test_without_figures_the_answer_is_why():
    (answer,) = answers(nothing())
    assert answer.sentences == ("No answer: 10 requests failed, none succeeded.",)


# --- terminal


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [80, 120, 60])
def test_no_line_is_wider_than_the_terminal(name, width):
    lines = to_text(ALL[name](), width).splitlines()
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", ALL)
def test_nothing_but_printable_text_reaches_terminal_and_files(name):
    for text in (to_text(ALL[name]()), to_markdown(ALL[name]()), to_csv(ALL[name]())):
        assert not [c for c in text if c != "\n" and not c.isprintable()]


def test_the_answer_comes_first_and_every_figure_stands_in_its_row():
    lines = to_text(article()).splitlines()
    assert lines[0].startswith("ja_chat     Undecided: 1.12x (0.98-1.28)")
    rows = [line.split() for line in lines if line.startswith("dense-mtp  ") and "%" in line[:45]]
    assert ["dense-mtp", "96", "131", "71", "%", "3.14", "1.70", "1.85x"] in rows


def test_a_single_target_has_no_speedup_column_and_no_comparison():
    text = to_text(single())
    assert "speedup" not in text
    assert "reference" not in text
    assert "first token after 61 ms (58-65)" in text
    assert "first visible token after 2,341 ms (2,200-2,500)" in text


def test_three_columns_of_wide_intervals_leave_figures_whole_at_80_columns():
    text = to_text(wide())
    for figure in ("12,001-13,000", "11,129-14,133", ">1.00-1.90", "12,346"):
        assert figure in text


def test_a_narrow_terminal_says_what_it_leaves_out():
    assert "Left out for want of room: step cost." in to_text(article(), 60)
    assert "Left out" not in to_text(article(), 80)


def test_a_warning_shared_by_cells_is_said_once():
    text = to_text(demo_like())
    assert text.count("decode speed changed") == 1
    assert "plain\n         on en_chat, ngram on en_chat" in text


def test_machine_noise_is_shown_where_it_was_measured():
    text = to_text(demo_like())
    assert "10 pairs: ratios from 0.94 to 1.06 mean nothing" in text
    assert "Machine noise" not in to_text(article())


def test_colour_only_where_it_is_wanted():
    assert "\x1b" not in to_text(article())
    assert "\x1b[" in to_text(article(), color=True)


# --- safe text


def test_control_and_bidi_characters_become_visible():
    assert (
        safe.printable("\x1b[31mred\x07\n\u202e\u2028\x9b") == r"\x1b[31mred\x07\n\u202e\u2028\x9b"
    )
    assert safe.printable("日本語 é") == "日本語 é"
    assert safe.printable("x" * 10**6, limit=5) == "xxxx…"
    assert len(safe.printable("\x1b" * 100, limit=20)) == 20


def test_names_are_cut_in_the_middle_by_columns_not_characters():
    assert safe.shorten("dense-mtp-k3", 12) == "dense-mtp-k3"
    assert safe.shorten("dense-mtp-k3", 9) == "dens…p-k3"
    assert (
        safe.shorten("日本語の名前", 7) == "日…前" or cell_len(safe.shorten("日本語の名前", 7)) <= 7
    )


# --- Markdown, CSV, JSON


def split_row(line):
    """Cells of a GitHub table row: unescaped pipes divide."""
    return line.replace("\\\\", "").replace("\\|", "")[1:-1].split("|")


@pytest.mark.parametrize("name", ALL)
def test_markdown_tables_have_the_same_number_of_cells_in_every_row(name):
    tables = [p for p in to_markdown(ALL[name]()).split("\n\n") if p.startswith("| ")]
    assert len(tables) == len({c.scenario for c in ALL[name]().cells})
    for table in tables:
        widths = {len(split_row(line)) for line in table.splitlines()}
        assert len(widths) == 1


def test_markdown_of_hostile_names_holds_no_markup():
    text = to_markdown(hostile())
    assert "<script" not in text
    assert "[x]" not in to_markdown(results({}, [], run=Run("", "[x](javascript:1)", "", "")))
    assert (
        "| dense-mtp | 96 (90-104) | 131 (129-133) | 71 % (69-74) | 3.14 | 1.70 (1.66-1.74) | 1.85x (1.81-1.90) |"
        in to_markdown(article())
    )


def test_csv_gives_back_every_figure_and_nothing_for_the_unknown():
    rows = list(csv.DictReader(io.StringIO(to_csv(article()))))
    assert list(rows[0]) == list(COLUMNS)
    assert [r["target"] for r in rows] == ["moe", "dense", "dense-mtp"] * 2
    last, plain = rows[-1], rows[1]
    assert float(last["speedup_low"]) == 1.81
    assert float(last["acceptance_rate"]) == 2795 / 3912
    assert last["position_acceptance"] == "0.84 0.71 0.59"
    assert plain["acceptance_rate"] == plain["speedup_ratio"] == plain["ttft_ms_p95"] == ""
    assert plain["failed_requests"] == "0"


def test_csv_names_are_no_spreadsheet_formulas():
    found = results({}, [cell("=cmd()", "@x")])
    (row,) = csv.DictReader(io.StringIO(to_csv(found)))
    assert (row["target"], row["scenario"]) == ("'=cmd()", "'@x")


@pytest.mark.parametrize("name", ALL)
def test_json_gives_back_the_same_results(name):
    found = ALL[name]()
    assert from_json(to_json(found)) == found


def test_json_has_the_keys_of_the_contract():
    body = msgspec.json.decode(to_json(article()))
    assert body["schema"] == "draftmeter.results/1"
    assert set(body) >= {
        "schema",
        "run",
        "reference",
        "targets",
        "cells",
        "tuning",
        "roofline",
        "verdicts",
    }
    assert set(body["run"]) == {"id", "name", "started", "draftmeter"}
    assert set(body["targets"]["dense-mtp"]) == {
        "engine",
        "engine_version",
        "model",
        "method",
        "draft_tokens",
    }
    code = body["cells"][-1]
    assert set(code) >= {
        "target", "scenario", "concurrency", "requests", "errors", "completion_tokens", "ttft_ms",
        "visible_ttft_ms", "decode_tok_s", "decode_tok_s_article", "step_ms", "speedup", "drafting",
        "step_cost", "break_even_rate", "warnings",
    }  # fmt: skip
    assert set(code["ttft_ms"]) == {"median", "low", "high", "p95"}
    assert set(code["speedup"]) == {"ratio", "low", "high", "pairs"}
    assert set(code["step_cost"]) == {"value", "low", "high"}
    assert set(code["drafting"]) >= {
        "witness", "drafts", "drafted", "accepted", "rate", "rate_low", "rate_high", "tokens_per_step",
        "position_acceptance", "witnesses_agree",
    }  # fmt: skip
    assert code["step_ms"] is None


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"\xff", b"[" * 100_000, b'{"schema": "draftmeter.results/1"}']
)
def test_json_that_is_no_results_is_a_usage_error(data):
    with pytest.raises(UsageError):
        from_json(data)


def test_json_of_another_schema_names_both():
    with pytest.raises(UsageError, match=r"results/9.*results/1"):
        from_json(b'{"schema": "draftmeter.results/9"}')


def test_the_checked_in_schema_is_current():
    # to renew it: write draftmeter.report.json.schema_json() to the file
    assert SCHEMA_FILE.read_bytes() == schema_json()
