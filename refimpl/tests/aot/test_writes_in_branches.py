"""Functions of torch.cond and while_loop that write to operands, closed-over tensors and buffers, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl._torch import BRANCHES_MAY_WRITE, storage_key
from refimpl._torch import hop_while_loop as while_loop
from refimpl.errors import NotFunctional
from refimpl.functionalize.errors import CannotFunctionalize
from refimpl.functionalize.schemas import is_mutating
from refimpl.tests.graphs import targets_of

pytestmark = pytest.mark.skipif(not BRANCHES_MAY_WRITE, reason="torch.cond refuses such functions before torch 2.13")
Tensor = torch.Tensor
X = torch.arange(6.0).reshape(2, 3) - 1
CALLS = (X, -X, X * 3)


class Counted(nn.Module):
    """A branch counts its calls, writes to a parameter and normalizes; a gradient passes around it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        def counted(a: Tensor) -> Tensor:
            self.get_buffer("count").add_(1)
            self.scale.mul_(0.5)
            return self.norm(a)

        with torch.no_grad():
            y = torch.cond(x.sum() > 0, counted, lambda a: a * 2, (x,))
        return y * x * self.scale


def operand(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a.add_(1) * 2, lambda a: a * 3, (x,))


def operand_that_is_closed_over(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a.add_(x.sum()) + x, lambda a: a + x.sub_(1), (x,))


def base_and_view(x: Tensor) -> Any:
    y = x * 2
    row = y[0]
    result = torch.cond(x.sum() > 0, lambda a: a + row.mul_(2) + y, lambda a: y.sub_(1) * row, (x,))
    return result, y, row * 1


def column(x: Tensor) -> Any:
    y = x * 2
    part = y[:, 0]
    return torch.cond(x.sum() > 0, lambda: part.add_(1) * 2, lambda: part * 1, ()), y


def elements(x: Tensor) -> Any:
    y = x * 2

    def write(a: Tensor) -> Tensor:
        y[0] = a[1]
        torch._foreach_add_([y], 1.0)
        return torch.sin(a, out=torch.empty(2, 3))

    return torch.cond(x.sum() > 0, write, lambda a: a * 3, (x,)), y


def result_that_is_the_operand(x: Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a.mul_(2), (x,))
    y.add_(1)
    return y * 1, x * 2


def twice(x: Tensor) -> Any:
    count, factor = torch.zeros(()), torch.ones(())
    for _ in range(2):
        x = torch.cond(x.sum() > 0, lambda a: a * count.add_(1), lambda a: a - factor.mul_(2), (x,))
    return x, count, factor


def within_another(x: Tensor) -> Any:
    y = x.sin()

    def outer(a: Tensor) -> Tensor:
        return torch.cond(a.max() > 4, lambda b: b * y.add_(1).sum(), lambda b: b - 1, (a,))

    return torch.cond(x.sum() > 0, outer, lambda a: a.cos(), (x,)), y * 1


def loop(x: Tensor) -> Any:
    total, y = torch.zeros(3), x * 1

    def body(i: int, a: Tensor) -> Any:
        total.add_(a[0])
        y[0].mul_(2)
        return i + 1, a * 2 + y

    return while_loop(lambda i, a: (i < 3) & (total.sum() < 50), body, (torch.tensor(0), x)), total, y


def loop_of_no_rounds(x: Tensor) -> Any:
    count = torch.zeros(())
    found = while_loop(lambda i, a: a.sum() < 6, lambda i, a: (i + count.add_(1), a.abs() * 2), (count + 1, x))
    return found, count


def loops_and_branches(x: Tensor) -> Any:
    total, rounds = x * 0, torch.zeros((), dtype=torch.int64)

    def inner(j: Tensor, b: Tensor) -> Any:
        rounds.add_(1)
        return j + 1, torch.cond(j < 1, lambda c: c + total.add_(c), lambda c: c * 2, (b,))

    def body(i: Tensor, a: Tensor) -> Any:
        _, b = while_loop(lambda j, b: j < 2, inner, (torch.tensor(0), a))
        total.mul_(2)
        return i + 1, b.clone()

    return while_loop(lambda i, a: i < 3, body, (torch.tensor(0), x)), total, rounds


def carried_in_place(x: Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.mul_(2).clone()), (torch.tensor(0), x)), x


def condition_that_writes(x: Tensor) -> Any:
    count = torch.zeros(())
    return while_loop(lambda a: count.add_(1) < 3, lambda a: (a * 2,), (x,)), count


def other_dtype(x: Tensor) -> Any:
    y = x * 1
    bits = y.view(torch.int32)
    return torch.cond(x.sum() > 0, lambda: bits.zero_().sum(), lambda: y.sum().long(), ()), y


def carried_in_place_with_more(x: Tensor) -> Any:
    """A buffer and a closed-over tensor are written too; the carry is one row of another tensor."""
    y, total = x * 1, torch.zeros(())

    def body(i: Tensor, row: Tensor, h: Tensor) -> Any:
        row.copy_(h)
        total.add_(row.sum())
        return i + 1, row.clone(), h * 2 + row

    return while_loop(lambda i, row, h: i < 3, body, (torch.tensor(0), y[0], x[1])), y, total


def no_round_in_place(x: Tensor) -> Any:
    return while_loop(lambda i, a: a.sum() > 1e6, lambda i, a: (i + 1, a.mul_(2).clone()), (torch.tensor(0), x)), x


def condition_and_body_that_write(x: Tensor) -> Any:
    count, total = torch.zeros(()), torch.zeros(3)

    def body(a: Tensor) -> Any:
        total.add_(a[0])
        return (a.add_(count).clone(),)

    return while_loop(lambda a: count.add_(1) < 4, body, (x,)), count, total, x


