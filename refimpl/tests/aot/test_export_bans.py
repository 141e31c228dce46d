"""What export refuses: each with the name of the input, and without traces of the attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from refimpl.aot.export.joint_simple import aot_export_joint_simple
from refimpl.aot.export.module import aot_export_module
from refimpl.aot.export_errors import ExportError, GradientMissing
from refimpl.aot.options import aot_settings
from refimpl.errors import RefimplError

Tensor = torch.Tensor


class Program(torch.nn.Module):
    """A function of the module and its arguments as forward."""

    b: Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.p = torch.nn.Parameter(torch.ones(2, 3))
        self.register_buffer("b", torch.ones(2, 3))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def _export(function: Callable[..., Any], *args: Any, loss: int | None = None, is_joint: bool | None = None) -> Any:
    is_joint = loss is not None if is_joint is None else is_joint
    return aot_export_module(
        Program(function), args or (torch.ones(2, 3),), trace_joint=is_joint, output_loss_index=loss
    )


def _write(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, then a loss."""

    def program(self: Program, *args: Tensor) -> tuple[Tensor]:
        function(self, *args)
        return ((self.p * args[0].reshape(2, 3)).sum(),)

    return program


# ---------------------------------------------------------------------------------------------- geometry of inputs


@pytest.mark.parametrize("loss", [None, 0])
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda self, x: x.t_(), r"input 2 has shape \(3, 2\)"),
        (lambda self, x: self.b.unsqueeze_(0), r"b has shape \(1, 2, 3\)"),
        (lambda self, x: x.as_strided_((2, 3), (1, 2)), r"strides \(1, 2\)"),
        (lambda self, x: x.set_(torch.zeros(2, 3)), "input 2 views other memory"),
    ],
)
def test_another_geometry_of_an_input_is_refused(function: Callable[..., Any], text: str, loss: int | None) -> None:
    """AO-19"""
    with pytest.raises(RuntimeError, match=rf"Found an input that received a metadata mutation.*{text}"):
        _export(_write(function), loss=loss)


def test_a_function_that_turns_its_input_is_refused_by_the_simple_export_too() -> None:
    """AO-19"""
    for trace_joint in (False, True):
        with pytest.raises(RuntimeError, match=r"metadata mutation.*input 0 has shape"):
            aot_export_joint_simple(lambda x: (x.t_() * 2,), (torch.ones(2, 3),), trace_joint=trace_joint)


# ------------------------------------------------------------------------------------------------ writes and gradients


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda self, x: self.p.data.mul_(2), "p requires a gradient before"),
        (lambda self, x: torch.no_grad()(self.p.add_)(1), "p requires a gradient before"),
        (lambda self, x: self.b.add_(self.p), "b requires a gradient once"),
    ],
)
def test_a_write_to_what_has_a_gradient_is_refused_in_a_joint_graph(function: Callable[..., Any], name: str) -> None:
    """AO-20"""
    with pytest.raises(
        RuntimeError, match=f"Found a graph input that requires gradients, and received a mutation: {name}"
    ):
        _export(_write(function), loss=0)
    _, signature = _export(_write(function))
    assert list({**signature.parameters_to_mutate, **signature.buffers_to_mutate}.values()) == [name[0]]


def test_a_buffer_that_is_assigned_a_value_with_a_gradient_is_refused_in_a_joint_graph() -> None:
    """AO-20"""

    def assign(self: Program, x: Tensor) -> None:
        self.b = self.b + self.p

    with pytest.raises(RuntimeError, match="b requires a gradient once the program has written to it"):
        _export(_write(assign), loss=0)


# ------------------------------------------------------------------------------------------------- subclasses, random


def test_a_subclass_is_refused() -> None:
    """AO-21"""
    text = "aot_export is not currently supported with traceable tensor subclass"
    x = TwoTensor(torch.ones(2, 3), torch.ones(2, 3))
    for loss in (None, 0):
        with pytest.raises(RuntimeError, match=f"{text}: input 2 is a TwoTensor"):
            _export(_write(lambda self, x: None), x, loss=loss)
    with pytest.raises(RuntimeError, match=text):
        aot_export_joint_simple(lambda x: (x * 2,), (x,), trace_joint=False)
    with pytest.raises(RuntimeError, match=f"{text}: an output is a TwoTensor"):
        _export(lambda self, x: (TwoTensor(x, x),))


def test_functionalized_random_numbers_are_refused() -> None:
    """AO-22"""
    with aot_settings(functionalize_rng_ops=True):
        for loss in (None, 0):
            with pytest.raises(
                RuntimeError, match="Functionalized RNG is not currently supported in the aot_export workflow"
            ):
                _export(_write(lambda self, x: None), loss=loss)
    _export(_write(lambda self, x: None), loss=0)


# ---------------------------------------------------------------------------------------------------- shared memory


def test_a_write_to_memory_that_two_inputs_share_is_refused() -> None:
    """AO-32"""
    x = torch.ones(2, 3)
    program = _write(lambda self, x, y: x.mul_(2))
    with pytest.raises(
        RuntimeError, match=r"Encountered aliased inputs that are mutated.*: input 2, input 3 share memory"
    ):
        _export(program, x, x.view(-1))
    with pytest.raises(
        RuntimeError, match=r"Encountered duplicated inputs that are mutated.*: input 2, input 3 are one"
    ):
        _export(program, x, x)


def test_memory_around_an_input_is_not_read() -> None:
    """AO-32"""
    x = torch.zeros(4)[2:]
    with pytest.raises(ExportError, match="reads memory outside the elements of input 2"):
        _export(lambda self, x: (x.mul_(2) + x.as_strided((2,), (1,), 0),), x)


