"""The task of the pool that reduces a finding: returns the smallest program with its first wrong rung and verdict."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuzz.builds.inductor import in_turn
from fuzz.draw.inputs.source import shown_inputs
from fuzz.judge.metamorphic import Road, relation_named
from fuzz.program.render import render
from fuzz.program.structure import FuzzProgram
from fuzz.reduce import Hint, reduce_counted
from fuzz.reduce.trials import TrialProcess
from fuzz.triage.localise import first_wrong, second_opinion
from fuzz.triage.repro import repro_script
from fuzz.triage.script_runs import exit_code
from fuzz.triage.short_script import short_scripts, verified
from oracle.errors import UsageError
from oracle.localisation.culprit import cpu_seconds
from oracle.localisation.ladder import ladder_of
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status, Verdict

HANG_S = 20.0  # limit for a candidate, if the finding is a program that never ends
_CULPRIT_S = 60.0  # limit for the search for the culprit, beyond the budget
_SCRIPT_S = 60.0  # limit for one run of a short script, beyond the budget
_SEARCH_SHARE = 0.9  # of the budget; the rest is for the final run on the subject itself

Progress = Callable[[str], None]


@in_turn(shares_builds=False)
def reduce_finding(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: {"program", "subject", "symptom", "budget_s"} -> {"program", "inputs", "symptom", "rung", "verdict", ...}.

    `reproduced` is False if the program alone in a new process does not show the symptom (it needs an earlier program, or its
    batch); the program is then returned unchanged.
    """
    started, cpu_before = time.monotonic(), cpu_seconds()
    program = FuzzProgram.from_json(payload["program"])
    subject = SubjectSpec.from_json(payload["subject"])
    symptom = Symptom.from_json(payload["symptom"])
    deadline = started + float(payload.get("budget_s", 30.0))
    relation = payload.get("relation", "")
    with TrialProcess(relation=relation) as trials:
        if symptom.status == Status.TIMEOUT.value:
            trials.timeout_s = HANG_S
        progress("reproduce")
        verdict = trials.judge(program, subject)
        is_reproduced = verdict.status.is_finding and matches(symptom, symptom_of(verdict))
        rung, culprit, opinion, short, count, is_finished = subject, "", "", "", 0, False
        if is_reproduced:
            found = searched(program, subject, verdict, trials, deadline=deadline, progress=progress)
            program, verdict, rung = found.program, found.verdict, found.rung
            symptom, count, is_finished = symptom_of(verdict), found.trials, found.is_finished
        shown_on, shown_by = subject, verdict
        if is_reproduced and rung != subject:  # the script uses the first wrong rung, without later stages
            seen = trials.judge(program, rung)
            if seen.status.is_finding:
                shown_on, shown_by = rung, seen
        if is_reproduced and not relation:  # these judge the program alone
            progress("second opinion")
            opinion = second_opinion(program, rung, symptom, judge_on=trials.judge)
            progress("culprit")
            if payload.get("culprit", True):
                culprit = trials.culprit(program, rung, symptom, timeout_s=_CULPRIT_S)
            progress("script")
            short = _short_script(program, shown_on, shown_by, opinion)
    return {
        "program": program.to_json(),
        "source": render(program),
        "inputs": shown_inputs(program),
        "symptom": symptom.to_json(),
        "rung": rung.name,
        "culprit": culprit,
        "opinion": opinion,
        "script": _script(program, shown_on, shown_by, opinion, relation),
        "short_script": short,
        "verdict": verdict.to_json(),
        "reproduced": is_reproduced,
        "finished": is_finished,
        "trials": count,
        "seconds": time.monotonic() - started,
        "cpu_s": cpu_seconds() - cpu_before,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A reduced program with its verdict, and what it took."""

    program: FuzzProgram
    verdict: Verdict  # on the subject
    rung: SubjectSpec  # the first wrong rung
    trials: int
    is_finished: bool


def searched(
    program: FuzzProgram,
    subject: SubjectSpec,
    verdict: Verdict,
    trials: TrialProcess,
    *,
    deadline: float,
    progress: Progress,
) -> Searched:
    """Reduce a program whose verdict is a finding. Keeps the symptom; the first wrong rung is that of the reduced program."""
    program, verdict = _called_once(program, subject, verdict, trials)
    symptom, count, is_finished = symptom_of(verdict), 0, False
    progress("localise")
    rung, looked_at = first_wrong(program, subject, symptom, judge_on=trials.judge), None
    while rung != looked_at:  # a lower rung may have been too slow for the large program
        progress("reduce")
        program, verdict, more, is_finished = _reduced(program, subject, rung, verdict, trials, deadline)
        symptom, count, looked_at = symptom_of(verdict), count + more, rung
        rung = first_wrong(program, subject, symptom, judge_on=trials.judge)
    return Searched(program=program, verdict=verdict, rung=rung, trials=count, is_finished=is_finished)


def _script(program: FuzzProgram, rung: SubjectSpec, verdict: Verdict, opinion: str, relation: str) -> str:
    """A script that shows the finding on its first wrong rung and needs only torch; "" for subjects that torch does not have.

    `verdict` is that of the rung. For a broken relation between two programs the script has the related program.
    """
    notes = (opinion,) if opinion else ()
    if relation:
        found = relation_named(relation)
        related = found.relate(program) if found.road is Road.HERE else None
        if related is None or related.program is program:
            return ""
        program, notes = related.program, (f"related by: {relation}; right where the program is not changed so",)
    try:
        return repro_script(program, rung, verdict, notes=notes)
    except UsageError:
        return ""


def _short_script(program: FuzzProgram, rung: SubjectSpec, verdict: Verdict, opinion: str) -> str:
    """A script of a few lines, if running it shows the finding; else ""."""
    notes = (opinion,) if opinion else ()
    runs = functools.partial(exit_code, timeout_s=_SCRIPT_S)
    return verified(short_scripts(program, rung, verdict, notes=notes), runs)


def _called_once(
    program: FuzzProgram, subject: SubjectSpec, verdict: Verdict, trials: TrialProcess
) -> tuple[FuzzProgram, Verdict]:
    """If a later call also fails alone, guards are not involved: return the program with only that call."""
    if not verdict.call:  # none, or the first
        return program, verdict
    alone = replace(program, calls=(replace(program.calls[verdict.call], before=""),))
    seen = trials.judge(alone, subject)
    is_same = seen.status.is_finding and symptom_of(seen).kind == symptom_of(verdict).kind
    return (alone, seen) if is_same else (program, verdict)


def _reduced(
    program: FuzzProgram,
    subject: SubjectSpec,
    rung: SubjectSpec,
    verdict: Verdict,
    trials: TrialProcess,
    deadline: float,
) -> tuple[FuzzProgram, Verdict, int, bool]:
    """The reduced program, its verdict on the subject, the number of trials, and whether the search was finished.

    The search runs on the first wrong rung, which is cheaper.
    """
    symptom, hint = symptom_of(verdict), hint_of(verdict)
    count = 0
    for asked in (rung, subject) if rung != subject else (subject,):
        below = next(
            (low for low, high in zip(ladder_of(subject), ladder_of(subject)[1:], strict=False) if high == asked), None
        )

        def shows(candidate: FuzzProgram, asked: SubjectSpec = asked, below: SubjectSpec | None = below) -> bool:
            if not matches(symptom, symptom_of(trials.judge(candidate, asked))):
                return False
            return below is None or not matches(symptom, symptom_of(trials.judge(candidate, below)))

        left = max(0.0, deadline - time.monotonic())
        found = reduce_counted(program, shows, deadline=time.monotonic() + left * _SEARCH_SHARE, hint=hint)
        count += found.trials
        last = trials.judge(found.program, subject)
        if matches(symptom, symptom_of(last)):
            return found.program, last, count, found.is_finished
    return program, verdict, count, False


def hint_of(verdict: Verdict) -> Hint:
    """The hint that a verdict gives."""
    found = re.search(r"\boutput\[(?:(\d+)|'([^']*)')\]", verdict.symptom)
    in_output = verdict.status in (Status.FAIL_ACCURACY, Status.FAIL_STRIDE, Status.FAIL_METADATA, Status.FAIL_GRAD)
    return Hint(
        call=verdict.call,
        output=None if found is None else int(found[1]) if found[1] else found[2],
        needs_output=in_output or " output" in verdict.symptom,
    )
