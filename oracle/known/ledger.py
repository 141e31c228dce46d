"""The ledger of known issues: read its entries and look them up by id and by case. Does not import torch.

An entry is an [[issue]] table of a TOML file:

id         a short name, used in verdicts, records and reports
title      one sentence: what goes wrong, and where
cause      the root cause, in the same words for all entries that share it; by default the title
severity   a word of oracle.known.severity
rung       the first wrong rung: a glob over subjects ("inductor", "aot_eager", "export*")
where      the pass or component, if it is known
link       the report upstream, if there is one
found      where its program comes from: a run, a campaign, a file; with the version of torch and the day
fixed      the version of torch, or the commit, since which the program agrees. Then the entry explains no finding, and the
           program is a regression test: it must agree
expires    after this day the entry is ignored, until somebody has looked at the bug again
of_eager   eager is wrong, not the subject: the entry applies to every subject, and its program is run on `rung`
program    the name of a program of `programs/`: "197829/shifted_slice_copy" is issue_197829_shifted_slice_copy.py
source     instead of `program`, the text of a program, with other fields of oracle.program.Program: `calls`, `config` ...
statuses   statuses with which the bug shows; the first one is that of the program on `rung`
cases      programs of other suites that show it, as "suite/name"
message    a glob over the kind of a failure to run ("AssertionError: outs_to_grad length*"). If a compiler raises this error, in
           any program, it is this bug. Only for errors inside the compiler that have a single cause
finding    a table: which reduced programs of a fuzz campaign are this bug (FindingPattern)
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from oracle.errors import UsageError
from oracle.known.seen import Endings, Seen, load_seen
from oracle.known.severity import Severity
from oracle.program import FORMAT_VERSION, Program
from oracle.program.snippets import Snippet, read_snippets
from oracle.verdict import Status, Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on Python 3.10 only

ENTRIES = Path(__file__).with_name("entries")
PROGRAMS = Path(__file__).with_name("programs")
SEEN = Path(__file__).with_name("seen.json")
BUILT_IN = "torch"  # the word of `--known` for the built-in ledger
REGRESSIONS = "regressions"  # the suite that runs the programs
VARIANTS = "known"  # its group for programs in the built-in entries themselves; of another ledger the file's name, "known.toml"

_REQUIRED = ("id", "title", "severity", "rung", "statuses", "expires")
_OF_PROGRAM = ("source", "calls", "seed", "is_module", "dynamic", "sizes", "config", "expects_raise", "policy")
_OPTIONAL = ("cause", "where", "link", "found", "fixed", "of_eager", "program", "cases", "message", "finding")
_FIELDS = frozenset((*_REQUIRED, *_OF_PROGRAM, *_OPTIONAL))


class ReducedFinding(Protocol):
    """A reduced finding of a fuzz campaign (`fuzz.triage.bucket.Bucket`)."""

    @property
    def subject(self) -> str: ...
    @property
    def rung(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def operators(self) -> tuple[str, ...]: ...
    @property
    def culprit(self) -> str: ...
    @property
    def program(self) -> Mapping[str, Any]: ...
    @property
    def source(self) -> str: ...


def line_condition(glob: str) -> str:
    """The condition that a program has a line of this form, in words."""
    return f"the line {glob}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingPattern:
    """Conditions under which a reduced program is a known bug. All given ones must hold.

    If `culprits` names the lowering or decomposition of one of `operators`, a finding with that culprit may have any operators:
    `celu` reaches the lowering of `expm1` as `torch.expm1` does.
    """

    operators: tuple[str, ...]  # the program has all of these, in the spelling of fuzz.triage.bucket
    extra: int = 0  # it has at most so many other operators
    one_of: tuple[str, ...] = ()  # one of the others is among these
    kinds: tuple[str, ...] = ("*",)  # globs; one matches the kind of the symptom (oracle.symptom)
    culprits: tuple[str, ...] = ("*",)  # globs; one matches the culprit found by oracle.localisation.culprit
    before: tuple[str, ...] = ()  # globs; one matches a statement before a call
    lines: tuple[str, ...] = ()  # globs; each one matches a line of the program
    arguments: tuple[str, ...] = ()  # globs; one argument's JSON (keys sorted) matches all of them
    shares_memory: bool = False  # arguments share memory

    def matches(self, finding: ReducedFinding) -> bool:
        operators, extra = set(self.operators), set(finding.operators) - set(self.operators)
        has_operators = (
            operators <= set(finding.operators)
            and (not self.one_of or not extra.isdisjoint(self.one_of))
            and len(extra) <= self.extra
        ) or any(fnmatchcase(finding.culprit, glob) and _operator_of(glob) in operators for glob in self.culprits)
        return (
            any(fnmatchcase(finding.kind, kind) for kind in self.kinds)
            and has_operators
            and (not finding.culprit or any(fnmatchcase(finding.culprit, glob) for glob in self.culprits))
            and all(self.conditions(finding.program.get("calls", []), finding.source).values())
        )

    def conditions(self, calls: Sequence[Mapping[str, Any]], source: str) -> dict[str, bool | None]:
        """The conditions on calls (as JSON) and lines, in words, and whether each holds.

        None: the program's source makes its arguments, so nothing is known of them.
        """
        texts = [line.strip() for call in calls for line in call.get("before", "").splitlines()]
        lines, specs = [line.strip() for line in source.splitlines()], list(_specs(calls))
        found: dict[str, bool | None] = {
            line_condition(glob): any(fnmatchcase(line, glob) for line in lines) for glob in self.lines
        }
        if self.before:
            found[f"the statement {' or '.join(self.before)} before a call"] = any(
                fnmatchcase(text, glob) for text in texts for glob in self.before
            )
        if self.arguments:
            found["such arguments"] = any(_fits(spec, self.arguments) for spec in specs) if specs else None
        if self.shares_memory:
            shares = any("storage" in spec or spec.get("$") == "same" for spec in specs)
            found["arguments that share memory"] = shares if specs else None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """One entry; the module's docstring says what the fields mean."""

    id: str
    title: str
    cause: str
    severity: Severity
    rung: str
    where: str = ""
    link: str = ""
    found: str = ""
    fixed: str = ""
    expires: datetime.date
    of_eager: bool = False
    program: Program
    statuses: tuple[str, ...]
    shown_by: tuple[
        str, ...
    ]  # cases that show it, "suite/name"; its own program in the suite of regressions comes first
    message: str = ""  # a glob over the kind of a failure to run, which identifies the issue in any program
    finding: FindingPattern | None = None  # None: no finding of a campaign is this issue

    @property
    def program_name(self) -> str:
        """Name of its program in the suite of regressions."""
        return self.shown_by[0].removeprefix(f"{REGRESSIONS}/")

    @property
    def subject(self) -> str:
        """The subject on which its program is run: the rung without wildcards."""
        return self.rung.rstrip("*")

    def explains(self, finding: ReducedFinding) -> bool:
        """Whether a reduced finding of a campaign is this issue, even if the entry is expired."""
        return (
            self.finding is not None
            and not self.fixed
            and (self.of_eager or fnmatchcase(finding.rung or finding.subject, self.rung))
            and finding.status in self.statuses
            and set(self.program.config) <= set(finding.program.get("config", {}))
            and self.finding.matches(finding)
        )

    def agrees_with(self, verdict: Verdict) -> bool:
        """Whether its program ends as the entry says: it passes if the issue is fixed, and else shows it."""
        return verdict.status is Status.PASS if self.fixed else verdict.status.value in self.statuses

    def refuses_with(self, status: Status, kind: str) -> bool:
        """Whether the message of a failure to run identifies this issue."""
        return (
            bool(self.message) and not self.fixed and status is Status.FAIL_TO_RUN and fnmatchcase(kind, self.message)
        )

    def is_expired(self, today: datetime.date) -> bool:
        return today > self.expires


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Entries in order, and the measured results of their programs."""

    issues: tuple[KnownIssue, ...] = ()
    seen: Seen = field(default_factory=Seen)
    _by_case: Mapping[str, tuple[KnownIssue, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_case: dict[str, list[KnownIssue]] = {}
        for issue in self.issues:
            for case in () if issue.fixed else issue.shown_by:
                by_case.setdefault(case, []).append(issue)
        object.__setattr__(self, "_by_case", {case: tuple(issues) for case, issues in by_case.items()})

    def of_case(self, case: str) -> tuple[KnownIssue, ...]:
        """The entries that a case ("suite/name") shows."""
        return self._by_case.get(case, ())

    def with_message(self, status: Status, kind: str) -> tuple[KnownIssue, ...]:
        """The entries that a failure to run is identified with by its message."""
        return tuple(issue for issue in self.issues if issue.refuses_with(status, kind))

    def of_id(self, name: str) -> KnownIssue | None:
        return next((issue for issue in self.issues if issue.id == name), None)

    def newest_endings(self, issue: KnownIssue) -> Endings:
        """How the issue's own program ended on each subject with the newest version of torch that was measured."""
        return self.seen.endings(issue.shown_by[0], self.seen.versions[-1]) if self.seen.versions else {}

    def torch_versions(self, issue: KnownIssue) -> tuple[str, ...]:
        """The measured minor versions of torch in which a case of the issue differs from eager."""
        return tuple(minor for minor in self.seen.versions if self._shows(issue, minor))

    def is_measured(self, issue: KnownIssue, minor: str) -> bool:
        """Whether it is known if the issue exists in a minor version of torch: it shows, or its own program agrees on its rung.

        A program that eager refuses there, or that took too long, tells nothing.
        """
        own = self.seen.measured(issue.shown_by[0], minor).get(issue.subject, ())
        return self._shows(issue, minor) or any(ending.status is Status.PASS for ending in own)

    def _shows(self, issue: KnownIssue, minor: str) -> bool:
        endings = (self.seen.measured(case, minor).values() for case in issue.shown_by)
        return any(ending.status.is_finding for by_subject in endings for found in by_subject for ending in found)


