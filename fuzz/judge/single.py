"""Judges one drawn program on one subject in this process, for campaigns and the reducer."""

from __future__ import annotations

from collections.abc import Callable

from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.subjects.base import Subject

_OPTIONS = CaseOptions()


def judge(
    program: Program,
    subject: Subject,
    *,
    progress: Callable[[str], None] = lambda stage: None,
    is_brief: bool = False,
) -> CaseResult:
    """Eager twice, the subject, the judge. Nothing is kept from one program to the next. `is_brief` as in `judge_subject`.

    If eager refuses the program, the verdict is EAGER_FAIL_TO_RUN or MODEL_FAIL_TO_LOAD: an error of the grammar, not a finding.
    """
    eager = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=eager, subject=subject, options=_OPTIONS, progress=progress, is_brief=is_brief)
