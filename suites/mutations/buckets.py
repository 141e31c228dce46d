"""Buckets: failures whose words are the same once numbers, names and sizes are taken out. One bucket, likely one cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from oracle.records import Record
from oracle.verdict import Status, Verdict

_VARYING = re.compile(
    r"0x[0-9a-fA-F]+|'cpu=[0-9a-f]+'|\[[^\[\]]*\]|\([-\d, ]*\)|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\bv\d+\b|\b(?:nan|inf)\b"
)
_LENGTH = 140


class Judged(Protocol):
    """A record, or a case that was judged just now."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def traceback(self) -> str: ...


def bucket_of(record: Judged) -> str:
    """Status and generalised symptom; of an exception that a compiler wraps, the innermost message."""
    verdict = record.verdict
    text = verdict.symptom.partition(": ")[2] or verdict.symptom
    if verdict.status is Status.FAIL_TO_RUN and (said := _innermost(record.traceback)):
        text = said
    elif " is " in text:  # what it is differs from program to program; which kind of thing differs does not
        text = re.sub(r" is .*?, but should be .*", " differs", text) if _is_value(verdict.status) else text
    return f"{verdict.status.value}: {_VARYING.sub('#', text)[:_LENGTH]}"


def failures_by_bucket(records: Iterable[Record], subject: str) -> dict[str, list[Record]]:
    """Findings of one subject, the commonest first."""
    buckets: dict[str, list[Record]] = {}
    for record in records:
        if record.subject == subject and record.suite == "mutations" and record.verdict.status.is_finding:
            buckets.setdefault(bucket_of(record), []).append(record)
    return dict(sorted(buckets.items(), key=lambda item: -len(item[1])))


def _is_value(status: Status) -> bool:
    return status in (Status.FAIL_ACCURACY, Status.FAIL_GRAD, Status.FAIL_MUTATION, Status.FAIL_GUARD)


def _innermost(traceback: str) -> str:
    """The last line that names an exception, without the advice that follows it."""
    found = [
        line for line in traceback.splitlines() if re.match(r"[\w.]*(?:Error|Exception|Failed|Breach)\b: ?\S", line)
    ]
    inner = [line for line in found if "BackendCompilerFailed" not in line]
    chosen = (inner or found)[-1:] or [""]
    following = traceback.splitlines()
    if not inner and chosen[0] and chosen[0] in following:  # the wrapped exception stands on the next line
        rest = following[following.index(chosen[0]) + 1 :]
        return next((line for line in rest if line.strip()), chosen[0])
    return chosen[0]