def load_ledger(path: Path | None = None) -> Ledger:
    """The built-in ledger, or the entries of another TOML file or folder. Raises UsageError for an invalid file."""
    return _built_in() if path is None else Ledger(issues=_issues(path))


def ledger_named(words: str) -> Ledger | None:
    """The ledger of `--known`: "none", or by comma "torch" (the built-in one) and paths.

    Raises UsageError for a path that does not exist, for an invalid file, and for ids that are not unique.
    """
    if words == "none":
        return None
    ledgers = [load_ledger(None if word == BUILT_IN else Path(word)) for word in ledger_words(words)]
    if len(ledgers) == 1:
        return ledgers[0]
    issues = tuple(issue for ledger in ledgers for issue in ledger.issues)
    _check_unique([issue.id for issue in issues], words)
    seen = next((ledger.seen for ledger in ledgers if ledger.seen.versions), Seen())
    return Ledger(issues=issues, seen=seen)


def ledger_words(words: str) -> tuple[str, ...]:
    """The parts of `--known`: "torch", and absolute paths. Raises UsageError for a path that does not exist."""
    parts = [word.strip() for word in words.split(",") if word.strip()] or [words]
    for part in parts:
        if part != BUILT_IN and not Path(part).exists():
            raise UsageError(
                seen=f"--known {part}, which is no file",
                expected="'torch', 'none', or TOML files of [[issue]] tables, by comma",
                do="name a file that exists, or leave --known out for the issues of PyTorch that are known here",
            )
    return tuple(dict.fromkeys(part if part == BUILT_IN else str(Path(part).resolve()) for part in parts))


