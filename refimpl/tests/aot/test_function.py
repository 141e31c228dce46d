"""Compiled ahead of time, a program does what it does in eager mode: values, gradients, mutation, aliases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import refimpl
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.tests.agreement import assert_agrees


def two_arguments(requires_grad: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=requires_grad)
    y = torch.randn(3, 4, requires_grad=requires_grad)
    return [x, y], [x.add(1), y.add(1)]


def _one_view() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(4, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole[1:3], torch.ones(2, 4)]


def _overlapping(requires_grad: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(12, requires_grad=requires_grad)
    whole = base.add(1)
    return [base], [whole[:8], whole[4:]]


def _disjoint() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(12, requires_grad=True)
    whole = base.add(1)
    return [base], [whole[:6], whole[6:]]


def _base_and_view() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(3, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole.t()[:3], whole]


def _same_twice() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(4, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole, whole]


def _detached_alias() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(4, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole, whole.detach()]


def in_place(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x * y


def in_place_on_view(x: Any, y: Any) -> Any:
    x[0].add_(y[0])
    return x.sin(), y


def view_then_write(x: Any, y: Any) -> Any:
    v = x.view(-1)
    x.add_(1)
    return v * 2, v, y.t()


def siblings(x: Any, y: Any) -> Any:
    z = x * y
    return z.view(-1), z.t(), z[0]


def base_and_views(x: Any, y: Any) -> Any:
    z = x * y
    return z.view(-1), z, z.detach()


def unbound(x: Any, y: Any) -> Any:
    z = x * y
    a, b, c = z.unbind()
    return a, b * 2, c, y.split(2, 1)


def metadata(x: Any, y: Any) -> Any:
    x.t_()
    y.unsqueeze_(0)
    return x * 2


def metadata_and_data(x: Any, y: Any) -> Any:
    x.t_()
    x.mul_(3)
    return x + 1, x, y


def under_no_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
        v = x.view(-1)
    return x * y, v


def through_detach(x: Any, y: Any) -> Any:
    z = x * y
    x.detach().add_(1)
    return z + 1, x.detach()


def through_data(x: Any, y: Any) -> Any:
    x.data.add_(1)
    return y * 2


def copy_into(x: Any, y: Any) -> Any:
    x.copy_(y)
    return x, y + 1


def same_result_twice(x: Any, y: Any) -> Any:
    z = x * y
    return z, z, x, {"a": y, "b": [z, 3, None]}


def saved_then_written(x: Any, y: Any) -> Any:
    z = x.exp()
    z.mul_(2)
    return z + y


def inner_gradient(x: Any, y: Any) -> Any:
    with torch.enable_grad():
        a = x.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad((a * 3).sin().sum(), a)
    return g * y


def integers_and_floats(x: Any, y: Any) -> Any:
    return x.argmax(0), (x > 0), x * y, x.shape[0]


def fill_and_zero(x: Any, y: Any) -> Any:
    x[:, 1:3].zero_()
    x[:, ::2].fill_(5)
    return x * y


def write_other_dtype(x: Any, y: Any) -> Any:
    z = torch.zeros(3, 4, dtype=torch.float64)
    z.add_(x)
    return z, y


def foreach(x: Any, y: Any) -> Any:
    torch._foreach_add_([x, y], 2.0)
    return x * y


def returns_copy_source(x: Any, y: Any) -> Any:
    y.mul_(x)
    x.add_(y)
    return ()


def expanded(x: Any, y: Any) -> Any:
    z = (x * y).sum(0)
    return z.expand(5, 4), z


def complex_views(x: Any, y: Any) -> Any:
    z = torch.complex(x, y)
    torch.view_as_real(z)[..., 0].mul_(2)
    return z.abs(), z.real, z.imag


def nothing_with_gradient(x: Any, y: Any) -> Any:
    return x.detach() * 2, y.detach()


def random_numbers(x: Any, y: Any) -> Any:
    return torch.nn.functional.dropout(x, 0.5) * y + torch.rand_like(y)


def random_in_place(x: Any, y: Any) -> Any:
    z = x.clone()
    z.uniform_()
    return z * y


def out_argument(x: Any, y: Any) -> Any:
    z = torch.empty(3, 4)
    torch.mul(x.detach(), 2, out=z)
    return z * y


PROGRAMS = [
    in_place, in_place_on_view, view_then_write, siblings, base_and_views, unbound, metadata, metadata_and_data, under_no_grad,
    through_detach, through_data, copy_into, same_result_twice, saved_then_written, inner_gradient, integers_and_floats,
    fill_and_zero, write_other_dtype, foreach, returns_copy_source, expanded, complex_views, nothing_with_gradient,
    random_numbers, random_in_place, out_argument,
]  # fmt: skip
OPTIONS = [
    {"partition": "default"},
    {"partition": "min_cut"},
    {"partition": None},
    {"partition": "default", "dynamic": True},
    {"partition": "min_cut", "functionalization": "scatter"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_agrees_with_eager(program: Callable[..., Any], options: dict[str, Any]) -> None:
    assert_agrees(program, two_arguments, **options)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_without_gradients_agrees_with_eager(program: Callable[..., Any]) -> None:
    assert_agrees(program, lambda: two_arguments(requires_grad=False), partition="min_cut")


def write_first(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x.sum() + y.sum() * 3


def write_both(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(2)
    return x.sin().sum() + y.cos().sum(), y.view(-1)


def write_second_return_first(x: Any, y: Any) -> Any:
    y.mul_(3)
    return x, x[0], y + 1


def transpose_first(x: Any, y: Any) -> Any:
    x.t_()
    return x.sum() + y.sum()


ALIASED = [
    _overlapping,
    lambda: _overlapping(False),
    _disjoint,
    _base_and_view,
    _same_twice,
    _detached_alias,
    _one_view,
]
ALIASED_IDS = ["overlapping", "overlapping_no_grad", "disjoint", "base_and_view", "same_twice", "detached", "one_view"]


@pytest.mark.parametrize("make", ALIASED, ids=ALIASED_IDS)
@pytest.mark.parametrize("program", [write_first, write_both, write_second_return_first], ids=lambda p: p.__name__)
@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_aliased_arguments_agree_with_eager(program: Any, make: Any, partition: str) -> None:
    assert_agrees(program, make, partition=partition)


@pytest.mark.parametrize("make", [_same_twice, _base_and_view], ids=["same_twice", "base_and_view"])
def test_metadata_of_aliased_arguments(make: Any) -> None:
    assert_agrees(transpose_first, make)


@pytest.mark.parametrize("program", [in_place, view_then_write, siblings], ids=lambda p: p.__name__)
def test_second_call_agrees_with_eager(program: Any) -> None:
    assert_agrees(program, two_arguments, calls=2)


@pytest.mark.parametrize("front_end", [refimpl.compile, torch.compile], ids=["refimpl", "torch"])
def test_nodes_of_a_captured_graph_keep_their_lines(front_end: Callable[..., Any]) -> None:
    """So do those of the backward graph, which have the line of what they are the gradient of."""
    lines: dict[str, str] = {}

    def compiler(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
            lines["backward" if node.meta.get("autograd_backward") else "forward"] = node.stack_trace or ""
        return graph_module.forward

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(graph_module, example_inputs, fw_compiler=compiler)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos() * 2
        return y.sin()

    front_end(program, backend=backend)(torch.ones(3, requires_grad=True)).sum().backward()
    assert "y = x.cos() * 2" in lines["forward"]
    assert "return y.sin()" in lines["backward"]