PROGRAMS: tuple[Callable[..., Any], ...] = (
    Counted, operand, operand_that_is_closed_over, base_and_view, column, elements, twice, within_another, loop,
    loop_of_no_rounds, loops_and_branches, carried_in_place, carried_in_place_with_more, no_round_in_place,
    condition_that_writes, condition_and_body_that_write, other_dtype,
)  # fmt: skip


def observed(made: Callable[..., Any], road: Callable[[Any], Any]) -> Any:
    """The results of three calls, what the arguments hold afterwards, and the state and its gradients."""
    torch.manual_seed(0)
    program = made() if isinstance(made, type) else made
    run, seen = road(program), []
    for x in CALLS:
        given = x.clone()
        if isinstance(program, nn.Module):
            result = run(given)
            result.sum().backward()
            state = [*program.buffers(), *program.parameters(), *(p.grad for p in program.parameters())]
        else:
            with torch.no_grad():
                result, state = run(given), []
        seen.append([t.clone() if isinstance(t, Tensor) else t for t in tree_leaves((result, given, state))])
    return seen


@pytest.fixture(scope="module")
def expected() -> Callable[[Callable[..., Any]], Any]:
    known: dict[Any, Any] = {}

    def of(program: Callable[..., Any]) -> Any:
        if program not in known:
            known[program] = observed(program, lambda given: given)
        return known[program]

    return of


@pytest.mark.parametrize("program", PROGRAMS)
def test_compile_aot(program: Any, expected: Any) -> None:
    torch.testing.assert_close(observed(program, refimpl.compile_aot), expected(program))


@pytest.mark.parametrize("program", [base_and_view, column, loop, carried_in_place, condition_that_writes])
def test_compile_aot_with_symbolic_sizes(program: Any, expected: Any) -> None:
    found = observed(program, lambda given: refimpl.compile_aot(given, dynamic=True))
    torch.testing.assert_close(found, expected(program))


@pytest.mark.parametrize(
    "program",
    [Counted, base_and_view, elements, within_another, loop, carried_in_place_with_more, condition_that_writes],
)
def test_capture(program: Any, expected: Any) -> None:
    found = observed(program, lambda given: refimpl.compile(given, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(found, expected(program))


def operand_returned_as_it_is(x: Tensor) -> Any:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda a: (y, a), lambda a: (y.sin(), a * 1), (x,)), y


@pytest.mark.parametrize("program", [result_that_is_the_operand, operand_returned_as_it_is])
@pytest.mark.parametrize(
    "road", [refimpl.compile_aot, lambda f: refimpl.compile(f, backend="aot_eager", fullgraph=True)]
)
def test_a_result_that_is_an_operand(program: Any, road: Any, expected: Any) -> None:
    torch.testing.assert_close(observed(program, road), expected(program))
    compiled = road(program)
    for x in CALLS:
        with torch.no_grad():
            found, like = (
                memories((given, function(given))) for function, given in ((compiled, x * 1), (program, x * 1))
            )
        assert found == like


def memories(values: Any) -> list[int]:
    """For each tensor the first that has the same memory."""
    keys = [storage_key(leaf) for leaf in tree_leaves(values)]
    return [keys.index(key) for key in keys]


@pytest.mark.parametrize("program", [base_and_view, loops_and_branches])
def test_the_graphs_of_the_functions_do_not_write(program: Any) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph_module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph_module)
        return graph_module

    with torch.no_grad():
        refimpl.compile_aot(program, backend=kept)(X.clone())
    inner = [module for module in graphs[0].modules() if isinstance(module, torch.fx.GraphModule)][1:]
    assert len(inner) >= 2
    assert not any(is_mutating(node) for module in inner for node in module.graph.nodes)


def test_a_trace_of_real_tensors_writes_as_often_as_the_program() -> None:
    """The trace runs each branch once to record it, and then runs the operator."""
    count, other = torch.zeros(()), torch.zeros(3)

    def program(x: Tensor) -> Any:
        def one(a: Tensor) -> Tensor:
            count.add_(1)
            return a * 2

        def two(a: Tensor) -> Tensor:
            other[1].sub_(1)
            return a * 3

        return torch.cond(x.sum() > 0, one, two, (x,))

    with torch.no_grad():
        traced = refimpl.make_fx(program)(X)
        assert (count, other.sum()) == (1, 0)
        traced(-X)
        traced(X)
    assert (count, other.sum()) == (2, -1)


def carried_and_closed_over(x: Tensor) -> Any:
    """The first round writes to what each round reads."""
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.mul_(2) + x), (torch.tensor(0), x)), x


def by_places_in_the_storage(x: Tensor) -> Any:
    y = x * 1
    return torch.cond(x.sum() > 0, lambda: y.as_strided((2,), (1,)).add_(1).sum(), lambda: y.sum(), ()), y


@pytest.mark.parametrize("program", [carried_and_closed_over, by_places_in_the_storage])
def test_other_writes_are_refused_by_name(program: Any) -> None:
    with torch.no_grad(), pytest.raises(CannotFunctionalize, match="writes to its operands or to captured tensors"):
        refimpl.compile_aot(program)(X.clone())


@pytest.mark.parametrize("program", [operand, loop, condition_that_writes])
def test_writes_are_refused_where_gradients_are_on(program: Any) -> None:
    for function in (program, refimpl.compile_aot(program)):
        with pytest.raises((NotFunctional, RuntimeError)):
            function(X.clone())


def test_a_graph_that_only_reads_has_no_further_results() -> None:
    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda: x.sin().add_(1), lambda: x.cos(), ())

    traced = refimpl.make_fx(program)(X)
    assert targets_of(traced).count(torch.ops.aten.copy_.default) == 0
