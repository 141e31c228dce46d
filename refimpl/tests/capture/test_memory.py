"""Where inputs are in memory, from call to call: captured and compiled ahead of time, against the function run by CPython.

Segments whose graph writes to inputs, or looks at memory beside them, must not serve inputs that lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import same

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


@pytest.mark.fractional
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


def pause() -> None:
    """Capture stops at what writes to a stream."""
    print(end="")


def computed(w: Any) -> Any:
    return torch.tanh(w).exp() + torch.sin(w * 3)


def computed_after_a_break(w: Any) -> Any:
    pause()
    return computed(w)


def in_one_graph(w: Any, write: Any) -> Any:
    result = computed(w)
    write(w)
    return result


def in_the_next_graph(w: Any, write: Any) -> Any:
    result = computed(w)
    pause()
    write(w)
    return result


def in_what_is_called_next(w: Any, write: Any) -> Any:
    def writes(w: Any) -> None:
        pause()
        write(w)

    result = computed(w)
    writes(w)
    return result


def by_the_caller(w: Any, write: Any) -> Any:
    result = computed_after_a_break(w)
    write(w)
    return result * 2


def by_steps(w: Any, write: Any) -> Any:
    result: Any = 0
    for _ in range(3):
        result = result + computed(w).sum()
        pause()
        write(w)
    return result


def though_kept_by_eager(w: Any, write: Any) -> Any:
    result = torch.sin(w)
    pause()
    write(w)
    return result


def steps(w: Any) -> None:
    with torch.no_grad():
        w -= 0.1


def turns_nothing(w: Any) -> None:
    with torch.no_grad():
        w.unfold(0, 0, 2).neg_()


def steps_behind_autograd(w: Any) -> None:
    w.data.mul_(2)


@pytest.mark.fractional
@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("backend", [aot_eager, triton])
@pytest.mark.parametrize("write", [steps, turns_nothing, steps_behind_autograd])
@pytest.mark.parametrize(
    "program", [in_one_graph, in_the_next_graph, in_what_is_called_next, by_the_caller, by_steps, though_kept_by_eager]
)
def test_leaves_may_be_written_by_the_program_before_the_backward(
    program: Any, write: Any, backend: Any, *, is_parameter: bool
) -> None:
    """If eager saves one, both refuse the backward, or both compute with its new values if autograd does not see the write."""
    results: list[Any] = []
    for run in (program, with_options(program, CaptureOptions(backend=backend))):
        w = torch.tensor([0.5, -1.0, 2.0]).requires_grad_()
        w = torch.nn.Parameter(w.detach()) if is_parameter else w
        result = run(w, write)
        if program is though_kept_by_eager and write is not steps_behind_autograd:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
        else:
            result.sum().backward()
        results.append((result.detach(), w.detach(), w.grad, w._version))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("is_called_first", [False, True])
def test_what_was_captured_alone_is_called_by_a_program_that_goes_on(*, is_called_first: bool) -> None:
    """What is captured where the program goes on does for both."""
    captured: list[int] = []

    def writes(w: Any) -> Any:
        result = computed_after_a_break(w)
        steps_behind_autograd(w)
        return result * 2

    def counted(graph_module: Any, examples: Any) -> Any:
        captured.append(len(examples))
        return aot_eager(graph_module, examples)

    gradients = []
    for options in (None, CaptureOptions(backend=counted)):
        called, alone = (f if options is None else with_options(f, options) for f in (writes, computed_after_a_break))
        w = torch.tensor([0.5, -1.0, 2.0]).requires_grad_()
        for function in (called, alone, called) if is_called_first else (alone, called, alone):
            function(w).sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    # The function and, behind its call, what writes; the function once more where it was captured alone.
    assert len(captured) == (2 if is_called_first else 3)


class Calls(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, w: Any) -> Any:
        return self.function(w)


def test_what_a_function_of_torch_calls_is_followed_by_the_program() -> None:
    gradients = []
    for options in (None, CaptureOptions(backend=aot_eager)):
        called = computed if options is None else with_options(computed, options)

        def writes(w: Any, called: Any = called) -> Any:
            result = torch.func.functional_call(Calls(called), {}, (w,))
            steps_behind_autograd(w)
            return result * 2

        program = writes if options is None else with_options(writes, options)
        w = torch.tensor([0.5, -1.0, 2.0]).requires_grad_()
        program(w).sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("is_followed", [False, True])
def test_of_leaves_copies_are_kept_where_the_program_goes_on_alone(*, is_followed: bool) -> None:
    def program(w: Any) -> Any:
        result = computed(w)
        if is_followed:
            pause()
        return result

    w = torch.ones(3, requires_grad=True)
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        with_options(program, CaptureOptions(backend=triton))(w)
    assert any(tensor.data_ptr() == w.data_ptr() for tensor in kept) is not is_followed
