"""Known bugs that a program may touch, and in which versions of torch they were measured.

An entry of the ledger is named for one of these reasons, the surest first:

1. the program is the entry's own program;
2. the program raises the entry's message;
3. all operators of the entry's pattern are in the captured graphs, and its other conditions hold too: lines of the source,
   arguments, memory that arguments share. A line that many programs have does not count;
4. the operators alone. Most programs with these operators do not show the bug.

Within a reason, an entry comes first that shows as the program itself does (wrong values, other strides). Then operators count
that few programs of the ledger have: `add` says little, `grid_sample` much.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from fuzz.triage.bucket import operators_in_text, spelled
from oracle.known.ledger import FindingPattern, KnownIssue, Ledger, line_condition, load_ledger
from oracle.known.matching import reaches
from oracle.known.seen import minor_of
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import symptom_of
from oracle.verdict import Verdict

_NEITHER = "in neither"
_COMMON = 0.2  # share of the ledger's programs
# Names of ast's classes that are not those of Python's module `operator`.
_IN_OPERATOR = {
    "mult": "mul", "matmult": "matmul", "div": "truediv", "bitand": "and", "bitor": "or", "bitxor": "xor", "usub": "neg",
    "noteq": "ne", "lte": "le", "gte": "ge",
}  # fmt: skip


class Reason(IntEnum):
    """Why an entry is named, the surest first."""

    PROGRAM = 0
    MESSAGE = 1
    CONDITIONS = 2
    OPERATORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """An entry of the ledger that the program may touch."""

    issue: KnownIssue
    reason: Reason
    why: str  # "its operators: dropout; its line *p=0.0*"
    standing: str  # "in both", "fixed in 2.13", "new in 2.13", "in 2.13; not measured with 2.12"
    weight: float  # of its operators: the rarer, the larger

    def to_json(self) -> dict[str, Any]:
        found = {"id": self.issue.id, "title": self.issue.title, "severity": self.issue.severity.value}
        return {**found, "link": self.issue.link, "why": self.why, "versions": self.standing}


def touched_bugs(
    ledger: Ledger,
    program: Program,
    spec: SubjectSpec,
    *,
    operators: Collection[str],
    verdicts: tuple[Verdict | None, Verdict | None],
    versions: tuple[str, str],
) -> list[Touched]:
    """The entries that the program may touch, the surest first, then those that show as the program does, then by operators.

    `operators` are those of the captured graphs, in the spelling of `fuzz.triage.bucket`. `verdicts` are those on the compiled
    program by the old and by the new version; None where there is none.
    """
    found: list[Touched] = []
    for issue in ledger.issues:
        match = _match(issue, program, spec, frozenset(operators), [verdict for verdict in verdicts if verdict])
        standing = _standing(ledger, issue, *map(minor_of, versions))
        if match is not None and match[0] is Reason.PROGRAM and None not in verdicts:
            was_shown, is_shown = (verdict is not None and verdict.status.is_finding for verdict in verdicts)
            standing = f"{_change(was_shown, is_shown, minor_of(versions[1]))}: seen here"
        if match is not None and standing != _NEITHER:
            reason, why, weight = match
            found.append(Touched(issue=issue, reason=reason, why=why, standing=standing, weight=weight))
    seen = {verdict.status.value for verdict in verdicts if verdict is not None}

    def order(each: Touched) -> tuple[int, bool, float, int, str]:
        issue = each.issue
        return each.reason, seen.isdisjoint(issue.statuses), -each.weight, issue.severity.rank, issue.id

    return sorted(found, key=order)


def _match(
    issue: KnownIssue,
    program: Program,
    spec: SubjectSpec,
    operators: frozenset[str],
    verdicts: Sequence[Verdict],
) -> tuple[Reason, str, float] | None:
    if issue.program.source.strip() == program.source.strip():
        return Reason.PROGRAM, "this is its program", 0.0
    if not (issue.of_eager or reaches(issue, spec)):
        return None
    for verdict in verdicts:
        if issue.refuses_with(verdict.status, symptom_of(verdict).kind):
            return Reason.MESSAGE, "the program raises its error", 0.0
    pattern = issue.finding
    if pattern is None or not set(issue.program.config) <= set(program.config):
        return None
    named = _named_operators(pattern, operators)
    if not named:
        return None
    held = _conditions(pattern, program)
    if held is None:
        return None
    why = "; ".join([f"operators {', '.join(sorted(named))}", *held])
    common = {line_condition(glob) for glob in pattern.lines if _is_common(glob)}
    return Reason.OPERATORS if common.issuperset(held) else Reason.CONDITIONS, why, sum(map(_rarity, named))


def _named_operators(pattern: FindingPattern, operators: frozenset[str]) -> frozenset[str]:
    """The pattern's operators if the program has them all, and one of those of which it wants one; else none."""
    one_of = operators.intersection(pattern.one_of)
    if not operators.issuperset(pattern.operators) or (pattern.one_of and not one_of):
        return frozenset()
    return frozenset(pattern.operators) | one_of


