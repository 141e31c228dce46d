"""Graph breaks in inlined functions: with `nested_graph_breaks` the function and its callers continue after the break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.capture.entry_points.decorators import disable_nested_graph_breaks, error_on_graph_break, graph_break
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, same
from refimpl.tests.documentation.example import Graphs

Program = Callable[[torch.Tensor], Any]


def broken(x: Any) -> Any:
    y = x + 1
    graph_break()
    return y * 2


def two_calls_deep(x: Any) -> Any:
    def middle(x: Any) -> Any:
        return broken(x - 1) + 7

    return middle(x * 2) / 2


def broken_at_two(x: Any, step: int) -> Any:
    x = x * 2 + step
    if step == 2:
        graph_break()
    return x - 1


def in_one_round_of_a_loop(x: Any) -> Any:
    for step in range(4):
        x = broken_at_two(x, step)
    return x


def on_data(x: Any) -> Any:
    if x.sum() > 0:
        return x * 2
    return x - 2


def branches_on_data(x: Any) -> Any:
    return on_data(x) + on_data(-x)


def shares_a_cell(x: Any) -> Any:
    count = 0

    def step(value: Any) -> Any:
        nonlocal count
        count += 1
        value = value + count
        graph_break()
        return value * count

    return step(step(x)), count


def without_gradients_inside(x: Any) -> Any:
    def inner(v: Any) -> Any:
        with torch.no_grad():
            w = v * 2
            graph_break()
            w = w + 1
        return v + w

    return inner(x * 3) + 1


def without_gradients_outside(x: Any) -> Any:
    with torch.no_grad():
        a = broken(x)
    return a + x


def in_a_decorated_function(x: Any) -> Any:
    @torch.no_grad()
    def inner(v: Any) -> Any:
        v = v * 2
        graph_break()
        return v + 1

    return inner(x) + x


def every_kind_of_argument(x: Any) -> Any:
    def inner(a: Any, *rest: Any, k: Any = 1, **named: Any) -> Any:
        a = a + k + len(rest)
        graph_break()
        return a * named["z"]

    named = {"z": 2}
    return inner(x, 1, 2, k=3, z=4) + inner(*[x], **named)


def appends_to_a_list(x: Any) -> Any:
    found: list[Any] = []

    def inner(value: Any) -> None:
        found.append(value * 2)
        graph_break()
        found.append(value * 3)

    inner(x + 1)
    inner(x - 1)
    return sum(found), len(found)


def a_recursion(x: Any) -> Any:
    def descend(x: Any, depth: int) -> Any:
        if depth == 0:
            graph_break()
            return x + 1
        return descend(x * 2, depth - 1) - depth

    return descend(x.sin(), 3).cos()


class Base:
    def step(self, x: Any) -> Any:
        x = x + 1
        graph_break()
        return x * 2


class Derived(Base):
    def step(self, x: Any) -> Any:
        return super().step(x - 3) + 5


def a_method_of_a_base(x: Any) -> Any:
    return Derived().step(x * 3) - 1


def raises(x: Any) -> Any:
    x = x + 1
    graph_break()
    raise ValueError("four")


def an_error_for_the_caller(x: Any) -> Any:
    y = x * 2
    try:
        raises(y)
    except ValueError as error:
        return y + len(str(error))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        x = self.linear(x)
        graph_break()
        return x.relu()


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x) + 1) * 2


NETWORK = Network()


def modules(x: Any) -> Any:
    return NETWORK(x * 2) + 1


# The graphs that torch.compile makes too, in version 2.13: without and with nested breaks.
COUNTED: dict[Program, tuple[int, int]] = {
    two_calls_deep: (6, 2),
    branches_on_data: (5, 3),
    shares_a_cell: (4, 3),
    without_gradients_inside: (4, 2),
    without_gradients_outside: (3, 2),
    in_a_decorated_function: (3, 2),
    every_kind_of_argument: (5, 3),
    appends_to_a_list: (7, 3),
    modules: (6, 3),
}


def observed(function: Callable[..., Any], *args: Any) -> Any:
    """The result with the gradients of the arguments and of the network."""
    given = [arg.clone().requires_grad_() for arg in args]
    result = function(*given)
    first = result[0] if isinstance(result, tuple) else result
    if first.requires_grad:
        first.sum().backward()
    gradients = [leaf.grad for leaf in (*given, *NETWORK.parameters())]
    NETWORK.zero_grad()
    return result, gradients


INPUTS = tuple((torch.full((2, 2), value),) for value in (1.0, 2.0))


@pytest.mark.fractional
@pytest.mark.parametrize("nests", [False, True], ids=["apart", "nested"])
@pytest.mark.parametrize("program", COUNTED, ids=lambda program: program.__name__)
def test_there_are_as_many_graphs_as_upstream_makes(program: Program, nests: bool) -> None:
    with config.patch(nested_graph_breaks=nests):
        recorder = assert_same_as_eager(program, calls=INPUTS, observed=observed)
    assert len(recorder.graphs) == COUNTED[program][nests]


@pytest.mark.fractional
@IN_EVERY_MODE
@pytest.mark.parametrize(
    "program",
    [*COUNTED, in_one_round_of_a_loop, a_recursion, a_method_of_a_base, an_error_for_the_caller],
    ids=lambda program: program.__name__,
)
def test_a_program_may_break_at_every_instruction_of_its_functions(program: Program, mode: str) -> None:
    with config.patch(nested_graph_breaks=True):
        assert_same_as_eager(program, mode, calls=INPUTS, observed=observed)


def test_rounds_of_a_loop_before_the_break_are_in_one_graph() -> None:
    """The first two rounds, the function that breaks in the third with two graphs, and the rest."""
    recorder = assert_same_as_eager(in_one_round_of_a_loop, calls=INPUTS, observed=observed)
    assert len(recorder.graphs) == 4


def generator(x: Any) -> Any:
    yield x + 1
    graph_break()
    yield x * 2


class Number:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __add__(self, other: Any) -> Any:
        tripled = self.x * 3
        graph_break()
        return tripled - other

    @property
    def doubled(self) -> Any:
        doubled = self.x * 2
        graph_break()
        return doubled + 1


def a_generator_below(x: Any) -> Any:
    def inner(x: Any) -> Any:
        total = x + 1
        for value in generator(total):
            total = total + value
        return total * 2

    return inner(x * 2)


def an_operator_below(x: Any) -> Any:
    return (Number(x * 2) + 1) * 2


def a_property_below(x: Any) -> Any:
    return Number(x * 2).doubled - 1


@pytest.mark.parametrize("program", [a_generator_below, an_operator_below, a_property_below])
def test_a_break_outside_of_plain_calls_ends_the_graph_before_them(program: Program) -> None:
    with config.patch(nested_graph_breaks=True):
        recorder = assert_same_as_eager(program, calls=INPUTS, observed=observed)
    assert len(recorder.graphs) <= 2


def test_an_error_after_the_break_reaches_the_caller_s_handler_each_time() -> None:
    def inner(x: Any, index: Any) -> Any:
        x = x + 1
        graph_break()
        return x[index] * 2

    def program(x: Any, index: Any) -> Any:
        try:
            return inner(x * 2, index)
        except IndexError as error:
            return str(error)

    calls = [(torch.arange(3.0), index) for index in (0, 5, 2, 7)]
    with config.patch(nested_graph_breaks=True):
        assert_same_as_eager(program, calls=calls)


def test_an_error_after_the_break_has_the_program_s_frames() -> None:
    def inner(x: Any) -> Any:
        graph_break()
        raise KeyError("lost")

    def program(x: Any) -> Any:
        return inner(x * 2)

    with config.patch(nested_graph_breaks=True):
        captured, _, _ = captured_with(program)
        for _ in range(2):
            with pytest.raises(KeyError, match="lost") as caught:
                captured(torch.ones(2))
            names = [entry.name for entry in caught.traceback]
            assert names[-2:] == ["program", "inner"]


def test_a_frame_that_waits_is_guarded() -> None:
    """The second graph depends on a variable of the outer function, which is another one in the third call."""

    def program(x: Any, scale: Any) -> Any:
        return broken(x) * scale

    calls = [(torch.ones(2), scale) for scale in ("a", "a", 2.0, 3.0, 2.0)]
    with config.patch(nested_graph_breaks=True):
        captured, recorder, _ = captured_with(program)
        for x, scale in calls:
            if isinstance(scale, str):
                with pytest.raises(TypeError):
                    captured(x, scale)
            else:
                assert same(captured(x, scale), program(x, scale))
    assert len(recorder.graphs) == 1 + 3  # after the break: one that ends before the error, and one for each number


def test_a_recursion_without_end_raises_what_eager_raises() -> None:
    def program(x: Any) -> Any:
        return program(x)

    with config.patch(nested_graph_breaks=True), pytest.raises(RecursionError):
        captured_with(program)[0](torch.ones(1))


def test_breaks_do_not_nest_where_the_program_says_so() -> None:
    @disable_nested_graph_breaks
    def decorated(x: Any) -> Any:
        return broken(x - 1) + 7

    def in_a_block(x: Any) -> Any:
        with disable_nested_graph_breaks():
            return broken(x - 1) + 7

    for function in (decorated, in_a_block):

        def program(x: Any, function: Program = function) -> Any:
            return function(x * 2) / 2

        with config.patch(nested_graph_breaks=True):
            recorder = assert_same_as_eager(program, calls=INPUTS, observed=observed)
        assert len(recorder.graphs) == 6


def test_breaks_do_not_nest_in_what_a_waiting_frame_calls_next() -> None:
    """The first call breaks and its caller waits; the second, in a block where breaks do not nest, ends the graph before it."""

    def program(x: Any) -> Any:
        x = broken(x)
        with disable_nested_graph_breaks():
            x = broken(x * 3)
        return broken(x - 1) * 5

    with config.patch(nested_graph_breaks=True):
        recorder = assert_same_as_eager(program, calls=INPUTS, observed=observed)
    codes = [[node.target.__name__ for node in graph.graph.nodes if callable(node.target)] for graph in recorder.graphs]
    assert codes == [["add"], ["mul", "mul"], ["add"], ["mul"], ["sub", "add"], ["mul", "mul"]]


def test_breaks_nest_again_behind_a_block_where_they_do_not() -> None:
    def program(x: Any) -> Any:
        with disable_nested_graph_breaks():
            x = x - 1
        return two_calls_deep(x)

    with config.patch(nested_graph_breaks=True):
        recorder = assert_same_as_eager(program, calls=INPUTS, observed=observed)
    assert len(recorder.graphs) == 2


def test_a_forbidden_break_is_an_error_whether_breaks_nest_or_not() -> None:
    def program(x: Any) -> Any:
        with error_on_graph_break(True):
            return broken(x)

    with config.patch(nested_graph_breaks=True):
        with pytest.raises(Unsupported):
            compile(program, backend=Graphs())(torch.ones(2))
        with pytest.raises(Unsupported):
            compile(two_calls_deep, backend=Graphs(), fullgraph=True)(torch.ones(2))
