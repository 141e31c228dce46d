"""Finds the first wrong rung of a drawn program, and refimpl's second opinion (`oracle.localisation.ladder`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from fuzz.judge.single import judge
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.localisation import ladder
from oracle.subjects.base import Subject
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom
from oracle.verdict import Verdict

Judge = Callable[[FuzzProgram, SubjectSpec], Verdict]


def first_wrong(
    program: FuzzProgram, subject: SubjectSpec, symptom: Symptom, *, judge_on: Judge | None = None
) -> SubjectSpec:
    """The lowest rung that shows the symptom; the subject itself if no lower one does."""
    return ladder.first_wrong(subject, symptom, partial(judge_on or judge_here, program))


def second_opinion(program: FuzzProgram, rung: SubjectSpec, symptom: Symptom, *, judge_on: Judge | None = None) -> str:
    """The behaviour of refimpl on a program that is first wrong on `rung`, in words such as "refimpl agrees with eager"."""
    changes = any(call.before for call in program.calls)
    return ladder.second_opinion(rung, symptom, partial(judge_on or judge_here, program), changes_between_calls=changes)


def judge_here(program: FuzzProgram, subject: SubjectSpec) -> Verdict:
    """Judge a program in this process."""
    name = json.dumps(subject.to_json(), sort_keys=True)
    if name not in _SUBJECTS:
        _SUBJECTS[name] = load(subject)
    return judge(to_program(program, name="localised"), _SUBJECTS[name]).verdict


_SUBJECTS: dict[str, Subject] = {}  # by spec, since loading a subject imports its compiler
