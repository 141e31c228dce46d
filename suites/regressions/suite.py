"""RegressionsSuite: the programs of known issues, and programs of suites/regressions/programs, which agree today.

There is one group per upstream issue, and "found", "fuzzed" and "control"; and one for each ledger of the user (`--known`).
To add a regression that agrees, add a file to suites/regressions/programs. Its header has all metadata: `tags` says how it ends
("agrees", "untried" or "control"), `rung` and `where` what it was reported for. A program that differs today has an entry of the
ledger instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from oracle.errors import UsageError
from oracle.known import ledger as known_issues
from oracle.known.ledger import KnownIssue, program_name
from oracle.program.snippets import Snippet, read_snippets
from suites.base import Selection, SuiteProgram
from suites.regressions import DEFAULT_SUBJECTS, NAME, QUICK_SUBJECTS

_PROGRAMS = Path(__file__).with_name("programs")
LADDER: tuple[str, ...] = ("dynamo", "aot_eager", "inductor")
MEASURED_WITH = "2.13"
_NOT_EXPORT = tuple(subject for subject in DEFAULT_SUBJECTS if not subject.startswith("export"))


@cache
def snippets() -> Mapping[str, Snippet]:
    """All programs by name: "197829/shifted_slice_copy", "control/nan_in_fp64_too"."""
    agreeing = {program_name(stem): snippet for stem, snippet in read_snippets(_PROGRAMS).items()}
    with_file = sorted({**known_issues.programs(), **agreeing}.items(), key=lambda item: item[1].name)
    return {**dict(with_file), **known_issues.variants()}


class RegressionsSuite:
    """Groups are upstream issue numbers, and "control". There is no dtype axis.

    Programs tagged "gpu" are planned only if `selection.device` is a CUDA device; `not_planned` lists them.

    If the user names no subject, `export` runs only the programs that were reported for it: it traces once, and need not follow
    later changes of globals or attributes. The default sweep runs each program on one rung only, the first that is known to go
    wrong (`first_rung`), since higher rungs usually fail in the same way, and leaves out "variant" programs, which show the bug
    of another program.
    """

    def groups(self, selection: Selection) -> list[str]:
        groups = {
            name.split("/")[0]: None
            for name, snippet in snippets().items()
            if selection.may_want_group(name.split("/")[0])
            and _is_wanted(snippet, selection)
            and not reason_not_planned(snippet, selection)
        }
        own = {_group(issue): None for issue in _own_issues(selection) if selection.may_want_group(_group(issue))}
        return list({**groups, **own})

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a group that does not exist."""
        members = {name: snippet for name, snippet in snippets().items() if name.split("/")[0] == group}
        own = [issue for issue in _own_issues(selection) if _group(issue) == group]
        if not members and not own:
            raise UsageError(
                seen=f"regression {group!r}",
                expected="an upstream issue number of the suite, or 'control'",
                do="`torch-oracle list regressions` prints them",
            )
        for name, snippet in members.items():
            if (
                _is_wanted(snippet, selection)
                and not reason_not_planned(snippet, selection)
                and selection.wants(group=group, name=name)
            ):
                yield SuiteProgram(
                    program=snippet.to_program(name=name, device=selection.device),
                    group=group,
                    direction=snippet.direction,
                    tags=snippet.tags,
                    subjects=_subjects(name, snippet, selection),
                )

        for issue in own:
            if selection.wants(group=group, name=issue.program_name):
                yield _own_program(issue, group, selection)

    def not_planned(self, selection: Selection) -> dict[str, str]:
        """Selected programs that cannot run on the device -> why."""
        reasons = {
            name: reason_not_planned(snippet, selection)
            for name, snippet in snippets().items()
            if _is_wanted(snippet, selection) and selection.wants(group=name.split("/")[0], name=name)
        }
        return {name: reason for name, reason in reasons.items() if reason}


def first_rung(name: str) -> str:
    """The first subject that a program goes wrong on, or that it was reported for; the highest rung for a control."""
    issue = _issues().get(name)
    return issue.subject if issue else snippets()[name].rung or LADDER[-1]


def expected() -> Mapping[str, Mapping[str, str]]:
    """Program -> subject -> expected status on torch 2.13, x86 CPU, where it was measured.

    Known issues must end as they were measured (`oracle/known/seen.json`); programs that agree, and controls, must pass on every
    rung. Export is included only for programs that were reported for it, since it traces once and need not follow later changes
    of globals or attributes.
    """
    passing = {name: snippet for name, snippet in snippets().items() if {"agrees", "control"} & set(snippet.tags)}
    measured = {name: _measured(issue) for name, issue in _issues().items()}
    return {name: words for name, words in measured.items() if words} | {
        name: dict.fromkeys(LADDER, "pass") for name in passing
    }


def _measured(issue: KnownIssue) -> dict[str, str]:
    """Subject -> status, without subjects on which the program has ended in several ways."""
    endings = known_issues.load_ledger().seen.endings(f"{NAME}/{issue.program_name}", MEASURED_WITH)
    exports = [name for name in endings if issue.subject.startswith("export") and name.startswith("export")]
    found = {subject: endings.get(subject, ()) for subject in (*LADDER, issue.subject, *exports)}
    return {
        subject: those[0].status.value
        for subject, those in found.items()
        if len({ending.status for ending in those}) == 1
    }


@cache
def _issues() -> Mapping[str, KnownIssue]:
    return {issue.program_name: issue for issue in known_issues.load_ledger().issues}


def _own_issues(selection: Selection) -> list[KnownIssue]:
    """The entries of the user's own ledgers, with a tag and direction that the selection has."""
    issues = [issue for path in selection.ledgers for issue in known_issues.load_ledger(Path(path)).issues]
    return [
        issue
        for issue in issues
        if (not selection.tags or _own_tags(issue)[0] in selection.tags)
        and (not selection.directions or _direction(issue) in selection.directions)
    ]


def _group(issue: KnownIssue) -> str:
    return issue.program_name.partition("/")[0]


def _own_tags(issue: KnownIssue) -> tuple[str, ...]:
    return ("agrees",) if issue.fixed else ("differs",)


def _direction(issue: KnownIssue) -> str:
    return "backward" if any(call.backward for call in issue.program.calls) else "forward"


def _own_program(issue: KnownIssue, group: str, selection: Selection) -> SuiteProgram:
    subject = issue.subject
    if selection.quick:
        subjects = (subject,) if subject in QUICK_SUBJECTS else ()
    else:
        subjects = () if subject.startswith("export") else _NOT_EXPORT
    return SuiteProgram(
        program=replace(issue.program, name=issue.program_name),
        group=group,
        direction=_direction(issue),
        tags=_own_tags(issue),
        subjects=subjects,
    )


def _subjects(name: str, snippet: Snippet, selection: Selection) -> tuple[str, ...]:
    if selection.quick:
        return (first_rung(name),)
    if "export" in snippet.tags:
        return ()
    return _NOT_EXPORT


def reason_not_planned(snippet: Snippet, selection: Selection) -> str:
    """Why a program cannot run on this device, or ""."""
    if "gpu" in snippet.tags and not selection.device.startswith("cuda"):
        return f"reported for GPUs, and --device is {selection.device}"
    if "variant" in snippet.tags and selection.device.startswith("cuda"):
        return "its inputs are made on the CPU"
    return ""


def _is_wanted(snippet: Snippet, selection: Selection) -> bool:
    if selection.quick and "variant" in snippet.tags:
        return False
    has_tag = not selection.tags or any(tag in selection.tags for tag in snippet.tags)
    return has_tag and (not selection.directions or snippet.direction in selection.directions)
