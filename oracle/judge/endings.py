"""Compare how two runs end: by a return, an exception or a dead process."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace

from typing_extensions import assert_never

from oracle.judge.findings import FindingsBuilder
from oracle.observe.outcome import Crashed, ExceptionFacts, Outcome, OutOfMemory, Raised, Returned, TimedOut
from oracle.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the two runs ended differently."""

    status: Status
    call: int
    symptom: str


def compare_endings(eager: Raised | Returned, subject: Raised | Returned, builder: FindingsBuilder) -> Ending | None:
    """The difference between two endings; None if both runs returned from every call or raised alike in the same call."""
    if isinstance(subject, Raised):
        seen = subject.exception
        if isinstance(eager, Returned) or seen.call < eager.exception.call:
            status = Status.OOM if seen.is_out_of_memory else Status.FAIL_TO_RUN
            return Ending(
                status=status, call=seen.call, symptom=f"outcome is {exception_text(seen)}, but should be a return"
            )
        expected = eager.exception
        if seen.call > expected.call or not catches(expected, seen):
            at_other_call = f" in call {seen.call}" if seen.call != expected.call else ""
            return Ending(
                status=Status.FAIL_EXCEPTION,
                call=expected.call,
                symptom=f"exception is {exception_text(seen)}{at_other_call}, but should be {exception_text(expected)}",
            )
        builder.count(others=1)
        if seen.type_name != expected.type_name:
            builder.explain(
                expected.call, f"exception is {seen.type_name}, caught by what catches {expected.type_name}"
            )
        return None
    if isinstance(eager, Raised):
        return Ending(
            status=Status.FAIL_EXCEPTION,
            call=eager.exception.call,
            symptom=f"outcome is a return, but should be {exception_text(eager.exception)}",
        )
    if len(eager.calls) != len(subject.calls):
        call = min(len(eager.calls), len(subject.calls))
        return Ending(
            status=Status.FAIL_TO_RUN,
            call=call,
            symptom=f"number of calls observed is {len(subject.calls)}, but should be {len(eager.calls)}",
        )
    return None


def rounded_ending(ending: Ending, seen: ExceptionFacts, builder: FindingsBuilder) -> Ending | None:
    """The ending of a subject whose exception eager raises too when it rounds differently. None if there are other findings."""
    text = f"outcome is {exception_text(seen)}, which eager itself raises in fp64 and under rounding noise"
    builder.explain(seen.call, text)
    return None if builder.findings else replace(ending, status=Status.PASS_DUE_TO_SKIP, symptom=text)


def catches(expected: ExceptionFacts, seen: ExceptionFacts) -> bool:
    """Whether a handler written for eager's exception catches the subject's.

    The subject's type must be eager's or derive from it, or derive from the most specific builtin type below Exception that
    eager's type derives from (LinAlgError -> RuntimeError): portable code catches that one.
    """
    ancestry = {_plain_name(name) for name in seen.ancestry}
    if _plain_name(expected.type_name) in ancestry:
        return True
    builtin = next((name for name in map(_plain_name, expected.ancestry) if name in _BUILTIN_EXCEPTIONS), None)
    return builtin is not None and builtin in ancestry


def _plain_name(name: str) -> str:
    return name.removeprefix("builtins.")


_BUILTIN_EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and value is not Exception
)


def exception_text(exception: ExceptionFacts) -> str:
    headline = _headline(exception.message)
    message = headline if len(headline) <= 160 else headline[:157] + "..."
    return f"{_plain_name(exception.type_name)} in {exception.phase} ({message!r})"


def _headline(message: str) -> str:
    """The first line of a message. If it only announces another error ("... raised:"), the line of that error is added."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].endswith("raised:") and len(lines) > 1:
        return f"{lines[0]} {lines[1]}"
    if lines[0].endswith("compile error"):
        said = next((line for line in lines if ": error: " in line), "")
        return f"{lines[0]}: {said.partition(': error: ')[2]}" if said else lines[0]
    return lines[0]


def crash_symptom(crash: Crashed) -> str:
    how = f"signal {crash.signal}" if crash.signal is not None else f"exit code {crash.exit_code}"
    return f"outcome is a dead process ({how}) in {crash.stage}, but should be a result"


def ending_text(outcome: Outcome) -> str:
    match outcome:
        case Returned():
            return "a return"
        case Raised(exception=exception):
            return exception_text(exception)
        case Crashed():
            return "a dead process"
        case TimedOut():
            return "no end in time"
        case OutOfMemory():
            return "out of memory"
        case _:
            assert_never(outcome)
