"""Errors of the tool itself, kept apart from findings about a subject.

`UsageError` is what the user can mend (exit code 2); `InternalError` is our bug (exit code 3).
A subject's failure is never one of these: it is an `Outcome`.
"""

from __future__ import annotations


class TorchOracleError(Exception):
    """Base of every error this tool raises on purpose."""

    exit_code = 3


class UsageError(TorchOracleError):
    """Bad input or environment: says what was seen, what was expected and what to do."""

    exit_code = 2

    def __init__(self, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{seen}\n  expected: {expected}\n  what to do: {do}")
        self.seen = seen
        self.expected = expected
        self.do = do


class InternalError(TorchOracleError):
    """A broken invariant of ours. Caught only at the process edge."""

    exit_code = 3
