"""`torch-oracle issues`: lists the known bugs of PyTorch's compilers or of the user's own ledgers, shows one, or runs some."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.console import Console

from oracle.errors import UsageError
from oracle.known.ledger import BUILT_IN, KnownIssue, Ledger, ledger_named
from oracle.known.seen import minor_of
from oracle.known.severity import Severity
from oracle.known_runs import verdicts_of
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict, WorstElement
from results.render import TextTable, show, show_lines, visible
from suites.end_report import plural

_WORST = re.compile(
    r"is (?P<subject>\S+), but should be (?P<eager>\S+)(?: \(fp64 [^)]*\))?: error \S+, allowed (?P<allowed>[-+.\deE]+)"
)


def issues(
    issue: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of an issue, number of an upstream report, or a glob.")
    ] = None,
    severity: Annotated[
        str | None, typer.Option(help="Only these severities, separated by commas: 'wrong value', refusal, strides ...")
    ] = None,
    rung: Annotated[
        str | None, typer.Option(help="Only bugs that first show with this stage: dynamo, aot_eager ...")
    ] = None,
    torch: Annotated[
        str | None, typer.Option(help="Only bugs measured with this version of torch, such as 2.13.")
    ] = None,
    all_rows: Annotated[
        bool, typer.Option("--all", help="List every program instead of one line for each cause.")
    ] = False,
    script: Annotated[
        bool, typer.Option("--script", help="Print a Python script that shows the issue and needs only torch.")
    ] = False,
    run: Annotated[
        bool,
        typer.Option("--run", help="Run the programs now, each on its first wrong stage, and print the verdicts."),
    ] = False,
    known: Annotated[str, typer.Option(help="Ledgers, by comma: 'torch' (built in), your own TOML files.")] = BUILT_IN,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on stdout; with --run a line for each program as it ends.")
    ] = False,
) -> None:
    """List the known bugs of PyTorch's compilers. With an ID, print its program, the results of eager and compiler, and the link.

    Exit codes: 0; with --run 1 if a program does not end as the ledger says.
    """
    ledger = _ledger(known)
    chosen = _selected(ledger, issue, severity, rung, torch)
    single = chosen[0] if issue is not None and len(chosen) == 1 else None
    if script and single is None:
        raise UsageError(
            seen=f"--script with {len(chosen)} issues",
            expected="the id of one issue",
            do="`torch-oracle issues --all` lists the ids",
        )
    if run and known == BUILT_IN and issue is None:
        raise UsageError(
            seen=f"--run with all {len(chosen)} issues of PyTorch",
            expected="an id, or a glob over ids",
            do="to run all of them, sweep: `torch-oracle sweep --suite regressions`",
        )
    if run:
        raise typer.Exit(_run(chosen, as_json=as_json))
    if as_json:
        sys.stdout.write(json.dumps([_json(one, ledger) for one in chosen], indent=2) + "\n")
    elif script and single is not None:
        from fuzz.triage.script_runs import exit_code  # noqa: PLC0415  imports torch, which listing issues does not need

        sys.stdout.write(script_of(single, ledger, runs=exit_code))
    elif single is not None:
        show_lines(Console(), map(visible, issue_text(single, ledger, known=known).splitlines()))
    else:
        show(Console(), listing(chosen, fold=not all_rows and issue is None, known=known))


def _ledger(known: str) -> Ledger:
    ledger = ledger_named(known)
    if ledger is None:
        raise UsageError(
            seen="--known none", expected="'torch', or TOML files of [[issue]] tables, by comma", do="name a ledger"
        )
    return ledger


def _selected(
    ledger: Ledger, word: str | None, severity: str | None, rung: str | None, torch: str | None
) -> list[KnownIssue]:
    """The issues that the options select. Raises UsageError if there are none, or for an unknown word."""
    severities = [one.strip() for one in severity.split(",")] if severity else []
    for one in severities:
        if one not in [known.value for known in Severity]:
            raise UsageError(
                seen=f"--severity {one}",
                expected=f"one of {', '.join(known.value for known in Severity)}",
                do="name one",
            )
    rungs = sorted({issue.subject for issue in ledger.issues})
    if rung is not None and not any(fnmatchcase(one, rung) for one in rungs):
        raise UsageError(seen=f"--rung {rung}", expected=f"one of {', '.join(rungs)}", do="name one, or a glob")
    if torch is not None and minor_of(torch) not in ledger.seen.versions:
        raise UsageError(
            seen=f"--torch {torch}",
            expected=f"a version with which the programs were run: {', '.join(ledger.seen.versions)}",
            do="name one of these, or leave it out",
        )
    chosen = [
        issue
        for issue in ledger.issues
        if (not severities or issue.severity.value in severities)
        and (rung is None or fnmatchcase(issue.subject, rung))
        and (torch is None or minor_of(torch) in ledger.torch_versions(issue))
        and (word is None or _is_named(issue, word))
    ]
    if not chosen and word is not None:
        near = difflib.get_close_matches(word, [issue.id for issue in ledger.issues], n=3, cutoff=0.5)
        raise UsageError(
            seen=f"issue {word!r}, which is not in the ledger"
            + (" with these options" if severity or rung or torch else ""),
            expected="an id, the number of an upstream report, or a glob over ids",
            do=f"did you mean {' or '.join(near)}?" if near else "`torch-oracle issues --all` lists the ids",
        )
    return sorted(chosen, key=lambda issue: (issue.severity.rank, issue.cause, issue.id))


def _is_named(issue: KnownIssue, word: str) -> bool:
    number = issue.link.rpartition("/")[2]
    return fnmatchcase(issue.id, word) or word in (issue.program_name, number, f"#{number}")


# ---------------------------------------------------------------------------------------------------------------- listing


def listing(issues: Sequence[KnownIssue], *, fold: bool, known: str = BUILT_IN) -> list[TextTable]:
    """Counts by severity, then the issues; with `fold` one line for each cause."""
    by_cause: dict[str, list[KnownIssue]] = {}
    for issue in issues:  # most severe first: the first issue of a cause represents it
        by_cause.setdefault(issue.cause, []).append(issue)
    programs = Counter(issue.severity for issue in issues)
    causes = Counter(members[0].severity for members in by_cause.values())
    counts = TextTable(
        title=f"known bugs {_whose(known)}: {plural(len(issues), 'program')}, {plural(len(by_cause), 'cause')}",
        columns=("severity", "causes", "programs", "meaning"),
        rows=tuple((one.value, str(causes[one]), str(programs[one]), one.meaning) for one in Severity if programs[one]),
        right=frozenset({1, 2}),
    )
    shown = [members[0] for members in by_cause.values()] if fold else list(issues)
    shown.sort(key=lambda issue: issue.severity.rank)
    rows = [
        (issue.severity.value, issue.subject, issue.id, str(len(by_cause[issue.cause])), issue.title) for issue in shown
    ]
    table = TextTable(
        title="one line for each cause (--all for every program)" if fold else "every program",
        columns=("severity", "first wrong rung", "id", "programs of its cause", "what goes wrong"),
        rows=tuple(rows),
        right=frozenset({3}),
        note=f"torch-oracle issues{_option(known)} ID prints the program, both answers and the link",
    )
    return [counts, table]


def _whose(known: str) -> str:
    return "of PyTorch's compilers" if known == BUILT_IN else f"in {known}"


def _option(known: str) -> str:
    """The option that names the ledgers, for a command line: "" for the built-in one."""
    return "" if known == BUILT_IN else f" --known {shlex.quote(known)}"


def issue_text(issue: KnownIssue, ledger: Ledger, *, known: str = BUILT_IN) -> str:
    """The text that shows one issue. `known` names its ledger on a command line."""
    alike = [other.id for other in ledger.issues if other.cause == issue.cause and other.id != issue.id]
    facts = [
        ("severity", f"{issue.severity.value}: {issue.severity.meaning}"),
        ("cause", issue.cause),
        ("where", issue.where),
        ("first wrong", issue.subject + (" (eager itself is wrong)" if issue.of_eager else "")),
        ("torch", ", ".join(ledger.torch_versions(issue))),
        ("report", issue.link or "none upstream yet"),
        ("found", issue.found),
        ("fixed", f"{issue.fixed}: its program must agree" if issue.fixed else ""),
        ("same cause", ", ".join(alike)),
        ("also in", ", ".join(issue.shown_by[1:])),
        ("expires", "" if issue.fixed else f"{issue.expires}: after this day a sweep reports it again"),
    ]
    width = max(len(name) for name, _ in facts)
    lines = [issue.id, "=" * len(issue.id), issue.title, ""]
    lines += [f"{name:{width}}  {text}" for name, text in facts if text]
    measured = [
        f"  torch {minor}, {subject}: "
        + " or ".join(f"{e.status.value}{': ' if e.symptom else ''}{e.symptom}" for e in endings)
        for minor in ledger.seen.versions
        for subject, endings in ledger.seen.measured(issue.shown_by[0], minor).items()
    ]
    lines += ["", "Measured results:", *measured] if measured else []
    lines += [
        "",
        "The program:",
        "",
        *(f"    {line}".rstrip() for line in issue.program.source.strip("\n").splitlines()),
    ]
    if plan := _plan_lines(issue):
        lines += ["", "How it is called:", "", *plan]
    lines += [
        "",
        "Next:",
        f"  torch-oracle issues {issue.id}{_option(known)} --run      run it here",
        f"  torch-oracle issues {issue.id}{_option(known)} --script   a script that needs torch alone",
        f"  torch-oracle sweep --suite regressions --match '{issue.program_name}' --subject {issue.subject}"
        f"{_option(known) or ' --known none'}",
    ]
    return "\n".join(lines) + "\n"


def _plan_lines(issue: KnownIssue) -> list[str]:
    """The call plan, if it is more than a single call."""
    data = issue.program.to_json()
    lines = [f"    call {i}: {json.dumps(call)}" for i, call in enumerate(data["calls"]) if call]
    lines += [f"    {key}: {json.dumps(data[key])}" for key in ("dynamic", "config", "is_module") if key in data]
    return lines if lines or len(data["calls"]) < 2 else [f"    {len(data['calls'])} calls"]


def _json(issue: KnownIssue, ledger: Ledger) -> dict[str, Any]:
    return {
        "id": issue.id,
        "title": issue.title,
        "cause": issue.cause,
        "severity": issue.severity.value,
        "rung": issue.subject,
        "where": issue.where,
        "link": issue.link,
        "torch": list(ledger.torch_versions(issue)),
        "expires": issue.expires.isoformat(),
        "of_eager": issue.of_eager,
        "cases": list(issue.shown_by),
        "program": issue.program.to_json(),
    }


# ------------------------------------------------------------------------------------------------------------ script, run


def script_of(issue: KnownIssue, ledger: Ledger, *, runs: Callable[[str], int] | None = None) -> str:
    """The issue's program as a script that needs only torch; it exits with 1 while eager and compiled results differ.

    `runs` runs a script and returns its exit code. The script has a few lines if these show the issue when they are run.
    """
    endings = ledger.newest_endings(issue).get(issue.subject, ())
    ending = next((one for one in endings if one.status.is_finding), None)
    symptom = ending.symptom if ending else ""
    verdict = Verdict(
        status=ending.status if ending else Status(issue.statuses[0]), symptom=symptom, worst=_worst_of(symptom)
    )
    notes = [issue.title, *([issue.link] if issue.link else [])]
    from fuzz.triage.repro import text_script  # noqa: PLC0415  imports torch, which listing issues does not need
    from fuzz.triage.short_script import shortest_script  # noqa: PLC0415  the same

    if runs is None:
        return text_script(issue.program, resolve(issue.subject), verdict, notes=notes)
    return shortest_script(issue.program, resolve(issue.subject), verdict, notes=notes, runs=runs)


def _worst_of(symptom: str) -> WorstElement | None:
    """The worst element that a symptom names, so that the script compares as closely as the judge did."""
    found = _WORST.search(symptom)
    if found is None:
        return None
    return WorstElement(
        where="", index=(), subject=found["subject"], eager=found["eager"], allowed_error=float(found["allowed"])
    )


def _run(issues: Sequence[KnownIssue], *, as_json: bool) -> int:
    """Runs the programs and prints each as it ends: a line or two, or a line of JSON. Returns 0 if all end as the ledger says."""
    wrong = 0
    for issue, verdict in verdicts_of(issues):
        is_right = issue.agrees_with(verdict)
        wrong += not is_right
        if as_json:
            told = {"id": issue.id, "subject": issue.subject, "torch": version("torch"), "as_said": is_right}
            sys.stdout.write(json.dumps({**told, "verdict": verdict.to_json()}) + "\n")
            sys.stdout.flush()
        else:
            show_lines(Console(), map(visible, _said(issue, verdict)))
    if len(issues) > 1 and not as_json:
        show_lines(Console(), [f"{len(issues) - wrong} of {len(issues)} end as the ledger says"])
    return int(wrong > 0)


def _said(issue: KnownIssue, verdict: Verdict) -> list[str]:
    """The verdict on an issue's program, and whether it is that of the ledger, as lines."""
    head = f"{issue.id} on {issue.subject}: {verdict.status.value}"
    if verdict.status is Status.PASS:
        since = f"agrees, as it should since {issue.fixed}"
        return [head, since if issue.fixed else "agrees with eager, and the ledger says that it differs"]
    shows = verdict.status.value in issue.statuses
    said = f"differs {'as' if shows else 'otherwise than'} the ledger says ({', '.join(issue.statuses)})"
    if not verdict.status.is_finding:
        said = f"no verdict, and the ledger says that it differs ({', '.join(issue.statuses)})"
    said += f", but was fixed since {issue.fixed}" if issue.fixed else ""
    return [head, *([verdict.symptom] if verdict.symptom else []), said]