def test_memory_that_is_only_read_may_be_shared() -> None:
    """AO-32, AO-47"""
    x = torch.arange(6.0).reshape(2, 3)
    graph_module, _ = _export(lambda self, x, y: (x + y.view(2, 3),), x, x.view(-1))
    assert torch.equal(graph_module(torch.ones(2, 3), torch.ones(2, 3), x, x.view(-1))[0], x * 2)
    storage = torch.zeros(12)
    first, second = storage[:6].view(2, 3), storage[6:].view(2, 3)
    _, signature = _export(lambda self, x, y: (x.add_(1) + y,), first, second)
    assert len(signature.user_inputs_to_mutate) == 1


def test_a_buffer_of_two_names_is_not_written_to() -> None:
    """AO-32"""
    module = Program(lambda self, x: (self.b.add_(x),))
    module.register_buffer("twin", module.b)
    with pytest.raises(RuntimeError, match=r"duplicated inputs that are mutated.*: b, twin are one"):
        aot_export_module(module, (torch.ones(2, 3),), trace_joint=False)


def test_a_write_to_a_tensor_that_is_no_input_is_refused() -> None:
    """AO-32, XC-05"""
    constant = torch.zeros(2, 3)
    with pytest.raises(ExportError, match="writes to a tensor that is no input"):
        _export(lambda self, x: (constant.add_(x) * 2,))
    assert not constant.any()


# -------------------------------------------------------------------------------------------------------- the result


@pytest.mark.parametrize("loss", [None, 0])
@pytest.mark.parametrize("result", [lambda y: y, lambda y: {"y": y}, lambda y: None])
def test_a_module_that_returns_no_tuple_is_refused(result: Callable[..., Any], loss: int | None) -> None:
    """AO-32, AO-33"""
    with pytest.raises(RuntimeError, match=r"Graph output must be a \(\).*Expected forward output to be a"):
        _export(lambda self, x: result((x * self.p).sum()), loss=loss)


@pytest.mark.parametrize(
    ("function", "loss", "text"),
    [
        (
            lambda self, x: (self.p.sum(),),
            None,
            "it is required that one of your forward outputs must be a scalar loss",
        ),
        (lambda self, x: (self.p.sum(),), 1, "output_loss_index is 1, and the module returns 1"),
        (
            lambda self, x: (self.p.sum(), self.p * x),
            0,
            "Found an output of the forward that requires gradients.*index 1 req",
        ),
        (
            lambda self, x: (self.p.sum(), [self.p * x]),
            0,
            "Found an output of the forward that requires gradients.*index 1 req",
        ),
        (lambda self, x: (x.sum(),), 0, "was marked as the loss, but it does not require gradients"),
        (lambda self, x: (3, self.p.sum().detach()), 0, "was marked as the loss, but it does not require gradients"),
        (
            lambda self, x: (self.p * x,),
            0,
            r"marked as the loss \(at index 0\) to be a scalar, but it has shape \(2, 3\)",
        ),
    ],
)
def test_a_joint_graph_has_one_scalar_loss(function: Callable[..., Any], loss: int | None, text: str) -> None:
    """AO-33"""
    with pytest.raises(RuntimeError, match=text):
        _export(function, loss=loss, is_joint=True)


def test_a_joint_graph_is_not_made_before_dispatch() -> None:
    """AO-33"""
    with pytest.raises(RuntimeError, match="pre_dispatch is not supported when trace_joint is True"):
        aot_export_module(
            Program(lambda self, x: (self.p.sum(),)),
            (torch.ones(2, 3),),
            trace_joint=True,
            output_loss_index=0,
            pre_dispatch=True,
        )


def test_every_parameter_has_a_gradient() -> None:
    """AO-34"""
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(GradientMissing, match="did not receive a gradient: input 2"):
        _export(lambda self, x: (self.p.sum(),), x, loss=0)
    with pytest.raises(AssertionError, match="did not receive a gradient: p"):
        _export(lambda self, x: (x.sum(),), x, loss=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda self: self.b[0], r"shape \(3,\)"),
        (lambda self: self.b.double(), "float64"),
        (lambda self: None, "a NoneType"),
    ],
)
def test_a_buffer_is_assigned_a_value_of_its_own_geometry(value: Callable[..., Any], text: str) -> None:
    """AO-31"""

    def assign(self: Program, x: Tensor) -> tuple[Tensor]:
        self.b = value(self)
        return (x + 1,)

    with pytest.raises(ExportError, match=f"the buffer b was assigned .*{text}"):
        _export(assign)


def test_a_buffer_is_not_registered_by_forward() -> None:
    """AO-31"""

    def register(self: Program, x: Tensor) -> tuple[Tensor]:
        self.register_buffer("late", x * 2)
        return (x + 1,)

    module = Program(register)
    with pytest.raises(ExportError, match="the buffer late was assigned for the first time"):
        aot_export_module(module, (torch.ones(2, 3),), trace_joint=False)
    assert not hasattr(module, "late")


# ------------------------------------------------------------------------------------------------------------ hygiene


def test_nothing_is_left_behind_after_a_failure() -> None:
    """XC-11"""
    module = Program(_write(lambda self, x: x.t_()))
    before = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state, mode = torch.get_rng_state(), torch.is_grad_enabled()
    for trace_joint in (False, True):
        with pytest.raises(RefimplError):
            aot_export_module(module, (torch.ones(2, 3),), trace_joint=trace_joint, output_loss_index=0)
    after = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert all(after[name] is value for name, value in before.items())
    assert all(value.grad is None for value in after.values())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() is mode
