"""Examples of the guides of custom operators: operators of Python functions in compiled functions and exported programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from refimpl.tests.documentation.example import Graphs, Page, equal, leaf, raising, same

_AREA = "custom operators"
tutorial = Page(_AREA, "Python Custom Operators", "advanced/python_custom_ops.html")
library = Page(_AREA, "torch.library", "library.html")
manual = Page(_AREA, "The Custom Operators Manual", "notes/custom_operators.html")
triton = Page(
    _AREA, "Using User-Defined Triton Kernels", "recipes/torch_compile_user_defined_triton_kernel_tutorial.html"
)
extending = Page(_AREA, "Extending PyTorch", "notes/extending.html")


@torch.library.custom_op("documentation::window", mutates_args=())
def window(picture: torch.Tensor, box: Sequence[int]) -> torch.Tensor:
    left, top, right, bottom = box
    return torch.from_numpy(picture.numpy(force=True)[:, top:bottom, left:right].copy())


@window.register_fake
def _(picture: torch.Tensor, box: Sequence[int]) -> torch.Tensor:
    left, top, right, bottom = box
    return picture.new_empty(picture.shape[0], bottom - top, right - left)


@torch.library.custom_op("documentation::paste", mutates_args=())
def paste(below: torch.Tensor, above: torch.Tensor, corner: Sequence[int]) -> torch.Tensor:
    whole = below.numpy(force=True).copy()
    left, top = corner
    whole[:, top : top + above.shape[1], left : left + above.shape[2]] = above.numpy(force=True)
    return torch.from_numpy(whole)


@paste.register_fake
def _(below: torch.Tensor, above: torch.Tensor, corner: Sequence[int]) -> torch.Tensor:
    return torch.empty_like(below)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    picture, box = inputs
    ctx.corner, ctx.shape = box[:2], picture.shape


def _paste_back(ctx: Any, gradient: torch.Tensor) -> Any:
    return paste(gradient.new_zeros(ctx.shape), gradient, ctx.corner), None


window.register_autograd(_paste_back, setup_context=_remember)


@torch.library.custom_op("documentation::sine_into", mutates_args={"output"}, device_types="cpu")
def sine_into(given: torch.Tensor, output: torch.Tensor) -> None:
    np.sin(given.numpy(), out=output.numpy())


@torch.library.custom_op("documentation::found", mutates_args=())
def found(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.stack(np.nonzero(x.numpy()), axis=1))


@found.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(count, x.dim(), dtype=torch.int64)


@torch.library.custom_op("documentation::cube", mutates_args=())
def cube(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    array = x.numpy(force=True)
    return torch.from_numpy(array**3), torch.from_numpy(3 * array**2)


@cube.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _keep_slope(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[1])


def _times_slope(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
    return gradient * ctx.saved_tensors[0]


cube.register_autograd(_times_slope, setup_context=_keep_slope)


@cube.register_vmap
def _(info: Any, in_dims: Any, x: torch.Tensor) -> Any:
    return cube(x), (in_dims[0], in_dims[0])


@torch.library.custom_op("documentation::negated", mutates_args=())
def negated(x: torch.Tensor) -> torch.Tensor:
    return -x


negated.register_fake(torch.empty_like)


@negated.register_kernel("cpu")
def _(x: torch.Tensor) -> torch.Tensor:
    return x * 10  # another result, so that it is seen which kernel runs


@tutorial
def an_operator_is_one_call(api: Any) -> None:
    """One graph, with the operator in it."""
    graphs = Graphs()
    compiled = api.compile(lambda x: window(x, (1, 1, 4, 3)) * 2, backend=graphs, fullgraph=True)
    x = torch.randn(2, 5, 6)
    equal(compiled(x), x[:, 1:3, 1:4] * 2)
    assert any("window" in str(node.target) for node in graphs.graphs[0].graph.nodes)


@tutorial
def without_an_operator_the_graph_breaks(api: Any) -> None:
    """A function of NumPy on detached data cannot be one graph, if it leaves tensors by force."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + float(bytearray(x.detach().numpy().tobytes())[3])

    with raising(api._dynamo.exc.Unsupported):
        api.compile(body, backend="eager", fullgraph=True)(torch.ones(3))


