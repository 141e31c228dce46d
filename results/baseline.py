"""The baseline file of a gate: accepted failures, one sorted line each, so that a diff is easy to read.

case_id | status | reason | link | expires YYYY-MM-DD

A case id that such a line cannot hold, since it has a line break, say, stands as a JSON string in ASCII: "two\\nlines".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

from oracle.errors import UsageError
from oracle.verdict import Status
from results.files import write_atomically

UNREVIEWED: Final = "unreviewed"
_NEVER: Final = "never"
_HEADER: Final = """\
# Accepted failures of `torch-oracle gate`, one per line, sorted:
#   case_id | status | reason | link | expires YYYY-MM-DD
# A line accepts exactly this status of this case. It is itself reported when the case no longer fails, fails with
# another status, is a known issue now, is no longer planned, or when its date has passed. `-` is "no link";
# `expires never` has no date.
# A case id with line breaks and the like is a JSON string, in quotation marks.
# `torch-oracle gate --update` rewrites the file: it keeps lines that still hold and adds new ones as "unreviewed".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedFailure:
    """One line of the baseline."""

    case_id: str
    status: Status
    reason: str
    link: str  # "" for none
    expires: date | None  # the last day on which it is accepted; None for no limit
    line: int = 0  # line number in the file; 0 for a new entry

    def is_expired(self, today: date) -> bool:
        return self.expires is not None and self.expires < today

    def to_line(self) -> str:
        expires = self.expires.isoformat() if self.expires else _NEVER
        return " | ".join(
            (_written_id(self.case_id), self.status.value, self.reason, self.link or "-", f"expires {expires}")
        )


def read_baseline(path: Path) -> dict[str, AcceptedFailure]:
    """The accepted failures by case id. Raises UsageError with the line number for an invalid line."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows write a mark first
    except FileNotFoundError as error:
        raise UsageError(
            seen=f"{path} does not exist",
            expected="a baseline of accepted failures",
            do="add --update to this command: it writes the file, and accepts what fails now",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            seen=f"{path}: {error}", expected="a readable UTF-8 text file", do="correct the path"
        ) from error
    accepted: dict[str, AcceptedFailure] = {}
    previous = ""
    for line, content in enumerate(text.split("\n"), 1):
        content = content.rstrip("\r")
        if not content.strip() or content.startswith("#"):
            continue
        entry = _parse_line(path, line, content)
        if entry.case_id in accepted:
            raise _malformed(
                path,
                line,
                f"{entry.case_id} a second time (first on line {accepted[entry.case_id].line})",
                "one line per case",
            )
        if entry.case_id < previous:
            raise _malformed(path, line, f"{entry.case_id} after {previous}", "lines sorted by case id")
        previous = entry.case_id
        accepted[entry.case_id] = entry
    return accepted


def _parse_line(path: Path, line: int, content: str) -> AcceptedFailure:
    fields = [field.strip() for field in content.split(" | ")]
    if len(fields) != 5:
        raise _malformed(
            path, line, f"{len(fields)} fields in {content!r}", "case_id | status | reason | link | expires YYYY-MM-DD"
        )
    written_id, word, reason, link, expires = fields
    try:
        status = Status(word)
    except ValueError as error:
        raise _malformed(path, line, f"status {word!r}", f"one of {', '.join(_acceptable())}") from error
    if status.value not in _acceptable():
        raise _malformed(path, line, f"status {word!r}, which cannot be accepted", f"one of {', '.join(_acceptable())}")
    if not written_id or not reason:
        raise _malformed(path, line, "an empty case id or reason", "a case id, and why its failure is accepted")
    if not link:
        raise _malformed(path, line, "an empty link", "a link, or - for none")
    return AcceptedFailure(
        case_id=_read_id(path, line, written_id),
        status=status,
        reason=reason,
        link="" if link == "-" else link,
        expires=_parse_expires(path, line, expires),
        line=line,
    )


def _written_id(case_id: str) -> str:
    """A case id as its field of a line."""
    is_plain = (
        case_id.isprintable() and " | " not in f" {case_id} " and case_id == case_id.strip() and case_id[:1] not in '"#'
    )
    return case_id if is_plain and case_id else json.dumps(case_id).replace("|", "\\u007c")


def _read_id(path: Path, line: int, field: str) -> str:
    """The inverse of `_written_id`."""
    if not field.startswith('"'):
        return field
    try:
        found = json.loads(field)
    except ValueError:
        found = None
    if not isinstance(found, str):
        raise _malformed(path, line, f"case id {field}", "a JSON string, as a case id in quotation marks is one")
    return found


def _parse_expires(path: Path, line: int, field: str) -> date | None:
    word, _, when = field.partition(" ")
    if word == "expires" and when == _NEVER:
        return None
    if word == "expires" and len(when) == len("YYYY-MM-DD"):  # Python 3.11 and later parse other ISO forms too
        try:
            return date.fromisoformat(when)
        except ValueError:
            raise _malformed(path, line, f"{field!r}", "a day that exists, as expires YYYY-MM-DD") from None
    raise _malformed(path, line, f"{field!r}", "expires YYYY-MM-DD, or expires never")


def is_acceptable(status: Status) -> bool:
    """Whether a baseline may accept this status. A missing row may not be accepted, since it is no behaviour of the subject."""
    return status.is_finding and status is not Status.MISSING


def _acceptable() -> list[str]:
    return [status.value for status in Status if is_acceptable(status)]


def _malformed(path: Path, line: int, seen: str, expected: str) -> UsageError:
    return UsageError(
        seen=f"{path}, line {line}: {seen}", expected=expected, do="correct the line, or run with --update"
    )


def write_baseline(path: Path, entries: Iterable[AcceptedFailure]) -> None:
    """Write the sorted file atomically. Raises UsageError for text that does not fit in a line, and for I/O errors."""
    write_atomically(path, baseline_text(path, entries))


def baseline_text(path: Path, entries: Iterable[AcceptedFailure]) -> str:
    """The text of the sorted file. Raises UsageError for an entry that does not fit in a line."""
    lines = []
    for entry in sorted(entries, key=lambda entry: entry.case_id):
        line = entry.to_line()
        if not _holds(path, line, entry):
            raise UsageError(
                seen=f"reason {entry.reason!r} or link {entry.link!r} of {entry.case_id!r}, which a line of {path} cannot hold",
                expected="text without ' | ' and line breaks",
                do="write another reason",
            )
        lines.append(line + "\n")
    return _HEADER + "".join(lines)


def _holds(path: Path, line: str, entry: AcceptedFailure) -> bool:
    """Whether a reader of the line finds the entry in it, and nothing else."""
    if "\n" in line or "\r" in line:
        return False
    try:
        return replace(_parse_line(path, entry.line, line), line=entry.line) == entry
    except UsageError:
        return False


def updated_baseline(
    accepted: Mapping[str, AcceptedFailure], failing: Mapping[str, Status], *, expires: date
) -> list[AcceptedFailure]:
    """The baseline that accepts exactly `failing`. Lines with an unchanged status are kept.

    New failures, and those whose status has changed, are added as "unreviewed" until `expires`.
    """
    entries = []
    for case_id, status in failing.items():
        old = accepted.get(case_id)
        if old is not None and old.status is status:
            entries.append(old)
        else:
            link = old.link if old is not None else ""
            entries.append(
                AcceptedFailure(case_id=case_id, status=status, reason=UNREVIEWED, link=link, expires=expires)
            )
    return entries
