"""The ledger: issues that are known and reported, with a program that shows each, looked at again in every run.

`known_issue` says which of them explains a bucket, so that a campaign does not report it as new. `recheck` runs the programs:
an issue whose program agrees is fixed, one that has expired must be looked at by somebody. Both are for the summary.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fuzz.bucket import Bucket
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.verdict import Status, Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on Python 3.10 only

LEDGER = Path(__file__).with_name("known_issues.toml")
_FIELDS = frozenset(
    [
        "id", "link", "title", "rung", "statuses", "kinds", "operators", "one_of", "extra", "culprits", "before", "lines",
        "arguments", "shares_memory", "of_eager", "expires", "source", "calls", "config", "is_module", "dynamic",
    ]
)  # fmt: skip
_REQUIRED = ("id", "link", "title", "rung", "statuses", "operators", "expires", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """One entry; `known_issues.toml` says what the fields mean."""

    id: str
    link: str
    title: str
    rung: str
    statuses: tuple[str, ...]
    kinds: tuple[str, ...] = ("*",)
    operators: tuple[str, ...]
    one_of: tuple[str, ...] = ()  # one of these must be in the program too
    extra: int = 0
    culprits: tuple[str, ...] = ("*",)
    before: tuple[str, ...] = ()  # globs, one of which what is done before a call must match
    lines: tuple[str, ...] = ()  # globs, each of which a line of the reduced program must match
    arguments: tuple[str, ...] = ()  # globs over the JSON of an argument, all of which one argument must match
    shares_memory: bool = False  # arguments of the program must
    of_eager: bool = False  # eager is what is wrong, so that it shows on any rung
    expires: datetime.date
    program: Program

    def explains(self, bucket: Bucket) -> bool:
        """Whether a bucket is this issue, whatever the day."""
        operators, extra = set(self.operators), set(bucket.operators) - set(self.operators)
        calls = bucket.program.get("calls", [])
        texts = [line.strip() for call in calls for line in call.get("before", "").splitlines()]
        return (
            (self.of_eager or fnmatchcase(bucket.rung or bucket.subject, self.rung))
            and bucket.status in self.statuses
            and any(fnmatchcase(bucket.kind, kind) for kind in self.kinds)
            and operators <= set(bucket.operators)
            and (not self.one_of or not extra.isdisjoint(self.one_of))
            and len(extra) <= self.extra
            and (not bucket.culprit or any(fnmatchcase(bucket.culprit, glob) for glob in self.culprits))
            and (not self.before or any(fnmatchcase(text, glob) for text in texts for glob in self.before))
            and all(any(fnmatchcase(line.strip(), glob) for line in bucket.source.splitlines()) for glob in self.lines)
            and (not self.arguments or any(_fits(spec, self.arguments) for spec in _specs(calls)))
            and (not self.shares_memory or _shares_memory(calls))
            and set(self.program.config) <= set(bucket.program.get("config", {}))
        )

    def is_expired(self, today: datetime.date) -> bool:
        return today > self.expires


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """What became of one issue."""

    issue: KnownIssue
    outcome: str  # "live", "fixed", "changed" (wrong in another way), "unjudged" (its program no longer runs in eager)
    is_expired: bool
    verdict: Verdict

    @property
    def needs_attention(self) -> bool:
        return self.outcome != "live" or self.is_expired

    def text(self) -> str:
        """A line for the summary."""
        expired = f"; expired on {self.issue.expires}" if self.is_expired else ""
        said = f" ({self.verdict.status.value}: {self.verdict.symptom[:80]})" if self.outcome != "fixed" else ""
        return f"{self.issue.id}: {self.outcome}{expired}{said}: {self.issue.title} {self.issue.link}"


def load_ledger(path: Path = LEDGER) -> tuple[KnownIssue, ...]:
    """The entries of a ledger. Raises UsageError for a file that is none."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            seen=f"ledger {path}: {error}", expected="a TOML file of [[issue]] tables", do="mend or restore it"
        ) from error
    issues = tuple(_issue(entry, path) for entry in data.get("issue", []))
    names = [issue.id for issue in issues]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(seen=f"issue {name!r} twice in {path}", expected="ids that are unique", do="rename one")
    return issues


def known_issue(
    bucket: Bucket, ledger: Sequence[KnownIssue], *, today: datetime.date | None = None
) -> KnownIssue | None:
    """The entry that explains a bucket; an expired one explains nothing."""
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    return next((issue for issue in ledger if not issue.is_expired(day) and issue.explains(bucket)), None)


def recheck(
    ledger: Sequence[KnownIssue],
    judge_on: Callable[[Program, str], Verdict],
    *,
    today: datetime.date | None = None,
) -> list[Recheck]:
    """Run the program of every entry. `judge_on(program, subject name)` gives the verdict.

    The subject is the entry's rung without its wildcards.
    """
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    found = []
    for issue in ledger:
        verdict = judge_on(issue.program, issue.rung.rstrip("*"))
        found.append(
            Recheck(issue=issue, outcome=_outcome(issue, verdict), is_expired=issue.is_expired(day), verdict=verdict)
        )
    return found


def _outcome(issue: KnownIssue, verdict: Verdict) -> str:
    if verdict.status is Status.PASS:
        return "fixed"
    if verdict.status.is_finding:
        return "live" if verdict.status.value in issue.statuses else "changed"
    return "unjudged"


def _issue(entry: Mapping[str, Any], path: Path) -> KnownIssue:
    name = entry.get("id", "without an id")
    missing, unknown = [key for key in _REQUIRED if key not in entry], sorted(set(entry) - _FIELDS)
    words = {status.value for status in Status}
    wrong = [status for status in entry.get("statuses", []) if status not in words]
    if missing or unknown or wrong or not isinstance(entry["expires"], datetime.date):
        raise UsageError(
            seen=f"issue {name} of {path}: missing {missing}, unknown fields {unknown}, unknown statuses {wrong}",
            expected=f"the fields {', '.join(_REQUIRED)}, and expires as a date",
            do="mend the entry; the head of fuzz/known_issues.toml says what each field is",
        )
    program = Program(
        name=name,
        source=entry["source"],
        calls=tuple(Call(**call) for call in entry.get("calls", [{}])),
        is_module=entry.get("is_module", False),
        config=entry.get("config", {}),
        dynamic=entry.get("dynamic"),
    )
    return KnownIssue(
        id=name,
        link=entry["link"],
        title=entry["title"],
        rung=entry["rung"],
        statuses=tuple(entry["statuses"]),
        kinds=tuple(entry.get("kinds", ("*",))),
        operators=tuple(entry["operators"]),
        one_of=tuple(entry.get("one_of", ())),
        extra=entry.get("extra", 0),
        culprits=tuple(entry.get("culprits", ("*",))),
        before=tuple(entry.get("before", ())),
        lines=tuple(entry.get("lines", ())),
        arguments=tuple(entry.get("arguments", ())),
        shares_memory=entry.get("shares_memory", False),
        of_eager=entry.get("of_eager", False),
        expires=entry["expires"],
        program=program,
    )


def _shares_memory(calls: Sequence[Mapping[str, Any]]) -> bool:
    return any("storage" in spec or spec.get("$") == "same" for spec in _specs(calls))


def _fits(spec: Mapping[str, Any], globs: Sequence[str]) -> bool:
    text = json.dumps(spec, sort_keys=True)
    return all(fnmatchcase(text, glob) for glob in globs)


def _specs(calls: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The arguments of all calls, and what is in those that are containers."""
    waiting: list[Any] = [part for call in calls for part in (call.get("args"), call.get("kwargs"))]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if "$" in value:
                yield value
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
