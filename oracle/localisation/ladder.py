"""The ladder: finds the first wrong rung, which is the earliest stage of a compiler that shows a difference.

Counterpart: torch/_dynamo/repro/after_dynamo.py, after_aot.py (which compiler failed)
Differs: each stage is a subject of its own, with the same judge and for the same symptom; silent differences count.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status, Verdict

LADDER = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")
EXPORTERS = ("export", "refimpl.export")
STAGES = ("decomposed", "through")  # options that transform an exported program, in the order of their application
SECOND = ("refimpl.aot", "refimpl.partitioned")  # refimpl's AOT autograd, between capture and kernels
SHARED_OPTIONS = ("dynamic", "fullgraph")  # options of a subject that also apply to the rungs below it
AGREES = "agrees with eager"  # a strong sign of a bug in torch, or in the backend
_DIFFERS = "differs too: look at eager or the judge first"

Judge = Callable[[SubjectSpec], Verdict]  # judges the program in question on a subject


def ladder_of(subject: SubjectSpec) -> tuple[SubjectSpec, ...]:
    """The rungs below a subject, cheapest first, and the subject itself; only the subject if it is not on the ladder.

    Below an exported program with transformations are those with fewer of them.
    """
    if subject.kind in EXPORTERS:
        stages = [stage for stage in STAGES if subject.options.get(stage, "no") != "no"]
        return (*(_without_stages(subject, stages[number:]) for number in range(len(stages))), subject)
    if subject.kind == "torch_compile":
        names = LADDER[: subject.rung - 1] if subject.rung is not None else ()
    elif subject.kind == "backend":
        names = LADDER[:2]  # a backend compiles the graphs of capture, or of AOT autograd if it uses that
    else:
        names = ()
    return (*(_with_options(resolve(name), subject) for name in names), subject)


def _without_stages(subject: SubjectSpec, stages: list[str]) -> SubjectSpec:
    kept = {key: value for key, value in subject.options.items() if key not in stages}
    written = ",".join(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in kept.items())
    return replace(subject, name=f"{subject.kind}[{written}]" if kept else subject.kind, options=kept)


def _with_options(rung: SubjectSpec, subject: SubjectSpec) -> SubjectSpec:
    shared = {key: value for key, value in subject.options.items() if key in SHARED_OPTIONS}
    return replace(rung, options={**rung.options, **shared})


def first_wrong(subject: SubjectSpec, symptom: Symptom, judge: Judge) -> SubjectSpec:
    """The lowest rung that shows the symptom; the subject itself if no lower one does."""
    for rung in ladder_of(subject)[:-1]:
        if matches(symptom, symptom_of(judge(rung))):
            return rung
    return subject


def second_opinion(rung: SubjectSpec, symptom: Symptom, judge: Judge, *, changes_between_calls: bool = False) -> str:
    """The behaviour of refimpl on a program that is first wrong on `rung`, in words such as "refimpl agrees with eager".

    "" for bugs of capture, and for subjects other than torch.compile's. `changes_between_calls`: the call plan changes more than
    the arguments, such as globals.
    """
    is_past_capture = rung.kind == "backend" or (rung.kind == "torch_compile" and (rung.rung or 0) > 1)
    if not is_past_capture:
        return ""
    if symptom.status == Status.FAIL_GUARD.value and changes_between_calls:
        return "refimpl cannot say: it guards its arguments only"
    dynamic = rung.options.get("dynamic")
    options = {"dynamic": dynamic} if isinstance(dynamic, bool) else {}
    said = {}
    for name in SECOND:
        spec = resolve(name)
        said[name] = _opinion(judge(replace(spec, options={**spec.options, **options})), symptom)
    if len(set(said.values())) == 1:
        return f"refimpl {next(iter(said.values()))}"
    return "; ".join(f"{name} {text}" for name, text in said.items())


def _opinion(verdict: Verdict, symptom: Symptom) -> str:
    if verdict.status is Status.PASS:
        return AGREES
    seen = symptom_of(verdict)
    if matches(symptom, seen):
        return _DIFFERS
    if verdict.status.is_silent:
        return f"differs in another way ({seen.status}: {seen.kind}): look at eager or the judge first"
    return f"cannot say: {seen.status}"
