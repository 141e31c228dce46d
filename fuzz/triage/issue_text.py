"""Writes a finding as the text of a PyTorch issue, in Markdown: what happens, the script, the numbers, ablation, versions.

In the body, text of programs and messages stands in code spans and fences only: nothing in it is formatted or notifies anybody.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Protocol

from torch.utils.collect_env import get_pretty_env_info

from fuzz.program.render import render_shown
from fuzz.program.structure import FuzzProgram
from fuzz.triage.bucket import operators_of
from fuzz.triage.script_parts import compile_call, what_differs
from oracle.errors import UsageError
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict, WorstElement

_LONG_SCRIPT = 60  # a longer script is folded, and the program is shown before it
_TITLE_OPERATORS = 3
_TITLE_WIDTH = 120
_CALL = re.compile(r"^call \d+: ")
# Lines of torch.utils.collect_env that say what is not there, and the CPU's flags and vulnerabilities, which fill a page.
_UNINFORMATIVE = re.compile(
    r"(?:: +|\] )(?:N/A|Could not collect|No)\s*$|^(?:Vulnerability|Flags|L\d\w* cache|NUMA)|^Is XNNPACK"
)


class AlikeIssue(Protocol):
    """A known issue that may be the same bug (`oracle.known.ledger.KnownIssue`)."""

    @property
    def id(self) -> str: ...
    @property
    def link(self) -> str: ...
    @property
    def title(self) -> str: ...


def issue_text(
    *,
    title: str = "",
    script: str,
    verdict: Verdict,
    subject: SubjectSpec,
    program: Program | FuzzProgram,
    located: Sequence[tuple[str, str]] = (),
    backends: Sequence[tuple[str, str]] = (),
    ablation: Sequence[tuple[str, str]] = (),
    reliability: tuple[int, int] | None = None,
    alike: Sequence[AlikeIssue] = (),
    environment: str,
) -> str:
    """The issue: its title as plain text in the first line, an empty line, and its body.

    `located`: (what is named, its place), such as a line of the program. `backends`: (backend, result with it). `ablation`:
    (change of the compiler, result with it). `reliability`: how many of how many runs showed it. `environment`: as
    `environment_text` returns it. An empty `title` is made from the verdict.
    """
    parts = [
        " ".join((title or title_of(verdict, subject, program)).split()),
        "### 🐛 Describe the bug",
        _description(verdict, subject, program, reliability),
        *_reproduction(script, program),
        *_numbers(verdict.worst),
        *_errors(verdict),
        *_located(located),
        *_table("Backends", "backend", backends),
        *_table("Ablation", "change of the compiler", ablation),
        *_alike(alike),
        "### Versions",
        f"<details>\n<summary>{_html(_first_line(environment))}</summary>\n\n{fenced(environment, '')}\n\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def title_of(verdict: Verdict, subject: SubjectSpec, program: Program | FuzzProgram, *, operator: str = "") -> str:
    """A title: "[inductor] floor_divide: output is 10, eager gives 9".

    It names `operator`, or the operators of the program if they are few.
    """
    operators = (operator,) if operator else operators_of(program) if isinstance(program, FuzzProgram) else ()
    named = f"{', '.join(operators)}: " if 0 < len(operators) <= _TITLE_OPERATORS else ""
    text = " ".join(f"[{subject.name}] {named}{what_differs(verdict)}".split())
    return text if len(text) <= _TITLE_WIDTH else text[: _TITLE_WIDTH - 4] + " ..."


def environment_text() -> str:
    """The text of torch.utils.collect_env, without lines about missing software. Takes seconds: it starts programs."""
    lines = [line for line in get_pretty_env_info().splitlines() if not _UNINFORMATIVE.search(line)]
    return re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()


def fenced(text: str, language: str = "python") -> str:
    """A block of code. Its fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def in_code(text: str) -> str:
    """Text in a code span, in one line."""
    line = " ".join(text.split())
    fence = "`" * (1 + _longest_run(line))
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}" if line else ""


def in_cell(text: str) -> str:
    """Text in a code span of a table's cell, where a bar would end the cell."""
    return in_code(text).replace("|", "\\|")


