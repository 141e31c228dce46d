"""memory_efficient_fusion and the compilers of refimpl.upstream.compilers, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refimpl.aot_entry_points import aot_function
from refimpl.tests.partition.joint_graphs import calls
from refimpl.upstream.compilers import (
    default_decompositions,
    make_boxed_compiler,
    make_boxed_func,
    memory_efficient_fusion,
    nop,
    print_compile,
    simple_ts_compile,
    ts_compile,
)

aten = torch.ops.aten


def squared_sum(x, bias):
    return (x + bias).square().sum(-1)


def damped_wave(x, rate):
    return torch.exp(-rate.abs() * x.abs()) * torch.cos(3 * x)


def to_unit_length(x, scale):
    return scale * x / (x.square().sum(-1, keepdim=True) + 0.25).sqrt()


def weights_of(x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.gate + x.mean(0))


FUNCTIONS: Any = {
    "squared sum": (squared_sum, (4, 8), (8,)),
    "damped wave": (damped_wave, (8,), (8,)),
    "unit length": (to_unit_length, (4, 8), (8,)),
    "weights": (weights_of, (4, 8)),
    "logistic": (lambda x: torch.sigmoid(x) * (1 - x), (8,)),
    "softplus": (lambda x: F.softplus(x).tanh() + x, (8,)),
    "in steps": (lambda x: x.clamp(min=-0.5, max=0.5).mul(x).sub(0.125), (8,)),
}


def gradients(function: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*inputs)
    return [result, *torch.autograd.grad(result.sum(), inputs)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_functions_give_what_eager_gives(name: str) -> None:
    function, *shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    fused = memory_efficient_fusion(function)
    for _ in range(3):  # TorchScript optimises after a few calls
        torch.testing.assert_close(gradients(fused, inputs), gradients(function, inputs))


def test_fused_modules_give_what_eager_gives() -> None:
    module = Gated()
    x = torch.randn(4, 8, requires_grad=True)
    expected = gradients(module, [x])
    torch.testing.assert_close(gradients(memory_efficient_fusion(module), [x]), expected)


def test_settings_can_be_replaced() -> None:
    seen: list[torch.fx.GraphModule] = []

    def keep(graph_module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        seen.append(graph_module)
        return graph_module

    x = torch.randn(8, requires_grad=True)
    function = FUNCTIONS["logistic"][0]
    fused = memory_efficient_fusion(function, fw_compiler=keep, bw_compiler=keep)
    torch.testing.assert_close(gradients(fused, [x]), gradients(function, [x]))
    forward, backward = seen
    assert [len(calls(forward, aten.sigmoid)), len(calls(backward, aten.sigmoid))] == [1, 1], "run once more, not saved"
    assert calls(backward, aten.sigmoid_backward) == [], "decomposed"


def test_decompositions_are_of_overloads() -> None:
    assert aten.gelu_backward.default in default_decompositions
    assert all(isinstance(op, torch._ops.OpOverload) for op in default_decompositions)


@pytest.mark.parametrize("compiler", [nop, print_compile, simple_ts_compile, ts_compile])
def test_compilers_keep_values(compiler: Any, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(8, requires_grad=True)
    function = FUNCTIONS["softplus"][0]
    compiled = aot_function(function, compiler)
    torch.testing.assert_close(gradients(compiled, [x]), gradients(function, [x]))
    printed = capsys.readouterr().out
    assert printed.count("def forward") == (2 if compiler is print_compile else 0)


def test_boxed_functions_empty_their_list() -> None:
    arguments = [torch.ones(2), torch.ones(2)]
    boxed: Any = make_boxed_func(torch.add)
    assert boxed(arguments).sum() == 4
    assert arguments == []
    assert boxed._boxed_call


def test_boxed_compilers_do_not_box_twice() -> None:
    boxed = make_boxed_func(torch.add)
    assert make_boxed_compiler(lambda *_: boxed)(torch.fx.GraphModule({}, torch.fx.Graph()), []) is boxed
