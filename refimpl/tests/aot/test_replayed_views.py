"""Results that view an argument are made again as the program made them: from the geometry it had, by the chain of views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl import decomposition_table
from refimpl.pipeline import compile_aot

Program = Callable[[Tensor], Any]


def leaves(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize(
    "program",
    [
        lambda b: b[1:][1::2].as_strided((1, 2), (4, 2), 5),
        lambda b: b[:1].as_strided((2, 3), (4, 1), 0),
        lambda b: b.t()[1:].as_strided((2, 2), (1, 4)),
    ],
)
def test_as_strided_beyond_the_view_it_is_called_on_has_eager_s_gradient(program: Program) -> None:
    gradients = []
    for run in (compile_aot(program), program):
        leaf = torch.arange(8.0).view(2, 4).requires_grad_()
        gradients.append(torch.autograd.grad(run(leaf).sum(), leaf)[0])
    assert torch.equal(*gradients)


def test_what_was_written_is_viewed_from_its_base_as_autograd_does() -> None:
    def program(b: Tensor) -> Tensor:
        view = b.as_strided((3, 1), (2, 1), 0)
        view.mul_(2)
        return view

    gradients = []
    for run in (compile_aot(lambda base, b: program(b)), lambda base, b: program(b)):
        leaf = torch.arange(5.0).requires_grad_()
        base = leaf * 1
        result = run(base, base.as_strided((2, 2), (2, 1), 1))
        gradients.append(torch.autograd.grad(result.sum(), leaf)[0])
    assert torch.equal(*gradients)


def parts_that_are_no_views(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.ops.aten.unsafe_chunk(x, 2))


def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), x[1:].detach()


def parts_and_views_of_them(x: Tensor) -> tuple[Tensor, ...]:
    return (*x.split(2, 1), x.t()[1:], x.unbind()[1].unfold(0, 2, 1))


def a_written_part(x: Tensor) -> Tensor:
    part = torch.unsafe_split(x, 2)[0]
    part.mul_(2)
    return part


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("program", [parts_that_are_no_views, detached, parts_and_views_of_them, a_written_part])
def test_views_that_a_table_decomposes_are_what_the_program_called(
    program: Program, has_gradients: bool, dynamic: bool
) -> None:
    def observed(function: Program) -> list[Any]:
        x = torch.arange(16.0).reshape(4, 4).requires_grad_() * 1
        with torch.set_grad_enabled(has_gradients):
            results = leaves(function(x))
        return [(r.tolist(), r.requires_grad, r._is_view(), type(r.grad_fn).__name__ == "NoneType") for r in results]

    compiled = compile_aot(program, decompositions=decomposition_table, dynamic=dynamic)
    assert observed(compiled) == observed(program)


def reshaped_with_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        reshaped = x.reshape(2, 8)
        return reshaped, x[1:].detach().t()


@pytest.mark.parametrize("kind", ["leaf", "view", "negated", "history"])
def test_views_made_where_the_program_enables_gradients_have_them(kind: str) -> None:
    def observed(function: Program) -> Any:
        x = torch.arange(16.0).reshape(4, 4)
        x = {"view": x[:], "negated": torch._neg_view(x)}.get(kind, x).requires_grad_()
        x = x * 1 if kind == "history" else x
        with torch.no_grad():
            results = function(x)
        (gradient,) = torch.autograd.grad(results[0].sum(), x)
        return gradient.tolist(), [(r.tolist(), r.requires_grad, r._is_view()) for r in results]

    assert observed(compile_aot(reshaped_with_gradients)) == observed(reshaped_with_gradients)


def chunked(x: Tensor) -> Any:
    a, b, c, _ = x.chunk(4)
    return b, x.t(), a.t(), c


def chunked_intermediate(x: Tensor) -> Any:
    y = x * 1
    a, _ = y.chunk(2)
    (c, d), e = a.t().split(2), y.split(1)[3]
    return d, y, c.t(), e, d


def halved(x: Tensor) -> Any:
    return x.chunk(2)


def chunked_twice(x: Tensor) -> Any:
    return *x.chunk(2), *x.chunk(2)[1:], x.chunk(2)[1].t()


def intermediate_chunked_twice(x: Tensor) -> Any:
    y = x * 1
    return *y.chunk(2), *y.chunk(2), y


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        (chunked, torch.float32),
        (chunked_intermediate, torch.float32),
        (chunked_twice, torch.float32),
        (intermediate_chunked_twice, torch.float32),
        (halved, torch.float8_e4m3fn),
    ],
)
def test_results_of_one_view_call_have_one_step_of_autograd(program: Program, dtype: torch.dtype) -> None:
    def observed(function: Program) -> Any:
        x = torch.arange(16.0).reshape(4, 4).to(dtype).requires_grad_()
        results = leaves(function(x))
        kept = [r.grad_fn for r in results]  # what is dropped may leave its place to the next one
        steps, objects = [id(step) for step in kept], [id(r) for r in results]
        (gradient,) = torch.autograd.grad(results, x, [torch.ones(r.shape).to(dtype) for r in results])
        first_of = [[group.index(member) for member in group] for group in (steps, objects)]
        return first_of, gradient.tolist(), [r.tolist() for r in results]

    assert observed(compile_aot(program)) == observed(program)


COMPUTED: dict[str, Program] = {
    "a linear layer": lambda x: torch.nn.functional.linear(x[None], torch.ones(4, 3)),
    "matrices by a vector": lambda x: x.expand(2, 2, 3) @ torch.ones(3),
    "matrices by matrices": lambda x: x.expand(2, 2, 3) @ torch.ones(2, 3, 2),
    "a Kronecker product": lambda x: torch.kron(x, x),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "an unsafe view": lambda x: torch.ops.aten._unsafe_view.default(x * 2, [3, 2]),
    "a transposed image": lambda x: x.rot90(),
}


@pytest.mark.parametrize("is_decomposed", [False, True])
@pytest.mark.parametrize("name", COMPUTED)
def test_views_of_a_result_follow_a_write_to_it(name: str, is_decomposed: bool) -> None:
    """This holds also if kernels return a view that autograd does not know as one: gradients flow through the write."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = COMPUTED[name](x)
        return y, y.view(y.shape), y[..., :1]

    table = decomposition_table if is_decomposed else None
    found = []
    for function in (program, compile_aot(program, decompositions=table)):
        x = torch.linspace(0, 1, 6).view(2, 3).requires_grad_()
        y, *views = function(x)
        y.mul_(3)
        (gradient,) = torch.autograd.grad(torch.cat([v.flatten() for v in views]).sum(), x)
        found.append((gradient, [v._version for v in views] == [y._version] * 2))
    torch.testing.assert_close(found[1], found[0])


