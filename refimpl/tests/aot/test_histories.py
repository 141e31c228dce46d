"""Results that share memory but have an autograd history each, and conjugated arguments that share memory with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.agreement import assert_agrees
from refimpl.tests.corpus.compare import assert_same, observe

Program = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ views by a user's Function


class Viewed(torch.autograd.Function):
    """Its gradient is not a view's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        return gradients[0] * 5


class Halves(torch.autograd.Function):
    """Two views, with gradients that are not a view's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x[:2], x[2:]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        return torch.cat([gradients[0] * 3, gradients[1]])


def parts(a: Tensor) -> Any:
    return Viewed.apply(a * 2).tensor_split(2)


def rows_in_another_order(a: Tensor) -> Any:
    v = Viewed.apply((a * 2).t())
    return v.unbind(), v.t()[1:]


def views_of_two(a: Tensor) -> Any:
    b = a * 2
    return Viewed.apply(b)[1:], Viewed.apply(b)[:, 0]


def beside_another_view(a: Tensor) -> Any:
    b = a * 2
    return b[:2], Viewed.apply(b)[1:], b.t()


def beside_the_whole(a: Tensor) -> Any:
    b = a * 2
    return Viewed.apply(b)[1:], b


def halves(a: Tensor) -> Any:
    return Halves.apply(a * 2)


def of_an_argument(a: Tensor) -> Any:
    return Viewed.apply(a)[1:], a[:1]


def of_a_written_argument(a: Tensor) -> Any:
    a.mul_(2)
    v = Viewed.apply(a)
    return v[0], v.t()


def _in_memory_of_its_own(graph_module: torch.fx.GraphModule, inputs: Any) -> Any:
    def run(*arguments: Any) -> list[Any]:
        return [v.clone() if isinstance(v, Tensor) else v for v in graph_module(*arguments)]

    return run


@pytest.mark.fractional
@pytest.mark.parametrize("backend", ["eager", _in_memory_of_its_own])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        parts, rows_in_another_order, views_of_two, beside_another_view, beside_the_whole, halves, of_an_argument,
        of_a_written_argument,
    ],
)  # fmt: skip
def test_what_a_function_views_shares_memory_wherever_the_graph_puts_it(
    program: Program, backend: Any, *, dynamic: bool
) -> None:
    def make() -> Any:
        source = torch.randn(4, 3, requires_grad=True)
        return [source], [source * 1]

    compiled = compile_aot(program, backend=backend, dynamic=dynamic)
    assert_same(observe(program, make), observe(compiled, make))


def test_what_only_functions_view_has_no_gradient_of_its_own() -> None:
    tangents: list[str] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: Any) -> Any:
        tangents.extend(n.name for n in graph_module.graph.nodes if n.op == "placeholder" and "tangents" in n.name)
        return graph_module

    first, second = compile_aot(parts, backend=backend)(torch.randn(4, 3, requires_grad=True))
    (first.sum() + second.sum()).backward()
    assert tangents == ["tangents_1", "tangents_2"]


# ---------------------------------------------------------------------------------------------------------- conjugated


def conjugated_is_squared(a: Tensor, b: Tensor) -> Any:
    b.square_()
    return a.expand_as(a)


def plain_is_written(a: Tensor, b: Tensor) -> Any:
    a.neg_()
    return b * a, a.conj()


def one_is_copied_to_the_other(a: Tensor, b: Tensor) -> Any:
    v = a.flatten()
    b.copy_(a)
    v.neg_()
    return v


def imaginary_part_is_filled(a: Tensor, b: Tensor) -> Any:
    b.add_(b.clone())
    v = a.conj().imag[..., :-1]
    v.fill_(0.5)
    return v * 2


def parts_of_the_conjugated(a: Tensor, b: Tensor) -> Any:
    b.add_(a)
    return b.real, b.imag * 2


def by_place(a: Tensor, b: Tensor) -> Any:
    a.add_(b)
    return b.as_strided((2, 2), (1, 2), 1)


CONJUGATED: list[Program] = [
    conjugated_is_squared,
    plain_is_written,
    one_is_copied_to_the_other,
    imaginary_part_is_filled,
    parts_of_the_conjugated,
    by_place,
]


@pytest.mark.fractional
@pytest.mark.parametrize("is_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("has_gradient", [False, True], ids=["plain", "gradient"])
@pytest.mark.parametrize("program", CONJUGATED, ids=lambda program: program.__name__)
def test_a_conjugated_argument_shares_memory(program: Program, has_gradient: bool, is_first: bool) -> None:
    def run(*arguments: Tensor) -> Any:
        return program(*(reversed(arguments) if is_first else arguments))

    def make() -> Any:
        source = torch.randn(2, 3, dtype=torch.complex64, requires_grad=has_gradient)
        memory = source * 1
        return [source], [memory.conj(), memory] if is_first else [memory, memory.conj()]

    assert_agrees(run, make)


def test_the_negated_part_of_an_argument_shares_memory() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        b.mul_(2)
        return a * 1, b[1:]

    def make() -> Any:
        source = torch.randn(2, 3, dtype=torch.complex64, requires_grad=True)
        memory = source * 1
        return [source], [memory, memory.conj().imag]

    assert_agrees(program, make)


# ------------------------------------------------------------------------------------- arguments that are views of one base


def test_a_history_that_one_view_gets_the_other_has_too() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> Any:
        v = a.unflatten(0, (-1, 1))
        b.mul_(c)
        return v.ravel()

    def make() -> Any:
        memory, source = torch.randn(3, 2), torch.randn(3, requires_grad=True)
        return [source], [memory[:, 0], memory[:, 1], source * 1]

    assert_agrees(program, make)


def test_a_view_of_nothing_gets_no_history() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        a.fill_(2)
        return (b * b).sin()

    def make() -> Any:
        source = torch.randn(1, 4, requires_grad=True)
        memory = source * 1
        return [source], [memory, memory[1:]]

    for run in (program, compile_aot(program)):
        (source,), arguments = make()
        result = run(*arguments)
        (gradient,) = torch.autograd.grad(result, source, torch.ones_like(result), allow_unused=True)
        assert gradient is not None
        assert not gradient.any()


def test_a_history_of_an_argument_that_overlaps_itself() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        b.as_strided_((2,), (1,), 0)
        b *= a.sum()
        return b

    def make() -> Any:
        source = torch.randn(2, 2, requires_grad=True)
        return [source], [source * 1, torch.randn(1, 4).as_strided((2, 2), (1, 1))]

    assert_agrees(program, make)


@pytest.mark.parametrize(
    "write",
    [lambda a, b: b.diagonal().addcmul_(a, a), lambda a, b: b[0].mul_(a[0]), lambda a, b: b.copy_(a.expand(2, 2))],
    ids=["diagonal", "row", "whole"],
)
@pytest.mark.parametrize(
    "memory",
    [lambda: torch.empty_strided((2, 2), (1, 1)).fill_(1), lambda: torch.ones(3).as_strided((2, 2), (1, 1)).detach()],
    ids=["own", "detached"],
)
def test_memory_that_overlaps_itself_gets_a_history(
    write: Callable[[Tensor, Tensor], Any], memory: Callable[[], Tensor]
) -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        write(a, b)
        return b.sum() * 2

    def make() -> Any:
        source = torch.randn(2, requires_grad=True)
        return [source], [source * 1, memory()]

    def gradient_through_memory(function: Program) -> Tensor | None:
        a, b = torch.tensor([2.0, 3.0], requires_grad=True), memory()
        function(a, b)
        (b * torch.tensor([[1.0, 10.0], [100.0, 1000.0]])).sum().backward()
        return a.grad

    assert_agrees(program, make)
    torch.testing.assert_close(gradient_through_memory(compile_aot(program)), gradient_through_memory(program))


def test_all_of_an_expanded_argument_is_filled() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        b.fill_(1.5)
        return a * 2

    def make() -> Any:
        memory = torch.randn(2, 2)
        return [], [memory, memory.expand(2, 2, 2)]

    assert_agrees(program, make)


def test_views_among_the_arguments_are_with_gradients_where_the_call_is_without() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        with torch.enable_grad():
            a.mul_(0.5)
        return b * 1

    def run(compiled: Any) -> Any:
        source = torch.arange(4.0, requires_grad=True)
        memory = source * 1
        part = memory[1:]
        with torch.no_grad():
            compiled(part, memory)
        return torch.autograd.grad(memory.sum(), source)[0].tolist()

    assert run(compile_aot(program)) == run(program) == [1.0, 0.5, 0.5, 0.5]


# -------------------------------------------------------------------------------------------------------- detached in place


# --------------------------------------------------------------------------------------- views of what is read as another dtype


def places_of_places(b: Tensor) -> Any:
    v = b.as_strided((2, 1), (1, 1))
    w = v.expand(-1, 3).as_strided((1, 2), (1, 2), 0)
    v.narrow(1, 0, 1).copy_(v)
    return w


@pytest.mark.parametrize("has_base", [False, True])
def test_gradients_end_where_the_viewed_tensor_ends(has_base: bool) -> None:
    def with_base(a: Tensor, b: Tensor) -> Any:
        return places_of_places(b)

    def make() -> Any:
        source = torch.randn(1, 4, dtype=torch.complex64, requires_grad=True)
        memory = source * 1
        arguments = [memory, torch.view_as_real(memory)]
        return [source], arguments if has_base else arguments[1:]

    assert_agrees(with_base if has_base else places_of_places, make)


def test_a_view_of_an_argument_that_becomes_a_leaf() -> None:
    def program(a: Tensor, b: Tensor) -> None:
        a.clamp_(-2, 2)
        a.requires_grad_()

    def run(compiled: Any) -> Any:
        memory = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        view = memory.mT
        compiled(memory, view)
        return memory.requires_grad, view.requires_grad, memory.tolist()

    assert run(compile_aot(program)) == run(program) == (True, True, [[0.0, 1.0], [2.0, 2.0]])


def view_of_what_is_written(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        v = y[0]
    y.mul_(3)
    return v


def view_beside_what_is_written(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        v = y[0]
    y.mul_(3)
    return y, v


def view_of_a_written_argument(x: Tensor) -> Any:
    with torch.no_grad():
        v = x[0]
    x.mul_(3)
    return v, x[1]


@pytest.mark.parametrize("way", ["aot", "captured"])
@pytest.mark.parametrize("program", [view_of_what_is_written, view_beside_what_is_written, view_of_a_written_argument])
def test_a_result_whose_gradient_autograd_forbids_has_no_other(program: Program, way: str) -> None:
    def outcomes(function: Program) -> list[Any]:
        w = torch.arange(3.0, requires_grad=True)
        x = w * 1
        results = function(x)
        found: list[Any] = []
        results = results if isinstance(results, tuple) else (results,)
        for result in results:
            try:
                (gradient,) = torch.autograd.grad((result * w).sum(), w, retain_graph=True)
                found.append(gradient.tolist())
            except RuntimeError as error:
                found.append(str(error)[:60])
        places = {result.untyped_storage().data_ptr() for result in (x, *results)}
        return [found, len(places), [(r.tolist(), r.requires_grad) for r in results]]

    expected = outcomes(program)
    assert "A view was created in no_grad mode" in str(expected[0])
    compiled = compile_aot(program) if way == "aot" else with_options(program, CaptureOptions(backend=aot_eager))
    assert outcomes(compiled) == expected


def _captured(function: Program) -> Program:
    return with_options(function, CaptureOptions(backend=aot_eager))


@pytest.mark.parametrize("of_leaf", [False, True])
@pytest.mark.parametrize("compiler", [compile_aot, _captured], ids=["aot", "capture"])
def test_a_view_without_gradients_of_a_view_that_is_a_leaf(compiler: Any, *, of_leaf: bool) -> None:
    """What such a view is of is the memory's owner, and requires what that does."""

    def results(function: Callable[..., Any]) -> list[bool]:
        owner = torch.ones(3, 4, requires_grad=of_leaf)
        with torch.no_grad():
            view = owner[:2].requires_grad_()
            return [view.requires_grad, *(made.requires_grad for made in function(view))]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t(), (x * 2).requires_grad_()

    assert results(compiler(program)) == results(program) == [True, of_leaf, True]
