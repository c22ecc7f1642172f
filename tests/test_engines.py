"""Engines: recognised from their pages, their counters and their own words read as numbers."""

import json
from pathlib import Path

import pytest

from draftmeter.engines import ENGINES, by_name, llamacpp, openai, recognise, vllm
from draftmeter.engines.model import Facts
from draftmeter.errors import UsageError
from draftmeter.record.types import CounterSnapshot, DraftCounts
from draftmeter.wire.chat import FinalFields, SpeculativeDecoding, Timings, decode
from draftmeter.wire.prometheus import parse
from draftmeter.wire.sse import SseParser

CAPTURES = Path(__file__).parent / "captures"
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


def page(name):
    return parse((CAPTURES / name).read_text())


def fixture(name):
    return json.loads((CAPTURES / name).read_text())


def final_of(name):
    parser = SseParser()
    events = parser.feed((CAPTURES / name).read_bytes())
    chunks = [c for c in (decode(e.data) for e in events) if c]
    timings = [c.timings for c in chunks if c.timings]
    told = [c.speculative_decoding for c in chunks if c.speculative_decoding]
    return FinalFields(timings[-1] if timings else None, told[-1] if told else None)


def vllm_page(*lines):
    return parse("".join(f"vllm:{line}\n" for line in lines))


# --- counters, from captures ----------------------------------------------------------------


def test_vllm_counters_of_a_server_with_mtp():
    snapshot = vllm.read_counters(page("vllm-0.24.0-mtp3.metrics"), "m")
    assert snapshot == CounterSnapshot(
        drafts=2715, drafted=8145, accepted=5801, accepted_at=[2277, 1930, 1594],
        generation_tokens=8512, prompt_tokens=1242, running=0, waiting=0,
        # the newest of the page's _created samples among the counters read
        created=1.796124305026225e9, models=["m"],
    )  # fmt: skip
    assert sum(snapshot.accepted_at) == snapshot.accepted
    assert snapshot.drafted == 3 * snapshot.drafts


def test_vllm_before_and_after_one_request():
    before = vllm.read_counters(page("vllm-0.32.0-before.metrics"), "tiny")
    after = vllm.read_counters(page("vllm-0.32.0-after.metrics"), "tiny")
    # On, but nothing accepted: zeros, not None (field case 18).
    assert (before.drafts, before.drafted, before.accepted) == (0, 0, 0)
    assert (after.drafts, after.drafted, after.accepted) == (199, 597, 0)
    assert after.accepted_at == [0, 0, 0]
    assert after.generation_tokens - before.generation_tokens == 200
    assert before.created == after.created
    # and the response itself tells the same
    told = vllm.read_drafting(final_of("vllm-0.32.0-mtp3-detailed.sse"))
    assert told.counts == DraftCounts(drafts=199, drafted=597, accepted=0, accepted_at=[0, 0, 0])
    assert told.drafted_steps == [3] * 199
    assert told.accepted_steps == [0] * 199


def test_llamacpp_before_and_after_one_request():
    before = llamacpp.read_counters(page("llamacpp-b11549-before.metrics"), None)
    after = llamacpp.read_counters(page("llamacpp-b11549-after.metrics"), "any name")
    assert (before.drafts, before.drafted, before.accepted, before.accepted_at) == (0, 0, 0, [])
    assert (after.drafts, after.drafted, after.accepted) == (5, 184, 28)
    assert len(after.accepted_at) == 48
    assert after.accepted_at[:11] == [5, 4, 4, 4, 4, 3, 1, 1, 1, 1, 0]
    assert sum(after.accepted_at) == 28
    assert (after.generation_tokens, after.prompt_tokens) == (256, 58)
    assert (after.running, after.waiting, after.created) == (0, 0, None)
    told = llamacpp.read_drafting(final_of("llamacpp-b11549-ngram.sse"))
    assert told.counts == DraftCounts(drafted=184, accepted=28)


# --- counters, other shapes of pages --------------------------------------------------------


def spec(engine, model, drafts, positions, created=1000.0):
    labels = f'engine="{engine}",model_name="{model}"'
    return [
        f"spec_decode_num_drafts_total{{{labels}}} {drafts}",
        f"spec_decode_num_drafts_created{{{labels}}} {created}",
        f"spec_decode_num_draft_tokens_total{{{labels}}} {drafts * len(positions)}",
        f"spec_decode_num_accepted_tokens_total{{{labels}}} {sum(positions)}",
        *(f'{PER_POSITION}{{{labels},position="{i}"}} {n}' for i, n in enumerate(positions)),
    ]


