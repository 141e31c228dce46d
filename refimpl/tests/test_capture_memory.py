"""Where inputs are in memory, from call to call: captured and compiled ahead of time, against the function run by CPython.

Segments whose graph writes to inputs, or looks at memory beside them, must not serve inputs that lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.capturing import same

Inputs = Callable[[], tuple[torch.Tensor, ...]]


def apart() -> Any:
    return torch.arange(4.0), torch.ones(4)


def in_one(shift: int, size: int = 4) -> Inputs:
    def make() -> Any:
        memory = torch.arange(size + 3.0)
        return memory[:size], memory[shift : shift + size]

    return make


def at(offset: int, size: int = 4) -> Inputs:
    return lambda: (torch.arange(20.0)[offset : offset + size],)


def scales_first(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x + y, y[1:]


def writes_through_a_view(x: Any, y: Any) -> Any:
    x.unsqueeze(0).add_(1)
    return y * 3


def writes_to_one_element(x: Any, y: Any) -> Any:
    x[y.argmax()].neg_()  # an index that is a tensor of no dimensions: a view
    return x * 2


def writes_out(x: Any, y: Any) -> Any:
    torch.add(x, 1, out=x)
    return y.sum()


def every_second(x: Any) -> Any:
    return x.as_strided((2,), (2,))


def writes_beside(x: Any) -> Any:
    x.as_strided((3,), (1,), 2).add_(1)
    return x + 0


def begins_at_zero(x: Any) -> Any:
    return torch.as_strided(x[1:], (2,), (1,)), x.as_strided((2,), (1,), 1) * 2


def turned(x: Any) -> Any:
    x.unsqueeze_(0)
    return x.storage_offset(), x.sum()


PAIRS = (apart, in_one(0), in_one(1), apart, in_one(3), in_one(1, size=5), in_one(0))
NOT_BY_ARGUMENTS = (writes_to_one_element,)  # it reads data, where capture breaks
WRITING = (scales_first, writes_through_a_view, writes_to_one_element, writes_out)
OFFSETS = (at(3), at(0), at(1), at(5), at(0), at(2, size=6))
PROGRAMS: list[tuple[Callable[..., Any], tuple[Inputs, ...]]] = [
    *((program, PAIRS) for program in WRITING),
    *((program, PAIRS[::-1]) for program in WRITING),
    *((program, OFFSETS) for program in (every_second, writes_beside, begins_at_zero, turned)),
    *((program, OFFSETS[::-1]) for program in (every_second, writes_beside, begins_at_zero, turned)),
]
CAPTURED = {
    "by capture": lambda f, d: with_options(f, CaptureOptions(backend=aot_eager, dynamic=d, recompile_limit=20))
}
COMPILED = {"by arguments": lambda f, d: compile_aot(f, dynamic=bool(d))}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("way", [*CAPTURED, *COMPILED])
@pytest.mark.parametrize(("program", "calls"), PROGRAMS)
def test_inputs_may_lie_elsewhere_at_the_next_call(
    program: Callable[..., Any], calls: tuple[Inputs, ...], way: str, dynamic: bool | None
) -> None:
    if way in COMPILED and program in NOT_BY_ARGUMENTS:
        pytest.skip("a trace of all of it would have to read data")
    compiled = (CAPTURED | COMPILED)[way](program, dynamic)
    for number, make in enumerate(calls):
        given, expected = make(), make()
        assert same((compiled(*given), given), (program(*expected), expected)), number


def test_sharing_is_no_reason_to_capture_again_where_nothing_is_written() -> None:
    made = CaptureOptions(backend=aot_eager)
    captured = with_options(lambda x, y: x + y[0], made)
    for make in (apart, in_one(0), in_one(2)):
        captured(*make())
    (function,) = made.functions.values()
    assert len(function.cache.segments()) == 1


def test_gradients_of_a_write_reach_views_of_one_base() -> None:
    def program(x: Any, y: Any, z: Any) -> Any:
        x.mul_(z)
        return y * 2

    def run(function: Callable[..., Any], size: int) -> Any:
        leaf, factor = torch.arange(size + 2.0, requires_grad=True), torch.full((), 3.0, requires_grad=True)
        base = leaf * 1
        function(base[:size], base[2:], factor).sum().backward()
        return leaf.grad, factor.grad

    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=True))
    for size in (4, 6, 4):
        assert same(run(captured, size), run(program, size)), size


@pytest.mark.parametrize("has_view", [False, True])
def test_arguments_of_several_sizes_that_are_no_leaves_are_written_to(has_view: bool) -> None:
    """The write goes by a result that is the argument itself, so that the argument is as it was where the segment ends."""

    def program(x: Any) -> Any:
        torch.nn.functional.dropout(x, training=False).neg_()
        return x * 2

    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=True))
    for size in (2, 3):
        gradients = []
        for function in (captured, program):
            leaf = torch.arange(2.0 * size).reshape(2, size).requires_grad_()
            made = leaf * 3
            result = function(made[-1] if has_view else made)
            gradients.append((result.tolist(), torch.autograd.grad(result.sum() + made.sum(), leaf)[0].tolist()))
        assert gradients[0] == gradients[1]