def _first_column(x: Tensor) -> Tensor:
    column = x[:, 0:1]
    column.neg_()
    return column


def _later_view(x: Tensor) -> Tensor:
    x.neg_()
    return x[:, 0:1]


def _view_of_result(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x * 2
    column = made[:, 0:1]
    made.neg_()
    return column, made


def _view_of_a_view(x: Tensor) -> Tensor:
    row = x[:, 0:1][0]
    x.neg_()
    return row


def _view_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        column = x[:, 0:1]
    column.neg_()
    return column


@pytest.mark.parametrize(
    "program", [_first_column, _later_view, _view_of_result, _view_of_a_view, _view_without_gradients]
)
def test_a_view_that_is_older_than_a_write_gets_a_history_with_its_base(program: Callable[..., Any]) -> None:
    """Autograd finds it by versions, when a gradient of the base is asked for later."""

    def seen(fn: Callable[..., Any]) -> Any:
        x = torch.ones(2, 3)
        result = fn(x)
        view, base = result if isinstance(result, tuple) else (result, x)
        base.requires_grad_()
        try:
            is_leaf = view.is_leaf
        except RuntimeError as error:
            return str(error).split(".")[0]
        if not is_leaf:
            (view * 3).sum().backward()
        return is_leaf, view.tolist(), None if base.grad is None else base.grad.tolist()

    assert seen(compile_aot(program)) == seen(program)