def test_two_engines_are_added():
    samples = vllm_page(*spec(0, "m", 10, [8, 5]), *spec(1, "m", 6, [3, 1], created=2000.0))
    snapshot = vllm.read_counters(samples, "m")
    assert (snapshot.drafts, snapshot.drafted, snapshot.accepted) == (16, 32, 17)
    assert snapshot.accepted_at == [11, 6]
    assert (snapshot.engines, snapshot.created) == (2, 2000.0)


def test_two_models_are_kept_apart():
    samples = vllm_page(*spec(0, "a", 10, [8, 5]), *spec(0, "b", 6, [3, 1]))
    assert vllm.read_counters(samples, "b").accepted == 4
    for unclear in (None, "c"):
        snapshot = vllm.read_counters(samples, unclear)
        assert (snapshot.drafts, snapshot.accepted, snapshot.models) == (None, None, ["a", "b"])
        assert "a, b" in snapshot.notes[0]


def test_another_name_for_the_only_model():
    snapshot = vllm.read_counters(vllm_page(*spec(0, "org/model", 10, [8])), "alias")
    assert snapshot.accepted == 8
    assert snapshot.notes == ["counters are of org/model, the only model there"]


def test_server_restarted_between_scrapes():
    # Field case 14: the reader of both snapshots sees a new creation time and smaller counts.
    before = vllm.read_counters(vllm_page(*spec(0, "m", 10, [8])), "m")
    after = vllm.read_counters(vllm_page(*spec(0, "m", 2, [1], created=5000.0)), "m")
    assert after.drafts < before.drafts
    assert after.created > before.created


def test_label_with_space_and_comma_and_a_timestamp():
    samples = vllm_page(
        'spec_decode_num_accepted_tokens_total{engine="0",model_name="my model, v2"} 1.3e+06 1796124',
    )
    assert vllm.read_counters(samples, "my model, v2").accepted == 1_300_000


def test_counters_without_total_and_without_labels():
    samples = vllm_page(
        "spec_decode_num_drafts 4", "spec_decode_num_drafts_created 1.7e9",
        "spec_decode_num_draft_tokens 8", "spec_decode_num_accepted_tokens 3",
    )  # fmt: skip
    snapshot = vllm.read_counters(samples, "m")
    assert (snapshot.drafts, snapshot.drafted, snapshot.accepted) == (4, 8, 3)
    assert (snapshot.models, snapshot.accepted_at) == ([], None)


def test_speculation_off_is_unknown_not_zero():
    snapshot = vllm.read_counters(vllm_page('generation_tokens_total{model_name="m"} 5'), "m")
    assert snapshot.generation_tokens == 5
    assert (snapshot.drafts, snapshot.drafted, snapshot.accepted) == (None, None, None)
    assert (snapshot.accepted_at, snapshot.running) == (None, None)


@pytest.mark.parametrize("value", ["NaN", "-3", "+Inf"])
def test_values_that_cannot_be_counts(value):
    snapshot = vllm.read_counters(
        vllm_page(
            f"spec_decode_num_accepted_tokens_total {value}",
            "spec_decode_num_drafts_total 4",
            f'{PER_POSITION}{{position="0"}} {value}',
        ),
        None,
    )
    assert (snapshot.accepted, snapshot.accepted_at, snapshot.drafts) == (None, None, 4)
    assert all("not used" in note for note in snapshot.notes)
    assert len(snapshot.notes) == 2


@pytest.mark.parametrize("position", ["x", "", "99999999999999999999", "-1", "٣", "2000"])
def test_positions_that_are_none(position):
    snapshot = vllm.read_counters(vllm_page(f'{PER_POSITION}{{position="{position}"}} 1'), None)
    assert snapshot.accepted_at is None
    assert snapshot.notes


def test_a_missing_position_is_noticed():
    lines = [f'{PER_POSITION}{{position="{i}"}} 1' for i in (0, 2)]
    snapshot = vllm.read_counters(vllm_page(*lines), None)
    assert snapshot.accepted_at is None
    assert "lacks some of its positions" in snapshot.notes[0]


def test_old_gauges_are_named_and_not_used():
    samples = vllm_page(
        'spec_decode_draft_acceptance_rate{model_name="m"} 0.7',
        'spec_decode_efficiency{model_name="m"} 0.6',
    )
    snapshot = vllm.read_counters(samples, "m")
    assert (snapshot.drafts, snapshot.drafted, snapshot.accepted) == (None, None, None)
    assert (
        "vllm:spec_decode_draft_acceptance_rate, vllm:spec_decode_efficiency" in snapshot.notes[0]
    )
    assert vllm.identify(Facts(samples=samples)).speculative is True


