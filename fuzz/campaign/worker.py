"""Task functions of a campaign: draw and judge a range of programs, judge one again, list the grammar's operators and rules."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fuzz.builds.inductor import in_turn
from fuzz.campaign.coverage import program_features
from fuzz.draw.choices import RandomDraw
from fuzz.draw.inputs.source import shown_inputs
from fuzz.draw.settings import Settings, Steering
from fuzz.judge.observing import aten_features, collect_garbage, compiler_features, prepared_subject
from fuzz.judge.single import judge
from fuzz.program.batch import Batch, batch_key, combine, grouped, inlined, named_members
from fuzz.program.render import render, to_program
from fuzz.program.structure import FuzzProgram
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.programs import RULES, draw_program
from oracle.case import CaseResult
from oracle.hygiene import differences, snapshot
from oracle.program import Program
from oracle.subjects.base import Subject
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status, Verdict

_TRACEBACK_CHARACTERS = 3000
_GROUP_TRIALS = 12  # runs for finding the members of a batch that a difference needs
_MEMBERS_OF_A_LIMIT = 4  # a batch gets the time limit of one more program for every four further members
_NOT_JUDGED = (Status.EAGER_FAIL_TO_RUN, Status.EAGER_TWO_RUNS_DIFFER, Status.MODEL_FAIL_TO_LOAD)
Progress = Callable[[str], None]
T = TypeVar("T")


class TallyingDraw(RandomDraw):
    """Random choices that also count which operators and rules were chosen, whether they were kept or not."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        self.chosen: dict[str, None] = {}

    def weighted(self, weights: Mapping[T, float]) -> T:
        chosen = super().weighted(weights)
        if isinstance(chosen, str):
            self.chosen[chosen] = None
        return chosen


@dataclass(slots=True, kw_only=True)
class _Drawn:
    """A drawn program of a range."""

    number: int
    program: FuzzProgram
    source: str
    features: list[str]
    status: str = ""
    seen: list[str] = field(default_factory=list)  # features of the run


