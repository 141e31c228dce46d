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


_LAST: deque[Any] = deque(maxlen=1)
_FEW: deque[Any] = deque(maxlen=6)


def keep_first(number: int, args: Any, result: Any) -> None:
    if number == 0:
        KEPT.append((args, result))


def keep_while_compiling(number: int, args: Any, result: Any) -> None:
    if number < 4:
        KEPT.append((args, result))


@pytest.mark.parametrize(
    "keep",
    [
        lambda number, args, result: _LAST.append((args, result)),
        lambda number, args, result: _FEW.append((args, result)),
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