def _conditions(pattern: FindingPattern, program: Program) -> list[str] | None:
    """The pattern's other conditions on a program, in words; None if one does not hold.

    How many other operators there are is not asked: the pattern is for a reduced program, and this is a whole one.
    """
    conditions = pattern.conditions(program.to_json()["calls"], program.source)
    if False in conditions.values():
        return None
    return [words for words, holds in conditions.items() if holds]


def _standing(ledger: Ledger, issue: KnownIssue, old: str, new: str) -> str:
    """Says in which of two minor versions of torch the issue was seen."""
    shown = ledger.torch_versions(issue)
    both = dict.fromkeys((old, new))
    known = [minor for minor in both if ledger.is_measured(issue, minor)]
    unknown = [minor for minor in both if minor not in known]
    if unknown:
        told = [f"{'' if minor in shown else 'not '}in {minor}" for minor in known]
        return "; ".join([*told, f"not measured with {' and '.join(unknown)}"])
    return _change(old in shown, new in shown, new)


def _change(was_shown: bool, is_shown: bool, new: str) -> str:
    if was_shown and is_shown:
        return "in both"
    return f"fixed in {new}" if was_shown else f"new in {new}" if is_shown else _NEITHER


# -------------------------------------------------------------------------------------------------------------- rarity


def _rarity(operator: str) -> float:
    """How much an operator says: the logarithm of the share of the ledger's programs that lack it."""
    counts, programs = _frequencies()
    return math.log((1 + programs) / (1 + counts[operator]))


@cache
def _is_common(glob: str) -> bool:
    """Whether a glob over lines says little: many programs have such a line, as they have one with `_(` in it."""
    sources = [issue.program.source for issue in load_ledger().issues]
    having = sum(any(fnmatchcase(line.strip(), glob) for line in source.splitlines()) for source in sources)
    return having > _COMMON * len(sources)


@cache
def _frequencies() -> tuple[Counter[str], int]:
    """How many programs of the ledger have each operator, and how many there are."""
    found: Counter[str] = Counter()
    issues = load_ledger().issues
    for issue in issues:
        found.update(operators_in_text(issue.program.source) | _symbols(issue.program.source))
    return found, len(issues)


def _symbols(source: str) -> set[str]:
    """The operators that a source writes as symbols: "add" for `a + b`, "setitem" for `a[0] = b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.UnaryOp(op=op):
                name = type(op).__name__.lower()
                found.add(spelled(_IN_OPERATOR.get(name, name)))
            case ast.Compare(ops=ops):
                found.update(
                    spelled(_IN_OPERATOR.get(name, name)) for name in (type(op).__name__.lower() for op in ops)
                )
            case ast.Subscript(ctx=ctx):
                found.add("getitem" if isinstance(ctx, ast.Load) else "setitem")
            case _:
                pass
    return found
