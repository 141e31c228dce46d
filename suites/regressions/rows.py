"""Regression: one row of the table of regressions, and short ways to write one of each kind. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One row. `name` is the program's."""

    name: str
    issues: tuple[int, ...]  # of pytorch/pytorch; empty for controls without a report, and for what was found here
    line: str
    kind: str  # "differs" | "agrees" | "untried" | "control"
    first_wrong: str = ""  # subject; for "agrees" and "untried" the rung it was reported for
    where: str = ""  # the pass or component, as far as it is known
    status: str = ""  # verdict on `first_wrong`; "" unless it differs
    device: str = "cpu"  # "cuda": planned only there


def differs(name: str, line: str, *, first_wrong: str, where: str, status: str) -> Regression:
    return Regression(
        name=name,
        issues=_issues(name),
        line=line,
        kind="differs",
        first_wrong=first_wrong,
        where=where,
        status=status,
    )


def agrees(name: str, line: str, *, first_wrong: str, where: str) -> Regression:
    return Regression(name=name, issues=_issues(name), line=line, kind="agrees", first_wrong=first_wrong, where=where)


def untried(name: str, line: str, *, where: str) -> Regression:
    return Regression(
        name=name,
        issues=_issues(name),
        line=line,
        kind="untried",
        first_wrong="inductor",
        where=where,
        device="cuda",
    )


def control(name: str, line: str, *issues: int) -> Regression:
    return Regression(name=name, issues=issues, line=line, kind="control")


def _issues(name: str) -> tuple[int, ...]:
    group = name.split("/")[0]
    return (int(group),) if group.isdigit() else ()