@cache
def _built_in() -> Ledger:
    return Ledger(issues=_issues(ENTRIES), seen=load_seen(SEEN))


@cache
def programs() -> Mapping[str, Snippet]:
    """The programs in files, by name: "197829/shifted_slice_copy", "fuzzed/cond_dynamic"."""
    return {program_name(stem): snippet for stem, snippet in read_snippets(PROGRAMS).items()}


def variants() -> Mapping[str, Snippet]:
    """The programs in the `source` of entries of the built-in ledger, by name: "known/pytorch-197895-div"."""
    return {
        issue.program_name: Snippet(
            name=issue.program_name,
            doc=issue.title,
            source=issue.program.source,
            tags=("differs", "variant"),
            calls=issue.program.calls,
            is_module=issue.program.is_module,
            dynamic=issue.program.dynamic,
            config=issue.program.config,
            expects_raise=issue.program.expects_raise,
            policy=issue.program.policy,
            seed=issue.program.seed,
        )
        for issue in load_ledger().issues
        if issue.program_name.startswith(f"{VARIANTS}/")
    }


def program_name(stem: str) -> str:
    """ "issue_197829_shifted_slice_copy" -> "197829/shifted_slice_copy"; "control_x" -> "control/x"."""
    group, _, rest = stem.removeprefix("issue_").partition("_")
    return f"{group}/{rest}"


def _issues(path: Path) -> tuple[KnownIssue, ...]:
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    issues = tuple(_issue(entry, file) for file in files for entry in _tables(file))
    _check_unique([issue.id for issue in issues], str(path))
    return issues


def _check_unique(ids: Sequence[str], where: str) -> None:
    for name in ids:
        if ids.count(name) > 1:
            raise UsageError(seen=f"issue {name!r} twice in {where}", expected="ids that are unique", do="rename one")