@pytest.mark.parametrize(
    ("engine", "name", "model"),
    [
        ("vllm", "vllm-0.32.0-after.metrics", "tiny"),
        ("llamacpp", "llamacpp-b11549-after.metrics", None),
    ],
)
def test_parsing_only_an_engines_series_changes_no_figure(engine, name, model):
    card = by_name(engine)
    fewer = parse((CAPTURES / name).read_text(), card.series)
    assert card.read_counters(fewer, model) == card.read_counters(page(name), model)
    if engine == "vllm":
        assert len(fewer) < len(page(name)) / 5


# --- drafting as a response tells it --------------------------------------------------------


def test_accepted_at_from_the_histogram():
    # 10 steps: 3 accepted none, 2 one, 1 two, 4 three: 1 or more 7, 2 or more 5, 3 or more 4.
    told = vllm.read_drafting(
        FinalFields(speculative_decoding=SpeculativeDecoding(
            num_spec_steps=10, num_draft_tokens=30, num_accepted_draft_tokens=16,
            acceptance_histogram=[3, 2, 1, 4]))
    )  # fmt: skip
    assert told.counts == DraftCounts(drafts=10, drafted=30, accepted=16, accepted_at=[7, 5, 4])
    assert told.drafted_steps is None


def test_a_histogram_that_contradicts_its_total_is_not_used():
    told = vllm.read_drafting(
        FinalFields(speculative_decoding=SpeculativeDecoding(
            num_spec_steps=10, num_draft_tokens=30, num_accepted_draft_tokens=15,
            acceptance_histogram=[3, 2, 1, 4]))
    )  # fmt: skip
    assert (told.counts.accepted, told.counts.accepted_at) == (15, None)


def test_drafts_of_varying_length():
    # Field case 21: three drafts reached position 0, two position 1, one position 2.
    told = vllm.read_drafting(
        FinalFields(speculative_decoding=SpeculativeDecoding(
            num_spec_steps=3, num_draft_tokens=6, num_accepted_draft_tokens=2,
            per_step_drafted=[1, 3, 2], per_step_accepted=[0, 2, 0]))
    )  # fmt: skip
    assert told.counts.drafted_at == [3, 2, 1]
    assert (told.drafted_steps, told.accepted_steps) == ([1, 3, 2], [0, 2, 0])


def test_responses_that_tell_nothing():
    for engine in ENGINES:
        assert engine.read_drafting(FinalFields()) is None
        assert engine.read_drafting(FinalFields(timings=Timings(predicted_n=9))) is None
    empty = FinalFields(speculative_decoding=SpeculativeDecoding())
    assert vllm.read_drafting(empty) is None


def test_a_known_engine_behind_a_gateway():
    assert openai.read_drafting(final_of("llamacpp-b11549-ngram.sse")).counts.drafted == 184
    assert openai.read_drafting(final_of("vllm-0.32.0-mtp3-detailed.sse")).counts.drafts == 199


# --- recognising ----------------------------------------------------------------------------

VLLM_MODEL = {
    "id": "m",
    "object": "model",
    "owned_by": "vllm",
    "root": "/models/m",
    "max_model_len": 2048,
}


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (Facts(version={"version": "0.24.0"}), "vllm"),
        (Facts(models={"data": [VLLM_MODEL]}), "vllm"),
        (Facts(samples=vllm_page("num_requests_running 0")), "vllm"),
        (Facts(headers={"server": "llama.cpp"}), "llamacpp"),
        (Facts(props=fixture("llamacpp-b11549-props.json")), "llamacpp"),
        (Facts(models=fixture("llamacpp-b11549-models.json")), "llamacpp"),
        (Facts(samples=page("llamacpp-b11549-before.metrics")), "llamacpp"),
        (Facts(), "openai"),
        (
            Facts(version={"version": "1"}, models={"data": [{"id": "m", "owned_by": "other"}]}),
            "openai",
        ),
        (Facts(version=[], models=[], props=3, slots={}, samples=()), "openai"),
        (Facts(models={"data": [None, 3, {"id": 5}]}, version={"version": None}), "openai"),
    ],
)
def test_recognised(facts, name):
    engine, _ = recognise(facts)
    assert engine.name == name


def test_vllm_identity():
    _, identity = recognise(
        Facts(version={"version": "0.24.0"}, models={"data": [VLLM_MODEL]},
              samples=page("vllm-0.24.0-mtp3.metrics"))
    )  # fmt: skip
    assert (identity.version, identity.model, identity.max_context) == ("0.24.0", "m", 2048)
    assert (identity.speculative, identity.draft_tokens, identity.method) == (True, 3, None)