@tutorial
def an_operator_with_a_gradient(api: Any) -> None:
    """register_autograd: eager's gradient."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return window(x.sin(), (0, 1, 3, 4))

    same(body, api.compile(body, backend="aot_eager", fullgraph=True), leaf(1, 5, 6))


@tutorial
def an_operator_that_writes(api: Any) -> None:
    """mutates_args: the write is seen."""

    def body(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(3)
        sine_into(x, output)
        return output * 2

    x = torch.randn(3)
    equal(api.compile(body, backend="aot_eager", fullgraph=True)(x), x.sin() * 2)


@tutorial
def an_operator_that_writes_to_an_argument(api: Any) -> None:
    """The argument of the compiled function has its new value."""

    def body(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        sine_into(x, output)
        return output + 1

    same(body, api.compile(body, backend="aot_eager", fullgraph=True), torch.randn(3), torch.zeros(3))


@tutorial(entry="export")
def an_exported_operator(api: Any) -> None:
    """The exported program calls the operator."""

    class Uses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return window(x, (1, 1, 4, 3)) + 1

    x = torch.randn(2, 5, 6)
    program = api.export.export(Uses(), (x,))
    equal(program.module()(x), x[:, 1:3, 1:4] + 1)
    assert any("documentation.window" in str(node.target) for node in program.graph.nodes)


@library
def an_operator_of_two_results(api: Any) -> None:
    """Two results, of which backward uses one."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return cube(x)[0].exp()

    same(body, api.compile(body, backend="aot_eager", fullgraph=True), leaf(3))


@library
def an_operator_under_vmap(api: Any) -> None:
    """register_vmap: the operator in a vmapped function."""
    x = torch.randn(2, 3)
    compiled = api.compile(lambda x: torch.vmap(lambda v: cube(v)[0])(x), backend="eager", fullgraph=True)
    equal(compiled(x), x**3)


@library(entry="export")
def an_operator_with_a_size_of_data(api: Any) -> None:
    """new_dynamic_size: the number of rows is read from data."""

    class Uses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return found(x).sum(0) + 1

    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    program = api.export.export(Uses(), (x,))
    equal(program.module()(x), torch.nonzero(x).sum(0) + 1)
    other = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    equal(program.module()(other), torch.nonzero(other).sum(0) + 1)


@library(entry="make_fx")
def an_operator_with_a_size_of_data_traced(api: Any) -> None:
    """The same in a symbolic graph."""
    graph = api.fx.experimental.proxy_tensor.make_fx(lambda x: found(x).sum(0), tracing_mode="symbolic")(
        torch.ones(2, 2)
    )
    x = torch.tensor([[1.0, 0.0, 2.0], [2.0, 3.0, 0.0]])
    equal(graph(x), torch.nonzero(x).sum(0))


@library
def a_kernel_is_replaced(api: Any) -> None:
    """set_kernel_enabled turns the kernel of a device off and on: the compiled function uses the one that is on."""
    compiled = api.compile(lambda x: negated(x) + 1, backend="aot_eager", fullgraph=True)
    equal(compiled(torch.ones(2)), torch.full((2,), 11.0))
    with negated.set_kernel_enabled("cpu", enabled=False):
        equal(compiled(torch.ones(2)), torch.zeros(2))
    equal(compiled(torch.ones(2)), torch.full((2,), 11.0))


@library
def an_operator_by_define(api: Any) -> None:
    """define, impl and register_fake by name."""
    with torch.library._scoped_library("documentation_scoped", "FRAGMENT") as scoped:
        torch.library.define("documentation_scoped::half", "(Tensor x) -> Tensor", lib=scoped)
        torch.library.impl("documentation_scoped::half", "cpu", lambda x: x / 2, lib=scoped)
        torch.library.register_fake("documentation_scoped::half", lambda x: torch.empty_like(x), lib=scoped)
        half = torch.ops.documentation_scoped.half
        equal(
            api.compile(lambda x: half(x) + 1, backend="aot_eager", fullgraph=True)(torch.ones(2)),
            torch.full((2,), 1.5),
        )


@manual
def an_operator_is_not_looked_into(api: Any) -> None:
    """A function with a branch on data, as an operator: one graph."""

    @torch.library.custom_op("documentation::chosen", mutates_args=())
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    chosen.register_fake(lambda x: torch.empty_like(x))
    compiled = api.compile(lambda x: chosen(x) + 1, backend="aot_eager", fullgraph=True)
    equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    equal(compiled(-torch.ones(2)), -torch.ones(2))


@manual
def an_operator_without_a_fake_kernel(api: Any) -> None:
    """Without a fake kernel the operator cannot be captured."""

    @torch.library.custom_op("documentation::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with raising(Exception):
        api.compile(lambda x: unknown(x), backend="eager", fullgraph=True)(torch.ones(2))


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (result,) = ctx.saved_tensors
        return gradient * result * 2  # twice the derivative, so that its use is seen


@extending
def an_autograd_function(api: Any) -> None:
    """The backward of the class is used."""
    same(
        lambda x: _Exponential.apply(x.sin()),
        api.compile(lambda x: _Exponential.apply(x.sin()), backend="aot_eager", fullgraph=True),
        leaf(3),
    )


@extending(entry="make_fx")
def an_autograd_function_traced(api: Any) -> None:
    """Gradients in a graph of make_fx: the backward of the class."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(_Exponential.apply(x).sum(), x)[0]

    x = leaf(3)
    graph = api.fx.experimental.proxy_tensor.make_fx(body)(x)
    equal(graph(x), x.detach().exp() * 2)
