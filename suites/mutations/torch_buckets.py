"""Why torch's `aot_eager` is wrong: a table by kind of failure, and one by cause.

The causes are those of `suites.mutations.causes`, written by hand; a kind of failure that is not listed there is "unknown".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oracle.records import Record
from suites.mutations.buckets import failures_by_bucket
from suites.mutations.causes import BUCKETS, CAUSES, UNKNOWN, Cause

_BY_WORD = {cause.word: cause for cause in CAUSES}


def causes_of(bucket: str) -> tuple[Cause, ...]:
    """The causes of a kind of failure, the likeliest first: those of the longest prefix that is listed. Empty where none is."""
    found = max((prefix for prefix in BUCKETS if bucket.startswith(prefix)), key=len, default="")
    return tuple(_BY_WORD[word] for word in BUCKETS.get(found, ()))


def by_bucket(records: Iterable[Record], subject: str) -> list[dict[str, object]]:
    """Kinds of failure of the subject, the commonest first, with the first program that shows each."""
    lines: list[dict[str, object]] = []
    for bucket, members in failures_by_bucket(records, subject).items():
        causes = causes_of(bucket)
        lines.append(
            {
                "symptom": bucket,
                "programs": len(members),
                "example": members[0].name,
                "causes": " ".join(cause.word for cause in causes) or UNKNOWN,
                "regressions": " ".join(name for cause in causes for name in cause.regressions),
            }
        )
    return lines


def by_cause(buckets: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """All causes, with the kinds of failure they may show as."""
    return [
        {
            "cause": cause.word,
            "stage": cause.stage,
            "what": cause.line,
            "kinds": sum(cause.word in str(line["causes"]).split() for line in buckets),
            "regressions": " ".join(cause.regressions),
        }
        for cause in CAUSES
    ]
