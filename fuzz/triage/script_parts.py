"""The parts that every script for a report has: its first lines, the options that it sets, how it compiles, its tolerances."""

from __future__ import annotations

import math
import platform
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from oracle.configure import CONFIG_MODULES
from oracle.errors import UsageError
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Verdict

_WIDTH = 110
_PLAIN_LIMIT = 0.05  # torch.testing.assert_close finds larger errors in every dtype
_CALL = re.compile(r"^call \d+: ")
_NUMBER = re.compile(r"^(?P<is>.*? is .*?), but should be (?P<eager>.*?)(?: \(fp64 (?P<truth>[^)]*)\))?: error ")
_RAISES = re.compile(
    r"^outcome is (?P<type>[\w.]+) in (?P<phase>\w+) \((?P<message>.*)\), but should be a return$", re.DOTALL
)
_LONGEST = 3 * _WIDTH  # limit for the sentence that says what differs


def header(subject: SubjectSpec, verdict: Verdict, notes: Sequence[str]) -> str:
    """Comments: the verdict as it is, the versions, the notes."""
    lines = textwrap.wrap(f"{subject.name}: {verdict.status.value}: {verdict.symptom}", _WIDTH)
    return _comments([*lines, _versions()], notes)


def short_header(subject: SubjectSpec, verdict: Verdict, notes: Sequence[str]) -> str:
    """Comments: what differs in a sentence, the versions, the notes."""
    return _comments([*textwrap.wrap(f"{subject.name}: {what_differs(verdict)}", _WIDTH), _versions()], notes)


def what_differs(verdict: Verdict) -> str:
    """The compiler's and eager's value of an element, as text: "output[0] is 10, eager gives 9 (float64: 9.0)"."""
    worst, text = verdict.worst, _CALL.sub("", verdict.symptom)
    if worst is not None and worst.where and "sign of zero" not in text:
        index = f"[{', '.join(map(str, worst.index))}]" if worst.index else ""
        truth = f" (float64: {worst.truth})" if worst.truth is not None else ""
        return f"{_CALL.sub('', worst.where)}{index} is {worst.subject}, eager gives {worst.eager}{truth}"
    if ending := _RAISES.match(text):
        where = "" if ending["phase"] == "call" else f" in {ending['phase']}"
        text = f"raises {ending['type'].rpartition('.')[2]}{where}, eager returns: {ending['message'][1:-1]}"
    elif number := _NUMBER.match(text):
        truth = f" (float64: {number['truth']})" if number["truth"] else ""
        text = f"{number['is']}, eager gives {number['eager']}{truth}"
    return text if 0 < len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..." if text else verdict.status.value


def _versions() -> str:
    python = platform.python_version()
    return f"torch {torch.__version__}, Python {python}, {platform.system()} {platform.machine()}"


def _comments(lines: Sequence[str], notes: Sequence[str]) -> str:
    noted = [line for note in notes for line in textwrap.wrap(note, _WIDTH)]
    return "\n".join(f"# {line}" for line in (*lines, *noted))


def option_lines(config: Mapping[str, Any], subject: SubjectSpec) -> list[str]:
    """Imports of torch's configuration and of the user's backend, and the options that the program sets."""
    modules = sorted({m for m in CONFIG_MODULES for name in config if name.startswith(m + ".")})
    if subject.kind == "backend":
        modules.append(subject.path.partition(":")[0])
    return [f"import {module}" for module in modules] + [f"{name} = {value!r}" for name, value in config.items()]


def compile_keywords(dynamic: bool | None, subject: SubjectSpec) -> dict[str, Any]:
    """The keywords of torch.compile that a subject's options stand for, without its backend."""
    options = {key: value for key, value in subject.options.items() if key in ("dynamic", "fullgraph", "mode")}
    if dynamic is not None:
        options.setdefault("dynamic", dynamic)
    nested = {k.removeprefix("options."): v for k, v in subject.options.items() if k.startswith("options.")}
    if nested:
        options["options"] = nested
    return options


def compile_call(target: str, dynamic: bool | None, subject: SubjectSpec) -> str:
    """The call of torch.compile as an expression. Raises UsageError for a subject that is no torch.compile."""
    options = compile_keywords(dynamic, subject)
    match subject.kind:
        case "torch_compile":
            options = {"backend": subject.options.get("backend", "inductor"), **options}
            return f"torch.compile({target}, {', '.join(f'{key}={value!r}' for key, value in options.items())})"
        case "backend":
            keywords = "".join(f", {key}={value!r}" for key, value in options.items())
            return f"torch.compile({target}, backend={subject.path.replace(':', '.')}{keywords})"
        case _:
            raise UsageError(
                seen=f"a script for subject {subject.name!r}",
                expected="torch.compile with one of its backends, or a backend by path",
                do="ask for the first wrong rung",
            )


def tolerances(verdict: Verdict) -> dict[str, float]:
    """torch's tolerances; if the wrong element is within them, tighter ones from the error that the judge allows."""
    worst = verdict.worst
    if worst is None or worst.allowed_error is None:
        return {}
    try:
        eager, subject = float(worst.eager), float(worst.subject)
    except ValueError:  # a complex number
        return {}
    seen = abs(subject - eager)
    if not math.isfinite(seen) or seen > _PLAIN_LIMIT * max(1.0, abs(eager)):
        return {}
    limit = min(worst.allowed_error, seen) / 2
    return {"rtol": float(f"{limit / abs(eager):.3g}") if eager else 0.0, "atol": float(f"{limit:.3g}")}