def test_vllm_without_speculation_and_without_metrics():
    plain = vllm.identify(Facts(samples=vllm_page("num_requests_running 0")))
    assert (plain.speculative, plain.draft_tokens) == (False, None)
    assert vllm.identify(Facts(metrics_problem="404")).speculative is None
    assert vllm.identify(Facts(samples=())).speculative is None


def test_adapters_and_aliases_are_not_other_models():
    alias, adapter = (
        {**VLLM_MODEL, "id": "n"},
        {**VLLM_MODEL, "id": "lora", "root": "/l", "parent": "m"},
    )
    assert vllm.identify(Facts(models={"data": [VLLM_MODEL, alias, adapter]})).model == "m"
    other = {**VLLM_MODEL, "id": "o", "root": "/models/o"}
    assert vllm.identify(Facts(models={"data": [VLLM_MODEL, other]})).model is None


@pytest.mark.parametrize(
    ("slots", "speculative", "method"),
    [
        ("ngram-slots", True, None),  # not used yet: the page does not say what drafts
        ("ngram-slots-used", True, "ngram-simple"),
        ("plain-slots", False, None),
        ("plain-slots-used", False, None),
    ],
)
def test_llamacpp_identity(slots, speculative, method):
    engine, identity = recognise(
        Facts(
            props=fixture("llamacpp-b11549-props.json"),
            models=fixture("llamacpp-b11549-models.json"),
            slots=fixture(f"llamacpp-b11549-{slots}.json"),
            # This server shows drafting series at zero whether it speculates or not.
            samples=page("llamacpp-b11549-plain-after.metrics"),
        )
    )
    assert engine.name == "llamacpp"
    assert (identity.speculative, identity.method) == (speculative, method)
    assert identity.model == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (identity.version, identity.max_context) == ("b0-unknown", 4096)


def test_llamacpp_without_slots():
    used = page("llamacpp-b11549-after.metrics")
    assert llamacpp.identify(Facts(samples=used)).speculative is True
    idle = page("llamacpp-b11549-plain-after.metrics")
    assert llamacpp.identify(Facts(samples=idle)).speculative is None
    assert (
        llamacpp.identify(Facts(slots=[{"params": {"speculative.types": "none"}}])).speculative
        is None
    )
    told = llamacpp.identify(Facts(slots=[{"params": {"speculative.types": ["a", "b"]}}]))
    assert (told.speculative, told.method) == (True, "a,b")


def test_other_servers():
    models = {"data": [{"id": "m", "max_model_len": 4096}]}
    identity = openai.identify(Facts(models=models))
    assert (identity.model, identity.max_context, identity.speculative) == ("m", 4096, None)
    snapshot = openai.read_counters(page("vllm-0.24.0-mtp3.metrics"), "m")
    assert (snapshot.drafts, len(snapshot.notes)) == (None, 1)


def test_terminal_codes_in_a_version_are_made_visible():
    assert vllm.identify(Facts(version={"version": "\x1b[2J1"})).version == "\\x1b[2J1"


# --- the table ------------------------------------------------------------------------------


def test_ladders_end_with_asking_for_nothing():
    for engine in ENGINES:
        assert engine.request_ladder[-1] == {}
    assert by_name("vllm").request_ladder[0]["return_token_ids"] is True
    assert by_name("llamacpp").request_ladder[0]["timings_per_token"] is True
    assert by_name("openai").request_ladder[0]["stream_options"]["continuous_usage_stats"] is True
    assert [e.chunk_is_step for e in ENGINES] == [True, False, None]


def test_by_name():
    assert by_name("llamacpp") is llamacpp.LLAMACPP
    with pytest.raises(
        UsageError, match=r"did you mean 'vllm'\? \(known: vllm, llamacpp, openai\)"
    ):
        by_name("vLLM")
    with pytest.raises(UsageError, match="known: vllm, llamacpp, openai"):
        by_name("tensorrt")


@pytest.mark.parametrize(
    ("words", "method", "draft_tokens"),
    [
        (["vllm", "serve", "m", "--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'], "mtp", 3),
        (["vllm", "serve", "m", '-sc={"model": "head", "num_speculative_tokens": 5}'], None, 5),
        (["vllm", "serve", "m", "--speculative-config", "not json"], None, None),
        (["vllm", "serve", "m", "--speculative-config"], None, None),
        (["vllm", "serve", "m"], None, None),
    ],
)  # fmt: skip
def test_vllm_what_a_launch_command_asks_for(words, method, draft_tokens):
    asked = by_name("vllm").read_launch(words)
    assert (asked.method, asked.draft_tokens) == (method, draft_tokens)
