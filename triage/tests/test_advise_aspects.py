"""What `advise` says of two versions that differ on purpose: values, errors, graphs, recompiles, times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from oracle.case import EagerState
from oracle.errors import UsageError
from oracle.explanation import Break
from oracle.hygiene import snapshot
from oracle.known.ledger import load_ledger
from oracle.observe import observe
from oracle.observe.outcome import Crashed, Outcome, calls_of
from oracle.program import Program, default_plan
from oracle.program.build import instantiate
from oracle.program.input_text import parse_call
from oracle.subjects.registry import resolve
from oracle.verdict import Status
from results.render import TextTable
from triage.advise import asking
from triage.advise.answers import Answer, CaptureFacts
from triage.advise.asking import Request, Side, ask_both, check_subject, names_of
from triage.advise.aspects import (
    Aspect,
    Change,
    aspects_of,
    errors_aspect,
    graphs_aspect,
    recompiles_aspect,
    time_aspect,
    time_change,
    values_aspect,
)
from triage.advise.bugs import Reason, Touched
from triage.advise.judged import Judged, judge_both
from triage.advise.report import Advice
from triage.advise.worker import input_digests

_RIGHT = "a.sin().sum(0)"
_REORDERED = "a.sin().flip(0).sum(0)"
_WRONG = "a.sin().sum(0) * 1.01"
_STRIDED = "a.sin().sum(0).repeat(2)[::2]"


def _program(returned: str) -> Program:
    plan = default_plan(parse_call("f32[300, 4]"), key=None, count=2)
    return Program(name="p", source=f"import torch\n\ndef program(a):\n    return {returned}\n", calls=plan)


def _outcome(returned: str) -> Outcome:
    return observe(instantiate(_program(returned)))


def _side(eager: str, compiled: str, *, version: str = "2.12.0", again: str = "") -> Side:
    """A version whose eager and compiled programs compute these; `again` is what eager gives in the second round."""
    inputs = input_digests(_program(eager))
    first = Answer(torch=version, eager=_outcome(eager), compiled=_outcome(compiled), inputs=inputs)
    second = replace(first, eager=_outcome(again or eager))
    return Side(python="python", answers=(first, second))


def _judged(old: Side, new: Side, right: str = _RIGHT, subject: str = "aot_eager") -> Judged:
    eager = EagerState(make=lambda: instantiate(_program(right)))
    eager.run(lambda stage: None, snapshot())
    return judge_both(old, new, eager, resolve(subject))


@pytest.mark.parametrize(
    ("old", "new", "change", "text"),
    [
        ((_RIGHT, _RIGHT), (_RIGHT, _RIGHT), Change.SAME, "eager: the same bits; compiled: the same bits"),
        ((_RIGHT, _RIGHT), (_RIGHT, _REORDERED), Change.SAME, "eager: the same bits; compiled: differs by rounding ("),
        ((_RIGHT, _RIGHT), (_REORDERED, _REORDERED), Change.SAME, "eager: differs by rounding (max error "),
        ((_RIGHT, _RIGHT), (_WRONG, _WRONG), Change.WORSE, "eager gives other values"),
        ((_RIGHT, _RIGHT), (_STRIDED, _STRIDED), Change.WORSE, "eager gives other values"),
        ((_RIGHT, _RIGHT), (_RIGHT, _WRONG), Change.WORSE, "the new torch compiles it wrong, the old one right"),
        ((_RIGHT, _WRONG), (_RIGHT, _RIGHT), Change.BETTER, "the old torch compiles it wrong, the new one right"),
        ((_RIGHT, _WRONG), (_RIGHT, _WRONG), Change.SAME, "both versions compile it wrong"),
        ((_RIGHT, _RIGHT), (_RIGHT, "a.no_such()"), Change.UNKNOWN, "eager: the same bits; compiled: not compared: a run raises"),
    ],
)  # fmt: skip
def test_values_are_judged_between_versions_and_against_eager(
    old: tuple[str, str], new: tuple[str, str], change: Change, text: str
) -> None:
    aspect = values_aspect(_judged(_side(*old), _side(*new)))
    assert (aspect.change, aspect.text[: len(text)]) == (change, text)
    assert bool(aspect.details) == (_WRONG in (*old, *new) or _STRIDED in new)


def test_a_difference_names_the_worst_element_and_rounding_its_size() -> None:
    judged = _judged(_side(_RIGHT, _RIGHT), _side(_WRONG, _REORDERED))
    assert judged.eager.text.startswith("differs: call 0: output[")
    assert judged.compiled.text.endswith("accepted: close)") or "fp64" in judged.compiled.text
    assert judged.compiled.verdict is not None
    assert judged.compiled.verdict.status is Status.PASS


def test_values_that_vary_within_a_version_are_not_compared() -> None:
    judged = _judged(_side(_RIGHT, _RIGHT, again=_WRONG), _side(_RIGHT, _RIGHT))
    assert judged.eager.text.startswith("not compared: two runs with one version differ (call 0: output[")
    assert values_aspect(judged).change is Change.UNKNOWN


def test_other_inputs_are_told_and_each_version_is_still_judged_against_its_eager() -> None:
    old, new = _side(_RIGHT, _RIGHT), _side(_RIGHT, _WRONG)
    moved = tuple(replace(answer, inputs={**answer.inputs, "call 1: args[0]": "other"}) for answer in new.answers)
    judged = _judged(old, replace(new, answers=moved))
    assert judged.inputs == ("call 1: args[0]",)
    assert judged.eager.text.startswith("not compared: random streams of the versions differ")
    assert judged.compiled_new.is_other
    assert values_aspect(judged).change is Change.WORSE


def test_random_numbers_of_a_compilers_own_are_compared_by_their_distribution() -> None:
    drawn, other = "torch.rand(50)", "torch.rand(50).flip(0)"
    judged = _judged(_side(drawn, other), _side(drawn, drawn), drawn, "inductor")
    assert judged.eager.is_same_bits
    assert judged.compiled.text == "not compared: a compiled program draws its own random numbers"
    assert not judged.compiled_old.is_other
    same = _judged(_side(drawn, other), _side(drawn, other), drawn, "inductor")
    assert same.compiled.is_same_bits
    wrong = _judged(_side(drawn, drawn), _side(drawn, f"{drawn} * 3"), drawn, "inductor")
    assert wrong.compiled_new.is_other


def test_errors_that_are_new_gone_or_another_one() -> None:
    right, no_name, no_key = (
        Answer(eager=_outcome(_RIGHT), compiled=_outcome(text)) for text in (_RIGHT, "a.no_such()", "{}[3]")
    )
    died = replace(
        right, compiled=Crashed(signal=11, exit_code=None, stage="compiled", traceback=""), death="died of signal 11"
    )
    for old, new, change, text in (
        (right, right, Change.SAME, "none"),
        (right, no_name, Change.WORSE, "compiled: a new error"),
        (no_name, right, Change.BETTER, "compiled: no error any more"),
        (no_name, no_key, Change.WORSE, "compiled: another error"),
        (no_name, no_name, Change.SAME, "compiled: the same as before"),
        (right, died, Change.WORSE, "compiled: a new error"),
        (right, replace(right, death="died of signal 6"), Change.WORSE, "compiled: a new error"),
    ):  # fmt: skip
        aspect = errors_aspect(old, new)
        assert (aspect.change, aspect.text) == (change, text)
    assert errors_aspect(right, no_key).details == ("compiled, new: KeyError in call 0: 3",)


def _capture(breaks: Sequence[tuple[str, str]] = (), recompiles: Sequence[str] = (), graphs: int | None = 1) -> Answer:
    listed = tuple(Break(where=where, reason=reason) for where, reason in breaks)
    facts = CaptureFacts(graphs=graphs, breaks=listed, recompiles=tuple(recompiles))
    return Answer(eager=_outcome(_RIGHT), compiled=_outcome(_RIGHT), capture=facts)


def test_graph_breaks_are_compared_by_their_lines_and_not_by_their_wording() -> None:
    one = _capture([("m.py:3: print(x)", "old words")], graphs=2)
    reworded = _capture([("m.py:3: print(x)", "new words")], graphs=2)
    moved = _capture([("m.py:9: x.item()", "item")], graphs=2)
    more = _capture([("m.py:3: print(x)", "new words"), ("m.py:9: x.item()", "item")], graphs=3)
    told = [graphs_aspect(*pair) for pair in ((one, reworded), (one, more), (more, one), (one, moved))]
    assert [aspect.change for aspect in told] == [Change.SAME, Change.WORSE, Change.BETTER, Change.OTHER]
    assert told[1].text == "3 graphs, was 2; 2 graph breaks, was 1"
    assert told[1].details == ("new graph break: m.py:9: x.item() (item)",)
    assert told[2].details == ("no graph break any more: m.py:9: x.item() (item)",)
    untold = replace(one, capture=CaptureFacts())
    assert graphs_aspect(untold, one).change is Change.UNKNOWN
    assert recompiles_aspect(untold, one).change is Change.UNKNOWN
    counts = [recompiles_aspect(_capture(), _capture(recompiles=["n == 3"])), recompiles_aspect(one, reworded)]
    assert [(aspect.change, aspect.text) for aspect in counts] == [
        (Change.WORSE, "1, was 0"),
        (Change.SAME, "0, as before"),
    ]
    assert counts[0].details == ("recompile of the new torch: n == 3",)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], Change.WORSE),
        ([1.3, 1.4, 1.5], [1.0, 1.1, 1.2], Change.BETTER),
        ([1.0, 1.1, 1.2], [1.15, 1.4, 1.5], Change.SAME),  # the spreads overlap
        ([1.0, 1.001, 1.002], [1.01, 1.02, 1.03], Change.SAME),  # the medians are 2 % apart
        ([1.0], [9.0], Change.UNKNOWN),
    ],
)
def test_times_are_called_different_if_all_rounds_agree(old: list[float], new: list[float], change: Change) -> None:
    assert time_change(old, new) is change


def _timed(seconds: Sequence[float]) -> Side:
    right = Answer(torch="2.12.0", eager=_outcome(_RIGHT), compiled=_outcome(_RIGHT))
    return Side(python="python", answers=tuple(replace(right, first_s=9.0, eager_s=1.0, compiled_s=s) for s in seconds))


def test_a_time_is_told_with_both_medians() -> None:
    aspect = time_aspect("compiled_s", _timed([1.0, 1.1, 1.2]), _timed([2.0, 2.1, 2.2]))
    assert aspect == Aspect(name="speed", change=Change.WORSE, text="slower: 2.1 s, was 1.1 s")
    nothing = time_aspect("compile_s", _timed([]), _timed([1.0]))
    assert (nothing.change, nothing.text) == (Change.UNKNOWN, "not measured, for not all runs returned")
    changes = [
        aspect.change
        for aspect in aspects_of(
            _timed([1.0, 1.0]), _timed([1.0, 1.0]), _judged(_side(_RIGHT, _RIGHT), _side(_RIGHT, _RIGHT))
        )
    ]
    assert Change.WORSE not in changes


@pytest.mark.parametrize(("is_called", "expected"), [(False, 2), (True, 4)])
def test_versions_take_turns_and_a_change_of_times_is_confirmed(
    is_called: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(request: Request, python: str) -> Answer:
        asked.append(python)
        return _timed([float(len(asked))]).first

    monkeypatch.setattr(asking, "ask", ask)
    request: Any = None
    sides = ask_both(request, "old", "new", rounds=2, is_called=lambda *sides: is_called)
    assert asked == ["old", "new"] * expected
    calls = [len(calls_of(answer.eager)) for answer in sides[1].answers]
    assert calls == [2, 2, 0, 0][:expected]  # what was seen of the later rounds is dropped
    assert sides[0].times("compiled_s") == tuple(map(float, range(1, 2 * expected, 2)))


def test_sides_have_the_shortest_names_by_which_they_differ() -> None:
    def named(torch: str, python: str, path: str) -> Side:
        return Side(python=path, answers=(replace(_timed([1.0]).first, torch=torch, python=python),))

    old, same = named("2.12.0+cpu", "3.11.7", "/a"), named("2.12.0+cpu", "3.11.7", "/b")
    assert names_of((old, named("2.13.0", "3.11.7", "/b"))) == ("2.12.0", "2.13.0")
    assert names_of((old, named("2.12.0+cu130", "3.11.7", "/b"))) == ("2.12.0+cpu", "2.12.0+cu130")
    assert names_of((old, named("2.12.0+cpu", "3.12.1", "/b"))) == (
        "2.12.0 on Python 3.11.7",
        "2.12.0 on Python 3.12.1",
    )
    assert names_of((old, same)) == ("/a", "/b")


def test_a_subject_without_torch_compile_is_refused() -> None:
    check_subject(resolve("inductor[mode=max-autotune]"))
    for name in ("eager", "export", "refimpl.aot"):
        with pytest.raises(UsageError, match=r"torch\.compile with one of its backends"):
            check_subject(resolve(name))


def test_the_text_has_a_line_for_each_aspect_then_a_table_then_what_is_behind_them() -> None:
    old, new = _side(_RIGHT, _RIGHT), _side(_RIGHT, _WRONG, version="2.13.0")
    judged = _judged(old, new)
    issues = [issue for issue in load_ledger().issues if issue.finding is not None][:7]
    bugs = [
        Touched(issue=each, reason=Reason.OPERATORS, why="operators x", standing="in both", weight=1.0)
        for each in issues
    ]
    advice = Advice(
        target="m.py:Net", subject="inductor", names=names_of((old, new)), sides=(old, new), judged=judged,
        aspects=aspects_of(old, new, judged), bugs=tuple(bugs), knows_operators=True,
    )  # fmt: skip
    first, second, detail, _, known = advice.parts()
    assert isinstance(first, TextTable)
    assert first.title == "m.py:Net on inductor: from torch 2.12.0 to 2.13.0"
    assert [row[:2] for row in first.rows] == [
        ("values", "worse"), ("errors", "same"), ("graphs", "not told"), ("recompiles", "not told"),
        ("compile time", "not told"), ("speed", "not told"), ("known bugs", "told"),
    ]  # fmt: skip
    assert isinstance(second, TextTable)
    assert {row[0]: row[1:] for row in second.rows}["compiled against eager"] == ("the same bits", "differs")
    assert isinstance(detail, str)
    assert detail.startswith("compiled by the new torch against the old one: differs: call 0: output[")
    assert isinstance(known, TextTable)
    assert len(known.rows) == 5
    assert known.note.startswith("... and 2 more with such operators")
    assert advice.exit_code == 1
    told = json.loads(json.dumps(advice.to_json(), allow_nan=False))
    assert [len(told["known bugs"]), told["exit code"]] == [7, 1]
    right = aspects_of(old, old, _judged(old, old))
    nothing = replace(advice, aspects=right, bugs=(), knows_operators=False)
    assert nothing.exit_code == 0
    text = nothing.parts()[0]
    assert isinstance(text, TextTable)
    assert text.rows[-1] == ("known bugs", "not told", "the program could not be captured here")
