"""Relations in campaigns: who is asked which, and how one that is broken becomes a finding that can be repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.corpus import Corpus
from fuzz.campaign.known import id_of_known
from fuzz.campaign.records import _bucket_row
from fuzz.campaign.relations import EVERY, EVERY_OF_BATCHED, ask_relation, every
from fuzz.campaign.replay import judge_alone, program_of_file
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.run import reason_to_stop, run_campaign
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundBucket, Work, new_state
from fuzz.campaign.summary import bucket_json, summary_json, summary_lines
from fuzz.campaign.work import selected_work, task_of
from fuzz.judge.fresh import asked_in_fresh_process
from fuzz.judge.metamorphic import RELATIONS, drawn_relations, relation_named
from fuzz.judge.relation import judge_relation
from fuzz.program.parsing import program_of
from fuzz.program.render import render, to_program
from fuzz.program.structure import FuzzProgram
from oracle.errors import UsageError
from oracle.isolate import Completed, Died, End, Failed, Pool, TaskResult
from oracle.program import Call
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status

_FLOATS = {"$": "tensor", "shape": [3], "dtype": "float32"}
_PROGRAM = program_of(
    "def program(a, b):\n    c = a.exp()\n    d = torch.add(b, c)\n    e = b.sum()\n    r = torch.mul(d, e)\n    return r, c\n",
    [_FLOATS, _FLOATS],
)
_ONE = program_of("def program(a):\n    r = a.sin()\n    return r\n", [_FLOATS])
OUTLINED = "compile:fuzz.tests.planted:wrong_when_outlined"
_TURN = next(t for t in range(20) if drawn_relations(t, resolve(OUTLINED))[0].name == "function outlined")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(
        workers=1, preload=("torch", "oracle.case", "fuzz.campaign.worker"), address_space_margin_bytes=4 * 2**30
    ) as made:
        yield made


def _settings(subject: str = OUTLINED, **changes: Any) -> CampaignSettings:
    settings = CampaignSettings(subject=resolve(subject), count=0, workers=1, case_timeout_s=30, reduction_s=15)
    return replace(settings, **changes)


def _asked(pool: Pool, settings: CampaignSettings, number: int = _TURN * EVERY) -> CampaignState:
    """A campaign that has judged one program, which agrees, and has a relation to ask."""
    state = new_state(settings)
    item = {"number": number, "status": "pass", "program": _PROGRAM.to_json()}
    ask_relation(item, 0, settings, state)
    state.statuses["pass"] = 1
    run_campaign(settings, state, pool, listener=Listener(), save=lambda: None)
    return state


# ----------------------------------------------------------------------------------------------------------- who is asked


def test_programs_that_agree_are_asked_at_their_turn() -> None:
    settings, state = _settings("dynamo"), new_state(_settings("dynamo"))
    for number in range(101):
        status = "pass" if number != 50 else "fail_accuracy"
        ask_relation({"number": number, "status": status, "program": {}}, 0, settings, state)
    ask_relation({"number": 125, "status": "pass", "program": None}, 0, settings, state)  # nothing ran
    assert [work.numbers for work in state.work.values()] == [(0,), (25,), (75,), (100,)]
    assert every(settings) == EVERY
    assert every(_settings("inductor", batch_size=16)) == EVERY_OF_BATCHED
    ask_relation({"number": 25, "status": "pass", "program": {}}, 0, _settings("eager"), state)
    assert len(state.work) == 4


def test_every_relation_has_its_turn_and_roads_have_their_subjects() -> None:
    names = [relation.name for relation in RELATIONS]
    drawn = [drawn_relations(turn, resolve("inductor")) for turn in range(2 * len(names))]
    assert [relations[0].name for relations in drawn[::2]] == names
    rare = {relation.name for relation in RELATIONS if relation.is_rare}
    assert rare == {"function inlined", "batch split"}
    assert all({relation.name for relation in relations[:2]} == rare for relations in drawn[1::2])
    assert sorted({relations[2].name for relations in drawn[1::2]}) == sorted(set(names) - rare)
    assert all(sorted(r.name for r in relations) == sorted(names) for relations in drawn)
    by_subject = {s: {r.name for r in drawn_relations(3, resolve(s))} for s in ("aot_eager", "export", OUTLINED)}
    assert set(names) - by_subject["aot_eager"] == {"fresh process"}
    assert set(names) - by_subject["export"] == {"fresh process", "through refimpl"}
    assert set(names) - by_subject[OUTLINED] == {"through refimpl"}


def test_relations_are_not_asked_when_the_time_is_over() -> None:
    settings, state = _settings(), new_state(_settings())
    ask_relation({"number": 25, "status": "pass", "program": _ONE.to_json()}, 0, settings, state)
    assert selected_work(settings, state, only_findings=True) == []
    ((_, work),) = selected_work(settings, CampaignState.from_json(state.to_json()), only_findings=False)
    assert (work.kind, work.program) == ("relate", _ONE.to_json())


def test_an_unknown_relation_is_said() -> None:
    with pytest.raises(UsageError, match="upside down"):
        relation_named("upside down")


# -------------------------------------------------------------------------------------------------------------- findings


def test_a_broken_relation_is_confirmed_reduced_put_into_a_bucket_and_repeated(pool: Pool, tmp_path: Path) -> None:
    settings = _settings()
    state = _asked(pool, settings)
    assert state.relations == {"function outlined": 1}
    assert not state.errors
    (bucket,) = CampaignState.from_json(json.loads(json.dumps(state.to_json()))).buckets.values()
    assert (bucket.relation, bucket.status) == ("function outlined", "fail_accuracy")
    assert bucket.kind == 'relation "function outlined": output: number'
    assert bucket.is_reduced
    reduced = FuzzProgram.from_json(bucket.program)
    assert len(reduced.statements) < len(_PROGRAM.statements)
    assert not state.symptoms  # the program was counted as one that agrees
    assert state.programs == 1
    text = "\n".join(summary_lines(settings, state, corpus=tmp_path))
    assert "relation: function outlined; the subject agrees with eager on the program alone" in text
    assert "relations: 1 asked (1 function outlined), 1 broken" in text
    assert summary_json(settings, state, corpus=None)["relations"] == {"function outlined": 1}
    assert bucket.kind[:60] == _bucket_row(bucket, settings, None)[0].group
    with Corpus(tmp_path / "corpus", settings.identity()) as corpus:
        path = corpus.save_finding(bucket.key, bucket_json(bucket, settings, corpus=None))
    program, relation = program_of_file(path)
    assert relation == "function outlined"
    verdict, _ = judge_alone(program, settings.subject, pool, settings, relation=relation)
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.symptom.startswith('relation "function outlined": call 0: output')
    assert judge_alone(program, settings.subject, pool, settings)[0].status is Status.PASS
    assert judge_alone(program, settings.subject, pool, settings, turn=_TURN)[0].status is Status.FAIL_ACCURACY
    honest = resolve("compile:fuzz.tests.planted:honest")
    assert judge_alone(program, honest, pool, settings, relation=relation)[0].status is Status.PASS


def test_a_related_program_that_kills_its_worker_is_a_finding(pool: Pool) -> None:
    state = _asked(pool, _settings("compile:fuzz.tests.planted:dies_when_outlined"))
    (bucket,) = state.buckets.values()
    assert (bucket.status, bucket.relation) == ("crash", "function outlined")
    assert bucket.kind == 'relation "function outlined": signal 11'


def test_a_relation_that_holds_leaves_nothing_but_a_count(pool: Pool) -> None:
    state = _asked(pool, _settings(), number=0)
    assert state.relations == {"compile twice": 1}
    assert not state.buckets
    assert not state.work
    assert state.statuses == {"pass": 1}


def _take(state: CampaignState, settings: CampaignSettings, end: End) -> None:
    state.add_work(Work(kind="relate", numbers=(0,), program=_ONE.to_json()))
    key = max(state.work)
    task = task_of(key, state.work[key], settings, state)
    ResultTaker(settings, state, Listener()).take(TaskResult(task=task, end=end, worker_pid=1, tasks_before=0))


def test_a_bug_that_also_shows_without_a_relation_is_not_counted_twice() -> None:
    settings, state = _settings(), new_state(_settings())
    state.buckets["k"] = FoundBucket(
        key="k", subject="s", status="fail_accuracy", kind="output: number", rung="", operators=("sin",),
        program={}, source="", verdict={}, numbers=(1,),
    )  # fmt: skip
    symptom = {"status": "fail_accuracy", "kind": 'relation "batch split": output: number'}
    value = {
        "relation": "batch split", "shown": True, "verdict": {"status": "fail_accuracy", "symptom": "x"},
        "symptom": symptom, "traceback": "",
    }  # fmt: skip
    _take(state, settings, Completed(value=value, wall_s=0.1))
    assert state.buckets["k"].alike == 1
    assert not state.work
    state.buckets["k"] = replace(
        state.buckets["k"], kind='relation "compile twice": output: number', relation="compile twice"
    )
    _take(state, settings, Completed(value=value, wall_s=0.1))
    assert [work.kind for work in state.work.values()] == ["confirm"]  # another relation is another bug
    assert id_of_known(state.buckets["k"], ()) == ""


def test_errors_of_ours_and_deaths_in_eager_are_no_findings() -> None:
    settings, state = _settings(), new_state(_settings())
    _take(state, settings, Failed(error="KeyError: 'x'"))
    assert (state.error_count, state.lost) == (1, 0)
    _take(
        state, settings, Died(signal=11, exit_code=None, stage="relation batch split: eager", traceback="", stderr="")
    )
    assert not state.work
    assert not reason_to_stop(state)
    _take(
        state, settings, Died(signal=11, exit_code=None, stage="relation batch split: subject", traceback="", stderr="")
    )
    (work,) = state.work.values()
    assert work.found is not None
    assert work.found.symptom == {"status": "crash", "kind": 'relation "batch split": signal 11'}
    assert state.relations == Counter({"batch split": 2})


# ----------------------------------------------------------------------------------------------------------------- roads


def test_what_a_compiler_left_on_disk_shows_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_CACHE", str(tmp_path / "cache"))
    fresh = relation_named("fresh process")
    found = judge_relation(_ONE, fresh, load(resolve("compile:fuzz.tests.planted:wrong_on_a_cache_hit")))
    assert found is not None
    assert found.verdict.status is Status.FAIL_ACCURACY
    honest = judge_relation(_ONE, fresh, load(resolve("compile:fuzz.tests.planted:honest")))
    assert honest is not None
    assert honest.verdict.status is Status.PASS


def test_a_subject_that_is_wrong_on_the_graph_of_refimpl_alone_breaks_the_relation() -> None:
    road = relation_named("through refimpl")
    broken = judge_relation(_ONE, road, load(resolve("fuzz.tests.planted_bugs:aten_sin")))
    assert broken is not None
    assert broken.verdict.status is Status.FAIL_ACCURACY
    held = judge_relation(_ONE, road, load(resolve("aot_eager")))
    assert held is not None
    assert held.verdict.status is Status.PASS


def test_gradients_go_through_refimpl_too() -> None:
    calls = (Call(args=[{**_FLOATS, "requires_grad": True}], backward=True),)
    program = program_of("def program(a):\n    r = a.sin()\n    return r\n", [], calls=calls)
    held = judge_relation(program, relation_named("through refimpl"), load(resolve("dynamo")))
    assert held is not None
    assert held.verdict.status is Status.PASS
    assert held.verdict.compared.tensors >= 3


def test_a_subject_that_is_wrong_on_both_programs_keeps_every_relation() -> None:
    subject = load(resolve("compile:fuzz.tests.planted:wrong"))
    found = [judge_relation(_ONE, relation, subject) for relation in RELATIONS[:5]]
    assert {result.verdict.status for result in found if result is not None} == {Status.PASS}, render(_ONE)


@pytest.mark.slow
def test_inductor_finds_its_kernels_again_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    program = to_program(_ONE, name="cached")
    first, none = asked_in_fresh_process(program, resolve("inductor"))
    again, hits = asked_in_fresh_process(program, resolve("inductor"))
    assert (first.status, again.status) == (Status.PASS, Status.PASS)
    assert sum(none.values()) == 0
    assert sum(hits.values()) > 0
