"""The short form of a script for a report: the program, its inputs, one call by eager and one by the compiler, a comparison.

It is for symptoms of one call, which may follow calls that compiled something else before. There are several forms, from the
shortest to the most careful. `shortest_script` takes the first one that shows the bug when it is run: it must exit with 1, and
with 0 if eager takes the compiler's place. If there is none, it takes the long form (`fuzz.triage.repro`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fuzz.program.structure import FuzzProgram
from fuzz.triage.repro import repro_script, text_script
from fuzz.triage.script_parts import compile_call, option_lines, short_header, tolerances
from fuzz.triage.short_body import Style, body_lines
from fuzz.triage.symptom_place import Kind, Place, place_of
from fuzz.triage.written import WrittenProgram, written
from oracle.errors import UsageError
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

_MOST_RUNS = 3  # of forms that compile, for one finding

Runs = Callable[[str], int]  # runs a script and returns its exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortScript:
    """A script, and two others that show that it is about the symptom."""

    text: str
    trial: str  # must exit with 1; an exception that is not the symptom ends it with 2
    control: str  # eager is in the compiler's place: must exit with 0


def shortest_script(
    program: FuzzProgram | Program, subject: SubjectSpec, verdict: Verdict, *, notes: Sequence[str] = (), runs: Runs
) -> str:
    """The first short form that `runs` shows to work, else the long form. Raises UsageError for a subject torch does not have."""
    found = verified(short_scripts(program, subject, verdict, notes=notes), runs)
    if found:
        return found
    if isinstance(program, FuzzProgram):
        return repro_script(program, subject, verdict, notes=notes)
    return text_script(program, subject, verdict, notes=notes)


def verified(scripts: Sequence[ShortScript], runs: Runs) -> str:
    """The text of the first script whose trial and control end as they must; "" if there is none among the first few."""
    left = _MOST_RUNS
    for script in scripts:
        if left and runs(script.control) == 0:
            left -= 1
            if runs(script.trial) == 1:
                return script.text
    return ""


def short_scripts(
    program: FuzzProgram | Program, subject: SubjectSpec, verdict: Verdict, *, notes: Sequence[str] = ()
) -> list[ShortScript]:
    """The short forms, shortest first; none if the symptom, the call plan or the subject needs the long form."""
    place = place_of(verdict)
    if place is None or not _is_short(program, place):
        return []
    try:
        compile_call("program", program.dynamic, subject)
        text = written(program)
    except UsageError:  # the subject is no torch.compile, or an input has no text
        return []
    is_warm = verdict.status is Status.FAIL_GUARD
    found: dict[str, ShortScript] = {}
    for style in _styles(place, text):
        made = _script(text, subject, verdict, place, style, notes, is_warm=is_warm)
        found.setdefault(made.text, made)
    return list(found.values())


def _is_short(program: FuzzProgram | Program, place: Place) -> bool:
    calls = program.calls[: place.call + 1]
    return len(calls) == place.call + 1 and all(
        call.values == "given" and not call.double_backward and not call.outside for call in calls
    )


def _styles(place: Place, text: WrittenProgram) -> Iterator[Style]:
    """The forms of a script, from the shortest to the most careful one."""
    if place.in_backward:
        choices = ((False, True), (True, True), (True, False))  # (is_uneven, is_named)
    else:
        choices = ((False, False), (False, True)) if place.kind is Kind.OUTPUT else ((False, True), (False, False))
    for is_seeded in (True,) if place.kind is Kind.GENERATOR else (False, True):
        for is_fresh in (False, True):
            if not is_fresh and (is_seeded or not _fits_module_level(place, text)):
                continue
            for is_uneven, is_named in choices:
                yield Style(is_fresh=is_fresh, is_seeded=is_seeded, is_uneven=is_uneven, is_named=is_named)


def _fits_module_level(place: Place, text: WrittenProgram) -> bool:
    plan = text.calls[place.call].plan
    is_simple = place.kind in (Kind.OUTPUT, Kind.RETURNS) and not place.in_backward
    return is_simple and not text.derives and plan.grad_mode == "grad"


def _script(
    text: WrittenProgram,
    subject: SubjectSpec,
    verdict: Verdict,
    place: Place,
    style: Style,
    notes: Sequence[str],
    *,
    is_warm: bool,
) -> ShortScript:
    # compilers that draw their own random numbers draw eager's with this option
    config = {**text.config, **(subject.eager_stream if style.is_seeded else {})}

    def compiled(target: str) -> str:
        call = compile_call(target, text.dynamic, subject)
        return call if '"' in call else call.replace("'", '"')

    def assembled(compiling: Callable[[str], str], *, is_trial: bool = False) -> str:
        limits = tolerances(verdict)
        body = body_lines(text, place, style, limits, compiling, is_warm=is_warm, is_trial=is_trial)
        bytes_ = ["import base64", "import zlib"] if "zlib.decompress" in "\n".join(body) else []
        head = [short_header(subject, verdict, notes), *bytes_, "import torch", *text.imports]
        parts = ["\n".join([*head, *option_lines(config, subject)]), text.source, "\n".join(body)]
        return "\n\n".join(part for part in parts if part) + "\n"

    return ShortScript(
        text=assembled(compiled), trial=assembled(compiled, is_trial=True), control=assembled(lambda target: target)
    )