@dataclass(slots=True, kw_only=True)
class _RangeState:
    """A range of programs while it is judged."""

    subject: Subject
    progress: Progress
    batch_size: int
    programs: list[_Drawn] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    ill: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)  # errors while drawing
    judge_errors: list[dict[str, Any]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    judgements: int = 0
    is_polluted: bool = False
    limit_s: float = 0.0  # time limit of one program; 0: none


@in_turn(shares_builds=True)
def judge_range(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Draw the programs of a range and judge them.

    payload: {"subject": SubjectSpec, "settings": fields of Settings, "steering": factors, "seed", "numbers",
    "batch_size", "limit_s": of one program, "configs": held by a program, by its number}.

    Stages name the current programs, "programs 17 18: subject", so that they are known if the worker dies.
    A program on which the judge itself fails has status "" and is in `judge_errors`. `left` are numbers that were not judged
    because the subject left the process changed beyond repair.
    A program that takes longer than its limit ends the process by SIGALRM.
    """
    progress("load")
    started = os.times()
    subject = prepared_subject(payload["subject"])
    state = _RangeState(
        subject=subject, progress=progress, batch_size=payload["batch_size"], limit_s=payload["limit_s"]
    )
    _draw_all(payload, state)
    drawn = os.times()
    clean = snapshot()
    queue = _work(state)
    for position, group in enumerate(queue):
        if state.is_polluted and differences(clean, snapshot()):
            state.left = sorted(item.number for rest in queue[position:] for item in rest)
            break
        _judge_group(group, state)
    collect_garbage()
    ended = os.times()
    return {
        "programs": [
            {
                "number": item.number,
                "status": item.status,
                "features": item.features,
                "seen": item.seen,
                "program": item.program.to_json() if item.seen else None,
            }
            for item in state.programs
        ],
        "findings": state.findings,
        "ill": state.ill,
        "errors": state.errors,
        "judge_errors": state.judge_errors,
        "left": state.left,
        "judgements": state.judgements,
        "draw_cpu_s": _cpu_seconds(started, drawn),
        "judge_cpu_s": _cpu_seconds(drawn, ended),
        "replace_worker": state.is_polluted,
    }


@in_turn(shares_builds=False)
def draw_range(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Draw the programs of a range without judging: {"programs": [{"number", "features", "key", "program", "inputs"}], "errors"}.

    "inputs" is Python text for the numbers in payload["shown"], and [] for the others.
    """
    state = _RangeState(subject=_NO_SUBJECT, progress=progress, batch_size=1)
    _draw_all(payload, state)
    return {
        "programs": [
            {
                "number": item.number,
                "features": item.features,
                "key": batch_key(item.program),
                "program": item.program.to_json(),
                "inputs": shown_inputs(item.program) if item.number in payload.get("shown", ()) else [],
            }
            for item in state.programs
        ],
        "errors": state.errors,
    }


@in_turn(shares_builds=False)
def judge_again(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge one program up to `times` times, until it shows a finding; {"subject", "program", "times"} -> {"shown", ...}."""
    progress("load")
    subject = prepared_subject(payload["subject"])
    program = FuzzProgram.from_json(payload["program"])
    runs = 0
    while True:
        runs += 1
        result = judge(to_program(program, name="again"), subject, progress=progress)
        if result.verdict.status.is_finding or runs >= payload["times"]:
            break
    return {
        "shown": result.verdict.status.is_finding,
        "runs": runs,
        "verdict": result.verdict.to_json(),
        "symptom": symptom_of(result.verdict).to_json(),
        "traceback": result.traceback[-_TRACEBACK_CHARACTERS:],
        "replace_worker": bool(result.leaked),
    }


@in_turn(shares_builds=True)
def judge_source(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge a program of `oracle.program`; {"subject", "program"} -> {"verdict"}."""
    progress("load")
    subject = prepared_subject(payload["subject"])
    result = judge(Program.from_json(payload["program"]), subject, progress=progress)
    return {"verdict": result.verdict.to_json(), "replace_worker": bool(result.leaked)}


def show_inputs(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: {"program"} -> {"inputs": for each call, the Python lines that make the inputs and call the program}."""
    progress("show inputs")
    return {"inputs": shown_inputs(FuzzProgram.from_json(payload["program"]))}


def describe_grammar(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Names of the operators and rules that may be drawn."""
    return {"operators": list(OPERATORS), "rules": [rule.name for rules in RULES.values() for rule in rules]}


@in_turn(shares_builds=False)
def warm_up(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge one program, so that the subject builds what it needs only once (probes, precompiled headers)."""
    progress("subject")
    subject = prepared_subject(payload["subject"])
    program = draw_program(RandomDraw("warm up"), Settings(focus="ops", max_statements=1))
    return {"status": judge(to_program(program, name="warm up"), subject).verdict.status.value}


_NO_SUBJECT: Any = None


def _draw_all(payload: Mapping[str, Any], state: _RangeState) -> None:
    fields = dict(payload["settings"])
    fields["dtypes"] = tuple(fields.get("dtypes", ()))
    settings = Settings(**fields, steering=Steering(factors=payload["steering"]))
    for number in payload["numbers"]:
        state.progress(f"programs {number}: draw")
        try:
            draw = TallyingDraw(f"{payload['seed']}/{number}")
            program = draw_program(draw, settings)
            program = replace(program, config={**program.config, **payload["configs"].get(str(number), {})})
            json.dumps(program.to_json(), allow_nan=False)
            source = render(program)
        except Exception:  # an error of the grammar: reported as an internal error, and the campaign goes on
            state.errors.append({"number": number, "error": traceback.format_exc()[-_TRACEBACK_CHARACTERS:]})
            continue
        features = [*program_features(program), *(f"chosen:{name}" for name in draw.chosen)]
        state.programs.append(_Drawn(number=number, program=program, source=source, features=features))


def _work(state: _RangeState) -> list[list[_Drawn]]:
    """Groups of programs that are judged together, ordered by their first program."""
    if state.batch_size <= 1:
        return [[item] for item in state.programs]
    keys = [batch_key(item.program) for item in state.programs]
    groups = grouped([item.program for item in state.programs], keys, state.batch_size)
    return [[state.programs[position] for position in group] for group in groups]


def _judge_group(group: Sequence[_Drawn], state: _RangeState) -> None:
    """Judge a group. An internal error is noted for its program, and the others are judged."""
    try:
        if len(group) == 1:
            _judge_single(group[0], state)
        else:
            _judge_batch(group, state)
    except Exception:
        if len(group) > 1:
            for item in group:
                _judge_group([item], state)
            return
        (item,) = group
        item.status = ""
        state.judge_errors.append({"number": item.number, "error": traceback.format_exc()[-_TRACEBACK_CHARACTERS:]})


def _judge_single(item: _Drawn, state: _RangeState) -> Verdict:
    """Judge a program alone, and note its result."""
    program = to_program(item.program, name=f"fuzz {item.number}")
    result = _judged(item.program, [item.number], state)
    item.seen = sorted({*item.seen, *compiler_features(state.subject.spec)})
    status = result.verdict.status
    item.status = status.value
    if status in _NOT_JUDGED:
        state.ill.append({"number": item.number, "status": status.value, "symptom": result.verdict.symptom[:300]})
    else:
        item.seen += aten_features(program)
    if status.is_finding:
        state.findings.append(_finding([item.number], item.program, result))
    return result.verdict


def _judged(program: FuzzProgram, numbers: Sequence[int], state: _RangeState) -> CaseResult:
    at = f"programs {' '.join(map(str, numbers))}"
    state.progress(f"{at}: load")
    state.judgements += 1
    # The default action of SIGALRM ends the process, whatever it is doing; the stage says which program it was.
    signal.setitimer(signal.ITIMER_REAL, state.limit_s * (1 + (len(numbers) - 1) / _MEMBERS_OF_A_LIMIT))
    try:
        result = judge(
            to_program(program, name=f"fuzz {numbers[0]}"),
            state.subject,
            progress=lambda stage: state.progress(f"{at}: {stage}"),
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    state.is_polluted = state.is_polluted or bool(result.leaked)
    return result


def _judge_batch(group: Sequence[_Drawn], state: _RangeState) -> None:
    """Judge programs together; where they differ from eager, find which of them does."""
    if len(group) == 1:
        _judge_single(group[0], state)
        return
    batch = combine([item.program for item in group])
    result = _judged(batch.program, [item.number for item in group], state)
    features = compiler_features(state.subject.spec)
    if result.verdict.status in _NOT_JUDGED:  # nothing was judged together: judge the members alone
        for item in group:
            _judge_single(item, state)
        return
    if not result.verdict.status.is_finding:
        for item in group:
            item.status = result.verdict.status.value
            item.seen = aten_features(to_program(item.program, name=f"fuzz {item.number}"))
        group[0].seen += features
        return
    before = len(state.findings)
    named, is_complete = named_members(result.verdict, batch)
    if is_complete and len(named) < len(group):
        for position, item in enumerate(group):
            if position in named:
                _judge_single(item, state)
            else:
                item.status = Status.PASS.value
                item.seen = aten_features(to_program(item.program, name=f"fuzz {item.number}"))
    else:
        half = len(group) // 2
        _judge_batch(group[:half], state)
        _judge_batch(group[half:], state)
    if len(state.findings) == before:
        _note_joint_finding(group, named, result, state)


def _note_joint_finding(group: Sequence[_Drawn], named: Sequence[int], result: CaseResult, state: _RangeState) -> None:
    """Note a difference that no member shows alone, with only the members that it needs."""
    kept = symptom_of(result.verdict)
    members = list(range(len(group)))
    trials = 0
    step = max(1, len(members) // 2)
    while step >= 1 and trials < _GROUP_TRIALS and len(members) > 2:
        removable = [m for m in members if m not in named][:step]
        smaller = [m for m in members if m not in removable]
        trials += 1
        seen = _shows([group[m] for m in smaller], kept, state) if removable and smaller else None
        if seen is not None:
            members, result = smaller, seen
        elif step == 1:
            break
        step = min(step, len(members) // 2) if seen is not None else step // 2
    chosen = [group[m] for m in members]
    program = combine([item.program for item in chosen])
    flat = _flat_program(program, kept, [item.number for item in chosen], state)
    state.findings.append(_finding([item.number for item in chosen], flat or program.program, result))


def _shows(items: Sequence[_Drawn], kept: Symptom, state: _RangeState) -> CaseResult | None:
    program = combine([item.program for item in items]).program
    result = _judged(program, [item.number for item in items], state)
    return result if matches(kept, symptom_of(result.verdict)) else None


def _flat_program(batch: Batch, kept: Symptom, numbers: Sequence[int], state: _RangeState) -> FuzzProgram | None:
    flat = inlined(batch)
    if flat is None:
        return None
    return flat if matches(kept, symptom_of(_judged(flat, numbers, state).verdict)) else None


def _finding(numbers: Sequence[int], program: FuzzProgram, result: CaseResult) -> dict[str, Any]:
    return {
        "numbers": list(numbers),
        "program": program.to_json(),
        "verdict": result.verdict.to_json(),
        "symptom": symptom_of(result.verdict).to_json(),
        "traceback": result.traceback[-_TRACEBACK_CHARACTERS:],
        "inputs": shown_inputs(program),
    }


def _cpu_seconds(start: os.times_result, end: os.times_result) -> float:
    """CPU time of this process and of its children that have ended (a C++ compiler)."""
    return sum(end[:4]) - sum(start[:4])
