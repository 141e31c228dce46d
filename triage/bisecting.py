"""The command `torch-oracle bisect`: since which version of torch, or which commit of a backend, a program goes wrong.

Exit codes: 0 the newest version agrees with eager, 1 it differs, 2 no version could run the program.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from oracle.errors import UsageError
from results.render import TextTable, show
from triage.bisect import NEW, Findings, Progress, Question, Row, question_about, rows_of_versions
from triage.bisect_commits import CommitFindings, Commits, bisect_commits, top_of
from triage.environments import parse_versions
from triage.interpreters import check_interpreter
from triage.target import FileOptions, find_target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The options that say what is compared, checked."""

    versions: tuple[str, ...]
    pythons: tuple[str, ...]
    commits: Commits | None
    pip: str
    timeout_s: float
    runs: int

    def findings(self, question: Question, progress: Progress) -> Findings | CommitFindings:
        if self.commits is None:
            return rows_of_versions(
                question, versions=self.versions, pythons=self.pythons, pip=self.pip, timeout_s=self.timeout_s,
                runs=self.runs, progress=progress,
            )  # fmt: skip
        return bisect_commits(
            question, self.commits, python=self.python, timeout_s=self.timeout_s, runs=self.runs, progress=progress
        )

    @property
    def python(self) -> str:
        """The interpreter that tries commits."""
        return self.pythons[0] if self.pythons else sys.executable


def bisect(
    *,
    target: str,
    inputs: str,
    subject: str,
    torch: str,
    python: list[str],
    pip: str,
    repo: str,
    good: str,
    bad: str,
    build: str,
    runs: int,
    timeout: float,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
    as_json: bool,
) -> None:
    """Find since which version of torch, or which commit of your backend, a program goes wrong."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    commits = _commits(repo, good, bad, build)
    if commits is not None:
        sys.path[:0] = [str(commits.repo), str(commits.repo / "src")]  # the subject is imported from there
        sys.dont_write_bytecode = True  # nothing is written there
    versions = tuple(parse_versions(torch))
    pythons = tuple(check_interpreter(name) for name in python)
    asked = _Asked(versions=versions, pythons=pythons, commits=commits, pip=pip, timeout_s=timeout, runs=runs)
    _check(asked)
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    found_target = find_target(target, subject=subject, db=db, options=options)
    with Console(stderr=True).status("") as status:

        def progress(stage: str) -> None:
            status.update(f"bisect: {stage}")
            if stage.startswith(NEW) and not status.console.is_terminal:  # a log would show nothing for minutes
                sys.stderr.write(f"bisect: {stage}\n")

        progress("eager and the judge")
        here = asked.python if commits is not None else sys.executable
        question = question_about(found_target, timeout_s=timeout, runs=runs, python=here)
        found = asked.findings(question, progress)
    if as_json:
        told: dict[str, Any] = {"target": found_target.name, "subject": found_target.subject.name}
        told |= {"verdict": question.verdict.to_json(), "rows": [row.to_json() for row in found.rows]}
        sys.stdout.write(json.dumps({**told, "conclusion": found.conclusion}, indent=2) + "\n")
    else:
        title = f"{found_target.name} on {found_target.subject.name}"
        show(Console(), [_table(title, found.rows, has_commits=commits is not None), found.conclusion])
    raise typer.Exit(found.exit_code)


def _commits(repo: str, good: str, bad: str, build: str) -> Commits | None:
    """The request made by --repo and its options."""
    if not repo:
        if given := [name for name, text in (("good", good), ("bad", bad), ("build", build)) if text]:
            raise UsageError(
                seen=f"--{given[0]} without --repo",
                expected="the checkout whose commits are meant",
                do="add --repo PATH",
            )
        return None
    if not good:
        raise UsageError(seen="--repo without --good", expected="an older commit to begin with", do="add --good REV")
    return Commits(repo=top_of(Path(repo).absolute()), good=good, bad=bad or "HEAD", build=build)


def _check(asked: _Asked) -> None:
    if asked.commits is not None and (asked.versions or asked.pip or len(asked.pythons) > 1):
        raise UsageError(
            seen="--repo with several versions of torch", expected="one version, which tries all commits",
            do="leave --torch and --pip out, and give at most one --python",
        )  # fmt: skip
    if asked.commits is None and not asked.versions and not asked.pythons:
        raise UsageError(
            seen="bisect without --torch, --python or --repo", expected="versions of torch, or commits, to compare",
            do="write for example --torch 2.12.0,2.13.0, or --repo . --good v1.0",
        )  # fmt: skip
    if asked.pip and not asked.versions:
        raise UsageError(seen="--pip without --torch", expected="versions to install", do="add --torch VERSIONS")


def _table(title: str, rows: Sequence[Row], *, has_commits: bool) -> TextTable:
    if has_commits:
        columns = ("commit", "title", "result", "seconds", "what differs")
        cells = [
            (row.name, row.title, row.ran.result.value, f"{row.ran.seconds:.1f}", row.ran.what or "-") for row in rows
        ]
        return TextTable(title=title, columns=columns, rows=tuple(cells), right=frozenset([3]), prose=frozenset([1, 4]))
    columns = ("torch", "Python", "result", "seconds", "what differs")
    cells = [
        (
            row.ran.torch or row.name,
            row.ran.python or "-",
            row.ran.result.value,
            f"{row.ran.seconds:.1f}",
            row.ran.what or "-",
        )
        for row in rows
    ]
    return TextTable(title=title, columns=columns, rows=tuple(cells), right=frozenset([3]), prose=frozenset([4]))