def _tables(path: Path) -> list[dict[str, Any]]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            seen=f"ledger {path}: {error}", expected="a TOML file of [[issue]] tables", do="correct or restore it"
        ) from error
    entries = data.pop("issue", [])
    if data or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(
            seen=f"ledger {path} with {', '.join(sorted(data)) or 'an issue'} beside or instead of [[issue]] tables",
            expected="a TOML file of [[issue]] tables and nothing else",
            do="correct it; the docstring of oracle/known/ledger.py says what an entry holds",
        )
    return entries


def _issue(entry: Mapping[str, Any], path: Path) -> KnownIssue:
    name = entry.get("id", "without an id")
    problems = list(_problems(entry))
    if problems:
        raise UsageError(
            seen=f"issue {name} of {path}: {'; '.join(problems)}",
            expected=f"the fields {', '.join(_REQUIRED)}, and either program or source",
            do="correct the entry; the docstring of oracle/known/ledger.py says what each field is",
        )
    pattern = entry.get("finding")
    group = VARIANTS if path.parent == ENTRIES else path.name
    own = entry.get("program", f"{group}/{name}")
    return KnownIssue(
        id=name,
        title=entry["title"],
        cause=entry.get("cause", entry["title"]),
        severity=Severity(entry["severity"]),
        rung=entry["rung"],
        where=entry.get("where", ""),
        link=entry.get("link", ""),
        found=entry.get("found", ""),
        fixed=entry.get("fixed", ""),
        expires=entry["expires"],
        of_eager=entry.get("of_eager", False),
        program=_program(entry, name),
        statuses=tuple(entry["statuses"]),
        message=entry.get("message", ""),
        shown_by=(f"{REGRESSIONS}/{own}", *entry.get("cases", ())),
        finding=None if pattern is None else FindingPattern(**{k: _frozen(v) for k, v in pattern.items()}),
    )


def _program(entry: Mapping[str, Any], name: str) -> Program:
    if "program" in entry:
        return programs()[entry["program"]].to_program(name=name, device="cpu")
    fields = {key: entry[key] for key in _OF_PROGRAM if key in entry}
    return Program.from_json({"format": FORMAT_VERSION, "name": name, **fields})


def _problems(entry: Mapping[str, Any]) -> Iterator[str]:
    """Descriptions of the errors in an entry."""
    if missing := [key for key in _REQUIRED if key not in entry]:
        yield f"missing {', '.join(missing)}"
    if unknown := sorted(set(entry) - _FIELDS):
        yield f"unknown fields {', '.join(unknown)}"
    if unknown := sorted(set(entry.get("finding", {})) - set(FindingPattern.__dataclass_fields__)):
        yield f"unknown fields {', '.join(unknown)} in finding"
    if "operators" not in entry.get("finding", {"operators": ()}):
        yield "finding without operators"
    words = {status.value for status in Status if status.is_finding}
    if wrong := [status for status in entry.get("statuses", []) if status not in words]:
        yield f"unknown statuses {', '.join(map(str, wrong))}"
    if entry.get("severity") not in [severity.value for severity in Severity]:
        yield f"unknown severity {entry.get('severity')!r}"
    if not isinstance(entry.get("expires"), datetime.date):
        yield f"expires = {entry.get('expires')!r}, which is no date"
    if "message" in entry and "fail_to_run" not in entry.get("statuses", ()):
        yield "a message without the status fail_to_run"
    if ("program" in entry) == ("source" in entry):
        yield "both a program and a source, or neither"
    if "program" in entry and (extra := [key for key in _OF_PROGRAM if key in entry]):
        yield f"{', '.join(extra)} beside a program, whose file says it"
    if "program" in entry and entry["program"] not in programs():
        yield f"program {entry['program']!r}, which is not in {PROGRAMS.name}/"


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _operator_of(culprit: str) -> str:
    """The operator named by a culprit: "expm1" of "lowering: aten.expm1, vector code"; "" if it names none."""
    found = re.match(r"(?:lowering|decomposition): aten\.(\w+)", culprit)
    return found[1] if found else ""


def _fits(spec: Mapping[str, Any], globs: Sequence[str]) -> bool:
    text = json.dumps(spec, sort_keys=True)
    return all(fnmatchcase(text, glob) for glob in globs)


def _specs(calls: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The specs of the arguments of all calls, containers and their items included."""
    waiting: list[Any] = [part for call in calls for part in (call.get("args"), call.get("kwargs"))]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if "$" in value:
                yield value
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
