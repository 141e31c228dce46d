"""A subject that keeps memory of every call is found, and a cache of a few calls, or what the program keeps itself, is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import oracle
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

Backend = Callable[[torch.fx.GraphModule, Any], Callable[..., Any]]


def keeping(keep: Callable[[int, tuple[Any, ...], Any], None]) -> Backend:
    """A compiler whose graphs pass the number, the arguments and the results of each call to `keep`."""

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        count = 0

        def call(*args: Any) -> Any:
            nonlocal count
            result = gm(*args)
            keep(count, args, result)
            count += 1
            return result

        return call

    return backend


def verdict_of(
    keep: Callable[[int, tuple[Any, ...], Any], None], program: Any = None, *, grad: bool = False
) -> Verdict:
    x = torch.randn(4, requires_grad=grad)
    return oracle.check(program or (lambda x: x.sin() + 1), x, subjects=[keeping(keep)], isolate=False).popitem()[1]


KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    KEPT.clear()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (lambda number, args, result: KEPT.append(result), "output"),
        (lambda number, args, result: KEPT.append(args), "args[0]"),
        (lambda number, args, result: KEPT.append([one.detach()[1:] for one in result]), "output"),
        (lambda number, args, result: KEPT.append(KEPT[-1:] + list(result)), "output"),
    ],
)
def test_what_every_call_leaves_behind_is_found(keep: Any, told: str, grad: bool) -> None:
    verdict = verdict_of(keep, grad=grad)
    assert verdict.status is Status.FAIL_STATE
    assert "of 9 calls stay in memory" in verdict.symptom
    held = verdict.symptom.partition("in eager they do not: ")[2].split(", ")
    assert told in held
    assert len(held) == 1 or grad  # a result's graph holds what the backward needs
    assert symptom_of(verdict).kind == "leak"


def of_last(count: int) -> Callable[[int, tuple[Any, ...], Any], None]:
    """Keeps the results of so many last calls."""
    kept: deque[Any] = deque(maxlen=count)
    return lambda number, args, result: kept.append((args, result))


def keep_first_many(number: int, args: Any, result: Any) -> None:
    if number < 25:
        KEPT.append(result)


def keep_one_in(calls: int) -> Callable[[int, tuple[Any, ...], Any], None]:
    """Keeps the results of the first 25 calls, and then of one in so many, for ever."""

    def keep(number: int, args: Any, result: Any) -> None:
        if number < 25 or number % calls == 0:
            KEPT.append(result)

    return keep


@pytest.mark.parametrize("keep", [of_last(10), of_last(50), keep_first_many])
def test_a_cache_with_an_end_is_no_leak(keep: Any) -> None:
    assert verdict_of(keep).status is Status.PASS


@pytest.mark.parametrize("keep", [of_last(80), of_last(1000), keep_one_in(2), keep_one_in(20)])
def test_growth_that_does_not_end_in_a_hundred_calls_is_a_leak(keep: Any) -> None:
    assert symptom_of(verdict_of(keep)).kind == "leak"


def test_a_longer_look_that_would_cost_too_much_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracle.leaks._MOST_BYTES", 100)  # the results and arguments of three calls
    assert symptom_of(verdict_of(of_last(10))).kind == "leak"


def keep_first(number: int, args: Any, result: Any) -> None:
    if number == 0:
        KEPT.append((args, result))


def keep_while_compiling(number: int, args: Any, result: Any) -> None:
    if number < 4:
        KEPT.append((args, result))


@pytest.mark.parametrize(
    "keep",
    [
        of_last(1),
        of_last(6),
        keep_first,
        keep_while_compiling,
        lambda number, args, result: KEPT.append([one.clone() for one in result][:0]),
    ],
)
def test_what_does_not_grow_is_no_leak(keep: Any) -> None:
    assert verdict_of(keep).status is Status.PASS


def test_what_the_program_keeps_itself_is_no_leak() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        torch._dynamo.graph_break()
        KEPT.append(y)
        return y.cos()

    assert verdict_of(lambda number, args, result: None, program).status is Status.PASS
    # ... but what a compiler keeps beside it is.
    found = verdict_of(lambda number, args, result: KEPT.append(args), program)
    assert found.symptom.endswith("args[0]")
