"""Writes a finding as a script that needs only torch: it makes the inputs, runs eager and compiled, and prints what differs.

This is the long form, for any program and any call plan; `fuzz.triage.short_script` writes a few lines where these suffice. The
script exits with 1 while the bug exists and with 0 when both agree.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from fuzz.draw.inputs.source import input_source
from fuzz.program.render import render
from fuzz.program.structure import FuzzProgram
from fuzz.triage.long_texts import AS_A_CALLER, COMPARE, EXPORTED, MAIN, MAIN_DEADLY, RUN, TEXT_INPUTS
from fuzz.triage.script_parts import compile_call, header, option_lines, tolerances
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

_EXPLICIT = 512  # storages up to this size are written out; for larger ones the script draws the elements
_ARGUMENTS = ("argument", "derived argument")  # as the caller made them, and as `derive` passes them to the program
# The comparisons that show the bug, by status.
_ASPECTS: Mapping[Status, tuple[str, ...]] = {
    Status.FAIL_ACCURACY: ("value of output",),
    Status.FAIL_MUTATION: tuple(
        f"{aspect} of {argument}" for argument in _ARGUMENTS for aspect in ("value", "layout", "flags")
    ),
    Status.FAIL_GRAD: ("gradient",),
    Status.FAIL_METADATA: ("kind of output", "flags of output"),
    Status.FAIL_STRIDE: ("layout of output",),
    Status.FAIL_ALIAS: ("aliases", "layout of output"),
    Status.FAIL_STATE: ("value of state", *(f"value of {argument}" for argument in _ARGUMENTS)),
    Status.FAIL_RNG: ("generator",),
    Status.FAIL_EXCEPTION: ("exception",),
    Status.FAIL_TO_RUN: ("exception",),
}
DEADLY = (Status.CRASH, Status.TIMEOUT, Status.OOM)  # the compiled program ends in a process of its own
ALL_ASPECTS = ("value", "layout", "flags", "kind", "gradient", "aliases", "generator", "exception")


def repro_script(program: FuzzProgram, subject: SubjectSpec, verdict: Verdict, *, notes: Sequence[str] = ()) -> str:
    """The script's text; `notes` are lines at its top. Raises UsageError for a subject that torch does not have."""
    is_deadly = verdict.status in DEADLY
    inputs = [_inputs(program, number) for number in range(len(program.calls))]
    parts = [
        header(subject, verdict, notes),
        _standard_imports(inputs),
        "\n".join(option_lines(program.config, subject)),
        _source(program),
        *inputs,
        _plan(program),
        _compile(program, subject),
        RUN.replace("SEED", str(program.seed)),
        _comparison(verdict),
        MAIN_DEADLY if is_deadly else MAIN,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip()).replace("\n\n\n\n", "\n\n\n")


def text_script(
    program: Program,
    subject: SubjectSpec,
    verdict: Verdict,
    *,
    notes: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
) -> str:
    """The script for a program whose source makes its own inputs (`inputs(call)`), such as that of a known issue.

    With PASS as the verdict's status it compares every aspect. `limits` are tolerances of torch.testing.assert_close for
    floats, instead of those that follow from the verdict.

    Raises UsageError for a subject that torch does not have, and for a program whose calls have input specs (see
    `fuzz.triage.inputs_in_source`).
    """
    is_deadly = verdict.status in DEADLY
    if any(call.args is not None or call.kwargs is not None for call in program.calls):
        raise UsageError(
            seen=f"program {program.name!r}, whose calls carry input specs",
            expected="a program whose source makes its inputs",
            do="for a finding of a campaign, use the script beside it (`torch-oracle fuzz --corpus DIR`)",
        )
    source = program.source.strip("\n").replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    plan = _plan_text(program.calls, program.is_module, derives="def derive(" in program.source)
    inputs = "".join(TEXT_INPUTS.replace("NUMBER", str(number)) for number in range(len(program.calls)))
    parts = [
        header(subject, verdict, notes),
        "import random\nimport subprocess\nimport sys\n\nimport torch\n",
        "\n".join(option_lines(program.config, subject)),
        f"\nSOURCE = '''\n{source}\n'''\n",
        AS_A_CALLER,
        inputs.replace("SEED", str(program.seed)),
        plan,
        EXPORTED.replace("STRICT", str(subject.options.get("strict", True)))
        if subject.kind == "export"
        else _compile(program, subject),
        RUN.replace("SEED", str(program.seed)).replace(
            "    return names, names", "    NAMES.update(program=names)\n    return names, names"
        ),
        _comparison(verdict, limits),
        MAIN_DEADLY if is_deadly else MAIN,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip()).replace("\n\n\n\n", "\n\n\n")


def _standard_imports(inputs: Sequence[str]) -> str:
    needs_bytes = any("zlib.decompress" in text for text in inputs)
    modules = ["random", "subprocess", "sys", *(["base64", "zlib"] if needs_bytes else [])]
    return "".join(f"import {module}\n" for module in sorted(modules)) + "\nimport torch\n"


def aspects(status: Status) -> tuple[str, ...]:
    """How the output of a script begins, after "call 0: ", if it shows a bug of this status."""
    return _ASPECTS.get(status, ALL_ASPECTS)


def _comparison(verdict: Verdict, limits: Mapping[str, float] | None = None) -> str:
    texts = {
        "ASPECTS": repr(aspects(verdict.status)),
        "SIGNS": str("sign of zero" in verdict.symptom),
        "TOLERANCES": repr(tolerances(verdict) if limits is None else dict(limits)),
    }
    found = COMPARE
    for name, text in texts.items():
        found = found.replace(name, text)
    return found


def _source(program: FuzzProgram) -> str:
    """The program at module level; or as text that each run executes again, if the call plan changes globals or attributes."""
    source = render(program).replace("import torch\n", "", 1).strip("\n")
    if _is_plain(program):
        return f"\n{source}\n"
    return f"\nSOURCE = '''\nimport torch\n\n{source}\n'''\n"


def _is_plain(program: FuzzProgram) -> bool:
    return not program.definitions and not any(call.before for call in program.calls)


# --------------------------------------------------------------------------------------------------------------- inputs


def _inputs(program: FuzzProgram, number: int) -> str:
    made = input_source(program, number, explicit=_EXPLICIT)
    keywords = ", ".join(f"{name!r}: {text}" for name, text in made.kwargs)
    body = [*made.lines, f"return [{', '.join(made.args)}], {{{keywords}}}"]
    return f"\ndef inputs_{number}():\n" + textwrap.indent("\n".join(body), "    ") + "\n"


# ----------------------------------------------------------------------------------------------------------- plan and run


def _plan(program: FuzzProgram) -> str:
    return _plan_text(program.calls, program.is_module, derives=bool(program.derive))


def _plan_text(calls: Sequence[Call], is_module: bool, *, derives: bool) -> str:
    rows = []
    for number, call in enumerate(calls):
        said = {
            "before": call.before,
            "backward": call.backward,
            "grad_mode": call.grad_mode,
            "training": call.training,
        }
        defaults = Call()
        fields = {key: value for key, value in said.items() if value != getattr(defaults, key)}
        rows.append(f"    (inputs_{number}, {fields!r}),")
    return "\nCALLS = [\n" + "\n".join(rows) + "\n]\n" + f"IS_MODULE = {is_module}\nDERIVES = {derives}\n"


def _compile(program: FuzzProgram | Program, subject: SubjectSpec) -> str:
    return f"\ndef compiled(target):\n    return {compile_call('target', program.dynamic, subject)}\n"
