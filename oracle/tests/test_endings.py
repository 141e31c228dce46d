"""How the end of a run is reported, and which end is the verdict."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracle.judge.endings import ending_text, exception_text
from oracle.observe.outcome import Crashed, Outcome, OutOfMemory, TimedOut
from oracle.tests.outcomes import judged, observation, raised, returned, returned_calls
from oracle.verdict import Status

X = torch.arange(4.0)


def text_of(message: str, kind: type[Exception] = ValueError) -> str:
    return exception_text(raised(kind(message)).exception)


@pytest.mark.parametrize(
    ("message", "headline"),
    [
        ("", "''"),
        ("\n  \n", "''"),
        ("  one \n two", "'one'"),
        ("backend raised:\nKeyError: 'x'\nmore", "\"backend raised: KeyError: 'x'\""),
        ("backend raised:", "'backend raised:'"),
        ("a raised: b\nc", "'a raised: b'"),
        ("C++ compile error\nfoo.cpp:1:2: error: no such file\nb: error: second", "'C++ compile error: no such file'"),
        ("C++ compile error\nnothing known", "'C++ compile error'"),
        ("x" * 160, repr("x" * 160)),
        ("x" * 161, repr("x" * 157 + "...")),
    ],
)
def test_an_exception_is_told_by_the_line_that_says_what_happened(message: str, headline: str) -> None:
    assert text_of(message) == f"ValueError in call ({headline})"


def test_the_module_of_an_exception_is_told_unless_it_is_built_in() -> None:
    error = torch.linalg.LinAlgError("x")
    kind = type(error)
    assert exception_text(raised(error).exception) == f"{kind.__module__}.{kind.__qualname__} in call ('x')"
    assert text_of("x", KeyError) == "KeyError in call (\"'x'\")"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (returned(X), "a return"),
        (raised(ValueError("x"), phase="backward"), "ValueError in backward ('x')"),
        (Crashed(signal=11, exit_code=None, stage="call", traceback=""), "a dead process"),
        (TimedOut(seconds=1.0, stage="call", traceback=""), "no end in time"),
        (OutOfMemory(bytes=1, stage="call"), "out of memory"),
    ],
)
def test_every_end_has_words(outcome: Outcome, text: str) -> None:
    assert ending_text(outcome) == text
    verdict = judged(returned(X), returned(X), eager_again=outcome)
    if text != "a return":
        assert verdict.symptom == f"eager's second run is {text}, but should be a return"


def test_a_dead_process_without_a_signal_has_an_exit_code() -> None:
    verdict = judged(returned(X), Crashed(signal=None, exit_code=3, stage="compile", traceback=""))
    assert verdict.symptom == "outcome is a dead process (exit code 3) in compile, but should be a result"


@pytest.mark.parametrize(
    ("subject", "symptom"),
    [
        (raised(KeyError("y")), "exception is KeyError in call (\"'y'\"), but should be ValueError in call ('x')"),
        (
            raised(ValueError("x"), call=1, calls=(observation(X),)),
            "exception is ValueError in call ('x') in call 1, but should be ValueError in call ('x')",
        ),
        (returned(X), "outcome is a return, but should be ValueError in call ('x')"),
    ],
)
def test_another_end_than_eagers_exception_is_told(subject: Outcome, symptom: str) -> None:
    verdict = judged(raised(ValueError("x")), subject, expects_raise=True)
    assert (verdict.status, verdict.call) == (Status.FAIL_EXCEPTION, 0)
    assert verdict.symptom == f"call 0: {symptom}"


class NarrowError(ValueError):
    """Derived from eager's."""


def test_an_exception_of_another_type_that_agrees_is_explained_and_counted() -> None:
    eager = raised(ValueError("x"))
    same = judged(eager, eager, expects_raise=True)
    assert (same.status, same.explained, same.compared.others) == (Status.PASS, (), 1)
    narrow = judged(eager, raised(NarrowError("x")), expects_raise=True)
    assert narrow.status is Status.PASS
    (explained,) = narrow.explained
    assert explained.startswith("call 0: exception is ")
    assert explained.endswith("NarrowError, caught by what catches ValueError")


def test_calls_that_are_missing_without_an_exception_are_told() -> None:
    eager, subject = returned_calls(observation(X), observation(X)), returned(X)
    verdict = judged(eager, subject)
    assert (verdict.status, verdict.call) == (Status.FAIL_TO_RUN, 1)
    assert verdict.symptom == "call 1: number of calls observed is 1, but should be 2"


def test_an_exception_that_rounding_explains_is_the_verdict_unless_something_is_wrong_before() -> None:
    error = raised(ValueError("of 2"), call=1, calls=(observation(X),))
    eager = returned_calls(observation(X), observation(X))
    options: dict[str, Any] = {"truth": error, "noise": [error]}
    verdict = judged(eager, error, **options)
    assert (verdict.status, verdict.call) == (Status.PASS_DUE_TO_SKIP, 1)
    text = "outcome is ValueError in call ('of 2'), which eager itself raises in fp64 and under rounding noise"
    assert verdict.symptom == f"call 1: {text}"
    assert verdict.explained == (f"call 1: {text}",)
    wrong = raised(ValueError("of 2"), call=1, calls=(observation(X + 1),))
    assert judged(eager, wrong, **options).status is Status.FAIL_ACCURACY
    assert judged(eager, error, **options, is_random=True).status is Status.FAIL_TO_RUN
