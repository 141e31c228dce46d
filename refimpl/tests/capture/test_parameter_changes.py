"""What a program may change of a module's parameters and parts between two calls: a segment that was made before must not fit.

Each change is made to modules with few and with many parameters: guards on many tensors are checked in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import refimpl
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.capture.config import config
from refimpl.tests.capture.capturing import Recorder, same


class Layer(nn.Module):
    """A weight and a bias of any sizes that go together."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight if self.bias is None else x * self.weight + self.bias


class Stack(nn.Module):
    """Layers, of which each adds a buffer that changes nothing, and tells how it was seen when it was captured."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(depth)])
        self.register_buffer("shift", torch.zeros(3, 3))

    def forward(self, x: torch.Tensor) -> Any:
        seen = []
        for layer in self.layers:
            weight = getattr(layer, "weight", None)
            if weight is not None:
                seen.append((weight.requires_grad, weight.dtype, tuple(weight.shape), weight.stride(), weight.is_neg()))
            x = layer(x) + self.shift
        return x, seen, [first is second for first in self.layers for second in self.layers]


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def replaced_data(data: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        weight = module.layers[-1].weight
        weight.data = data(weight.data)

    return change


def _inference(data: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones_like(data)


def transposed_in_place(module: Any) -> None:
    with torch.no_grad():
        module.layers[-1].weight.t_()


def plain_weight(module: Any) -> None:
    del module.layers[-1].weight
    module.layers[-1].weight = torch.ones(3, 3)


def _set_weight(module: Any, weight: torch.Tensor) -> None:
    module.layers[-1].weight = nn.Parameter(weight)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "requires_grad_": lambda module: module.layers[-1].weight.requires_grad_(False),
    "requires_grad_ of the module": lambda module: module.requires_grad_(False),
    "data of other strides": replaced_data(lambda data: data.t()),
    "data of other strides and storage": replaced_data(lambda data: data.clone().t()),
    "data of another shape": replaced_data(lambda data: data[:1]),
    "data of another dtype": replaced_data(torch.Tensor.double),
    "data that are negated lazily": replaced_data(torch._neg_view),
    "data made under inference mode": replaced_data(_inference),
    "dtype of the module": lambda module: module.to(torch.float64),
    "t_": transposed_in_place,
    "a parameter of another shape": lambda module: _set_weight(module, torch.ones(1, 3)),
    "a parameter of other strides": lambda module: _set_weight(module, torch.randn(3, 3).t()),
    "a plain tensor for a parameter": plain_weight,
    "a parameter that is no more": lambda module: setattr(module.layers[-1], "bias", None),
    "a buffer of another shape": lambda module: setattr(module, "shift", torch.ones(3)),
    "a buffer of another dtype": lambda module: setattr(module, "shift", torch.ones(3, 3, dtype=torch.float64)),
    "a buffer that is sparse": lambda module: setattr(module, "shift", torch.zeros(3, 3).to_sparse()),
    "a part of another class": lambda module: module.layers.__setitem__(-1, Doubled()),
    "one part fewer": lambda module: module.layers.pop(-1),
    "one part more": lambda module: module.layers.append(Layer()),
    "a parametrization": lambda module: parametrize.register_parametrization(module.layers[-1], "weight", Doubled()),
    "a hook": lambda module: module.layers[-1].register_forward_hook(lambda module, args, result: result * 2),
    "a forward of its own": lambda module: setattr(module.layers[-1], "forward", lambda x: x * 3),
}
"""Name -> what is done between two calls."""
KEPT: dict[str, Callable[[Any], Any]] = {
    "values": lambda module: module.layers[-1].weight.data.add_(1),
    "values of the whole module": lambda module: module.load_state_dict(Stack(len(module.layers)).state_dict()),
    "a like parameter": lambda module: _set_weight(module, torch.ones(3, 3)),
    "like data": replaced_data(torch.clone),
    "a gradient": lambda module: setattr(module.layers[-1].weight, "grad", torch.ones(3, 3)),
}
"""The same for changes that a segment is right for."""
DEPTHS = (1, 6)


def flat(result: Any) -> tuple[torch.Tensor, Any]:
    out, *seen = result
    return out, seen


def captured(depth: int) -> tuple[Stack, Callable[..., Any], Callable[[], int]]:
    """A module, its captured form, and how many segments were made."""
    torch.manual_seed(0)
    module, options = Stack(depth), CaptureOptions(backend=lambda graph, examples: graph.forward)
    call = with_options(module, options)
    return module, call, lambda: sum(len(found.cache.segments()) for found in options.functions.values())


def assert_same(call: Callable[..., Any], module: Stack) -> None:
    x = torch.arange(9.0).reshape(3, 3)
    (expected, expected_seen), (actual, actual_seen) = flat(module(x)), flat(call(x))
    assert actual_seen == expected_seen
    assert actual.requires_grad == expected.requires_grad
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.fractional
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str, depth: int) -> None:
    module, call, count = captured(depth)
    with torch.set_grad_enabled("inference mode" not in name):  # such data cannot be differentiated
        assert_same(call, module)
        assert_same(call, module)
        before = count()
        CHANGES[name](module)
        assert_same(call, module)
    assert count() > before or name in _RUN_AS_THEY_ARE


_RUN_AS_THEY_ARE = {"a buffer that is sparse"}  # and are not captured


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", KEPT)
def test_what_is_right_still_is_used(name: str, depth: int) -> None:
    module, call, count = captured(depth)
    assert_same(call, module)
    before = count()
    KEPT[name](module)
    assert_same(call, module)
    assert count() == before


@pytest.mark.parametrize("depth", [2, 6])
def test_parameters_are_tied_and_untied(depth: int) -> None:
    module, call, count = captured(depth)
    assert_same(call, module)
    module.layers[-1].weight = module.layers[0].weight
    assert_same(call, module)
    assert count() == 2
    module.layers[-1].weight = nn.Parameter(torch.ones(3, 3))
    assert_same(call, module)
    assert count() == 2


@pytest.mark.parametrize("count", [1, 6])
def test_tensors_whose_sizes_raise_are_refused_before_they_are_read(count: int) -> None:
    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [tensor * 2 for tensor in tensors]

    call = with_options(function, CaptureOptions(backend=lambda graph, examples: graph.forward))
    assert same(call(*[torch.ones(2, 2)] * count), [torch.full((2, 2), 2.0)] * count)
    nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(1, 2)])
    found = [list(made.unbind()) for made in call(*[nested] * count)]
    assert same(found, [[torch.full((2, 2), 2.0), torch.full((1, 2), 2.0)]] * count)
    found = [made.to_dense() for made in call(*[torch.eye(2).to_sparse()] * count)]
    assert same(found, [torch.eye(2) * 2] * count)


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (3, 1, 2), (0, 3), (2, 3), (1,), ()])
def test_strides_that_say_nothing_of_where_data_are_are_seen(sizes: tuple[int, ...]) -> None:
    """A dimension of one element may have any stride: contiguity does not tell."""

    def function(tensors: list[torch.Tensor]) -> Any:
        return sum(tensors), [tensor.stride() for tensor in tensors]

    call = with_options(function, CaptureOptions(backend=lambda graph, examples: graph.forward))
    plain = [torch.ones(sizes) for _ in range(6)]
    other = [torch.ones(64).as_strided(sizes, [7 * stride + 1 for stride in tensor.stride()]) for tensor in plain]
    for tensors in (plain, other, [*plain[:-1], other[-1]]):
        expected, actual = function(tensors), call(tensors)
        assert torch.equal(actual[0], expected[0])
        assert actual[1] == expected[1]


class _Normalised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.again = self.first
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        return self.norm(self.first(x)) + self.again(x) + self.norm.running_mean


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_parameters_that_are_attributes_of_the_graph_may_change(backend: str) -> None:
    ours, theirs = _Normalised(), _Normalised()
    theirs.load_state_dict(ours.state_dict())
    with config.patch(install_free_tensors=True):
        compiled = refimpl.compile(ours, backend=backend)
        for step in range(3):
            x = torch.randn(4, 3)
            results = [module(x) for module in (compiled, theirs)]
            for module, result in zip((ours, theirs), results, strict=True):
                module.zero_grad()
                result.sin().sum().backward()
            torch.testing.assert_close(*results)
            for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad)
                with torch.no_grad():
                    one.sub_(0.1)
                    other.sub_(0.1)
            torch.testing.assert_close(ours.norm.running_mean, theirs.norm.running_mean)
            if step == 1:  # another tensor in its place
                for module in (ours, theirs):
                    module.first.weight = torch.nn.Parameter(torch.ones(3, 3))


def test_only_arguments_are_inputs_where_free_tensors_are_installed() -> None:
    recorder: Any = Recorder()
    with config.patch(install_free_tensors=True):
        refimpl.compile(_Normalised(), backend=recorder)(torch.randn(4, 3))
    (graph,) = recorder.graphs
    assert len(graph.graph.find_nodes(op="placeholder")) == 1
    assert len([*graph.parameters()]) == 4


def scales_gradients(layer: Layer, by: torch.Tensor) -> Any:
    norms = []
    for parameter in layer.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(by)
            norms.append(parameter.grad.norm())
    return norms, layer.weight.grad is layer.bias.grad


def takes_gradients(layer: Layer, by: torch.Tensor) -> Any:
    taken = [parameter.grad for parameter in layer.parameters()]
    for parameter in layer.parameters():
        parameter.grad = None
    return [None if gradient is None else gradient * by for gradient in taken], layer.weight.grad is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [scales_gradients, takes_gradients])
def test_a_segment_reads_the_gradients_of_parameters(program: Callable[..., Any], backend: str) -> None:
    refimpl.reset()
    captured, results = refimpl.compile(program, backend=backend, fullgraph=True), []
    for called in (captured, program):
        torch.manual_seed(0)
        layer, found = Layer(), []
        for count in (0, 1, 2, 1):  # of backwards before the call
            for _ in range(count):
                layer(torch.ones(3, 3)).sum().backward()
            layer.bias.grad = None if count == 2 else layer.bias.grad
            found += [called(layer, torch.tensor(3.0)), [parameter.grad for parameter in layer.parameters()]]
        shared = torch.ones(3, 3)
        layer.weight.grad = shared
        layer.bias.data = torch.ones(3, 3)
        layer.bias.grad = shared
        found.append(called(layer, torch.tensor(2.0)))
        results.append(found)
    assert same(*results)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_gradient_may_share_the_memory_of_its_parameter(backend: str) -> None:
    """The sizes of inputs that share memory are static, those of the gradient too."""
    captured = refimpl.compile(lambda x: (x.grad.mul_(2), x + 1), backend=backend, fullgraph=True)
    x, value = torch.ones(4, requires_grad=True), 1.0
    for is_shared in (True, False, True):
        x.grad = x.detach() if is_shared else torch.ones(4)
        value *= 2 if is_shared else 1
        _, result = captured(x)
        torch.testing.assert_close(result, torch.full((4,), value + 1))
        torch.testing.assert_close(x.detach(), torch.full((4,), value))
