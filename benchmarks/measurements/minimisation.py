"""Measures minimising on known issues of the ledger: the size before and after, and what it took.

    python -m benchmarks.measurements.minimisation [--count 30] [--inflated 10] [--seed 0] [--budget 60] [--only TEXT]

The issues are drawn at random, as many of each rung as their share allows. Many of their programs are minimal already. So some of
them are minimised once more after ten statements before their own and ten behind them were added, which compute on other values
and return the last one; the column `reached` says whether the result is as small as that of the program without them. `cpu_s` is
the processor time of all processes, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.measurements.frame import options_of, shown
from benchmarks.measurements.localisation import drawn
from fuzz.reduce.minimise import Minimised, minimise
from fuzz.reduce.trials import TrialProcess
from oracle.errors import TorchOracleError
from oracle.known.ledger import KnownIssue, load_ledger
from oracle.localisation.culprit import cpu_seconds
from oracle.localisation.ladder import LADDER
from oracle.program import Program
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import matches, symptom_of
from oracle.verdict import Verdict

_ADDED = 10  # statements on each side
# The operators of the added statements, in turn. Their values stay finite.
_ARITHMETIC = (
    "{0} * 0.5 + 1.0",
    "{0}.sin()",
    "{0} - {0}.mean()",
    "torch.relu({0} + 0.25)",
    "{0}.reshape(3, 2).t().reshape(6)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result on one program."""

    issue: str
    rung: str  # of the ledger
    inflated: bool  # statements were added
    status: str  # of the program on the subject; a word of oracle/verdict.py
    how: (
        str  # "source" or "captured": the form that was reduced; "statements" of the source itself; "": nothing smaller
    )
    before: int  # statements, with those of definitions
    after: int
    reached: str  # with `inflated`: whether `after` is that of the program without the added statements
    trials: int  # programs that were judged
    finished: bool  # nothing can be reduced further; else out of time, or no form shows the symptom
    cpu_s: float
    wall_s: float
    reasons: str  # why forms were left out, the first line of each


def inflated(program: Program) -> Program | None:
    """The program with statements that compute on other values; None if its source is no function with one return at its end."""
    tree = ast.parse(program.source)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "program"]
    returns = [node for function in found for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(found) != 1 or found[0].decorator_list or returns != found[0].body[-1:]:
        return None
    function, result = found[0], returns[0].value
    items = result.elts if isinstance(result, ast.Tuple) else [] if result is None else [result]
    lines = ["more_0 = torch.arange(6, dtype=torch.float32) * 0.125"]
    for number in range(1, 2 * _ADDED):
        lines.append(f"more_{number} = {_ARITHMETIC[number % len(_ARITHMETIC)].format(f'more_{number - 1}')}")
    added = ast.parse("\n".join(lines)).body
    last = ast.Name(f"more_{2 * _ADDED - 1}", ast.Load())
    returned = ast.Return(ast.Tuple([*items, last], ast.Load()) if items else last)
    function.body = [*added[:_ADDED], *function.body[:-1], *added[_ADDED:], returned]
    source = ast.unparse(ast.fix_missing_locations(tree))
    return replace(program, source=source if "import torch\n" in source else f"import torch\n{source}")


def judged(program: Program, subject: SubjectSpec) -> Verdict:
    """The verdict on a program, in a process of its own."""
    with TrialProcess() as trials:
        return trials.judge_source(program, subject)


def measured(
    issue: KnownIssue,
    program: Program,
    subject: SubjectSpec,
    verdict: Verdict,
    *,
    smallest: int | None,
    budget_s: float,
) -> Row:
    """One program, minimised. `smallest` is the size that an inflated one should reach."""
    started, cpu = time.monotonic(), cpu_seconds()
    found: Minimised | None = None
    if verdict.status.is_finding:
        found = minimise(program, subject, verdict=verdict, budget_s=budget_s)
    wall_s, cpu_s = time.monotonic() - started, cpu_seconds() - cpu
    is_reached = found is not None and smallest is not None and found.after.statements <= smallest
    return Row(
        issue=issue.id,
        rung=issue.subject,
        inflated=smallest is not None,
        status=verdict.status.value,
        how="" if found is None else found.how,
        before=0 if found is None else found.before.statements,
        after=0 if found is None else found.after.statements,
        reached="" if smallest is None else "yes" if is_reached else "no",
        trials=0 if found is None else found.trials,
        finished=found is not None and found.is_finished,
        cpu_s=round(cpu_s, 1),
        wall_s=round(wall_s, 1),
        reasons="" if found is None else "; ".join(reason.splitlines()[0] for reason in found.reasons),
    )


def shown_on(issue: KnownIssue) -> tuple[SubjectSpec, Verdict]:
    """The verdict on the highest rung of the issue's ladder, as a user would name it; on the issue's own rung if that agrees."""
    own = resolve(issue.subject)
    subject = resolve("inductor") if issue.subject in LADDER else own
    verdict = judged(issue.program, subject)
    if not verdict.status.is_finding and subject != own:
        return own, judged(issue.program, own)
    return subject, verdict


def rows(issues: Sequence[KnownIssue], *, more: int, budget_s: float) -> Iterator[Row]:
    """A row for each issue, then one for each of `more` inflated ones: of each pair of rung and status one, then another."""
    plain: list[tuple[KnownIssue, SubjectSpec, Verdict, Row]] = []
    for issue in issues:
        try:
            subject, verdict = shown_on(issue)
            row = measured(issue, issue.program, subject, verdict, smallest=None, budget_s=budget_s)
        except TorchOracleError as error:
            sys.stderr.write(f"{issue.id}: {error}\n")
            continue
        yield row
        plain.append((issue, subject, verdict, row))
    seen: dict[tuple[str, str], int] = {}
    order = []
    for case in plain:
        kind = (case[-1].rung, case[-1].status)
        seen[kind] = seen.get(kind, 0) + 1
        order.append((seen[kind], len(order), case))
    for _, _, (issue, subject, verdict, row) in sorted(order, key=lambda entry: entry[:2]):
        larger = inflated(issue.program) if more and verdict.status.is_finding else None
        if larger is None:
            continue
        shown_by = judged(larger, subject)
        if not matches(symptom_of(verdict), symptom_of(shown_by)):
            continue  # what was added hides the difference
        more -= 1
        yield measured(issue, larger, subject, shown_by, smallest=row.after, budget_s=budget_s)


def main() -> None:
    """Measure, print a line for each program, and write the table."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--inflated", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each program")
    asked = parser.parse_args()
    issues = [issue for issue in load_ledger().issues if asked.only in issue.id]
    shown(rows(drawn(issues, asked.count, asked.seed), more=asked.inflated, budget_s=asked.budget), asked.csv)


if __name__ == "__main__":
    main()