def _longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ---------------------------------------------------------------------------------------------------------------- sections


def _description(
    verdict: Verdict, subject: SubjectSpec, program: Program | FuzzProgram, reliability: tuple[int, int] | None
) -> str:
    try:
        compiled = compile_call("program", program.dynamic, subject)
    except UsageError:  # not a torch.compile
        compiled = subject.name
    options = "".join(f"\n- with {in_code(f'{name} = {value!r}')}" for name, value in program.config.items())
    said = f"With {in_code(compiled)}: {in_code(what_differs(verdict))}.{options}"
    if reliability is None:
        return said
    shown, runs = reliability
    return f"{said}\n\nIt shows in {shown} of {runs} runs, each in a new process."


def _reproduction(script: str, program: Program | FuzzProgram) -> list[str]:
    shown = render_shown(program) if isinstance(program, FuzzProgram) else program.source
    if not script:
        return [fenced(shown)]
    exits = f"It needs only {_needs(script)}, and exits with 1 while the bug is there."
    if len(script.splitlines()) <= _LONG_SCRIPT:
        return [f"{exits.replace('It', 'The script', 1)}", fenced(script)]
    return [fenced(shown), f"<details>\n<summary>A script. {exits}</summary>\n\n{fenced(script)}\n\n</details>"]


def _needs(script: str) -> str:
    """The packages that a script imports, torch first: "torch and my_backend"."""
    imported = re.findall(r"^(?:import|from) (\w+)", script, re.MULTILINE)
    others = [name for name in dict.fromkeys(imported) if name != "torch" and name not in sys.stdlib_module_names]
    return " and ".join(["torch", *others])


def _numbers(worst: WorstElement | None) -> list[str]:
    """The worst element by eager, by the compiler and in float64, with both errors."""
    if worst is None or not worst.where:
        return []
    index = f"[{', '.join(map(str, worst.index))}]" if worst.index else ""
    rows = [("eager", worst.eager, worst.eager_error), ("compiled", worst.subject, worst.subject_error)]
    if worst.truth is not None:
        rows.append(("eager in float64", worst.truth, None))
    has_errors = worst.truth is not None and worst.eager_error is not None
    head = [f"| {in_cell(_CALL.sub('', worst.where) + index)} | value |", "| --- | --- |"]
    if has_errors:
        head = [f"{head[0]} error |", "| --- | --- | --- |"]
    lines = [
        f"| {name} | {in_cell(value)} |" + (f" {'' if error is None else f'{error:.3g}'} |" if has_errors else "")
        for name, value, error in rows
    ]
    beside = []
    if worst.allowed_error is not None:
        beside.append(f"Rounding explains an error of up to {worst.allowed_error:.3g}.")
    if worst.ulp is not None:
        beside.append(f"The two differ by {worst.ulp:.3g} units in the last place.")
    return ["\n".join([*head, *lines]), *([" ".join(beside)] if beside else [])]


def _errors(verdict: Verdict) -> list[str]:
    """The message, for a program that does not run."""
    if verdict.status not in (Status.FAIL_TO_RUN, Status.FAIL_EXCEPTION, Status.CRASH, Status.TIMEOUT, Status.OOM):
        return []
    return ["### Error logs", fenced(_CALL.sub("", verdict.symptom), "")]


def _located(rows: Sequence[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    return ["### Where it goes wrong", "\n".join(f"- {name}: {in_code(place)}" for name, place in rows)]


def _table(title: str, header: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    lines = [
        f"| {header} | result |",
        "| --- | --- |",
        *(f"| {in_cell(name)} | {in_cell(seen)} |" for name, seen in rows),
    ]
    return [f"### {title}", "\n".join(lines)]


def _alike(issues: Sequence[AlikeIssue]) -> list[str]:
    if not issues:
        return []
    rows = [
        f"- {f'{issue.link} ' if issue.link else ''}({in_code(issue.id)}): {in_code(issue.title.replace('`', ''))}"
        for issue in issues
    ]
    return ["### Reports that may be of the same bug", "\n".join(rows)]


def _first_line(environment: str) -> str:
    lines = [line.strip() for line in environment.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("PyTorch version")), lines[0] if lines else "versions")
