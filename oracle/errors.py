"""Errors of the tool itself. A subject's failure is never one of these: it is an `Outcome`.

`UsageError` is one that the user can fix (exit code 2); `InternalError` is our bug (exit code 3).
"""

from __future__ import annotations


class TorchOracleError(Exception):
    """Base of every error this tool raises on purpose."""

    exit_code = 3


class UsageError(TorchOracleError):
    """Bad input or environment. The message says what was seen, what was expected and what to do."""

    exit_code = 2

    def __init__(self, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{seen}\n  expected: {expected}\n  what to do: {do}")
        self.seen = seen
        self.expected = expected
        self.do = do


class InternalError(TorchOracleError):
    """A violated invariant of our own code. Caught only at the process edge."""

    exit_code = 3
