"""Tests of floats that are symbols: what was another float before becomes an input of the graph, and is read there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from refimpl.backend_registry import lookup_backend
from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.tests.capture.capturing import Recorder

F = torch.nn.functional
Program = Callable[[Tensor, Any], Any]
SIGNED = (0.1, 0.25, 1.7, 3.3, -0.6)
POSITIVE = (0.5, 0.7, 1.5, 2.0, 3.0)


def x_of(*, requires_grad: bool = False) -> Tensor:
    return torch.linspace(-2.0, 2.0, 7).requires_grad_(requires_grad)


def bits(value: Any) -> Any:
    """The value with all bits of its numbers: -0.0 is not 0.0, and nan is itself."""
    leaves, tree = tree_flatten(value)
    return tree, [
        (leaf.dtype, leaf.shape, leaf.stride(), leaf.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
        if isinstance(leaf, Tensor)
        else (type(leaf), repr(leaf))
        for leaf in leaves
    ]


def graphs_of(
    program: Program, values: Any, backend: str = "eager", *, has_gradient: bool = False, **options: Any
) -> list[int]:
    """How many graphs there are after each call. Asserts that values and gradients have eager's bits."""
    made: list[Any] = []

    def counting(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        made.append(graph)
        return lookup_backend(backend)(graph, inputs)

    compiled = compile(program, backend=counting, **options)
    counts = []
    for value in values:
        x, y = x_of(requires_grad=has_gradient), x_of(requires_grad=has_gradient)
        expected, actual = program(x, value), compiled(y, value)
        assert bits(actual) == bits(expected), f"f={value!r}"
        if has_gradient:
            expected.sum().backward()
            actual.sum().backward()
            assert bits(y.grad) == bits(x.grad), f"the gradient for f={value!r}"
        counts.append(len(made))
    return counts


ON_TENSORS: dict[str, Program] = {
    "times": lambda x, f: x * f,
    "reversed operands": lambda x, f: (f + x, f - x, f / x, f**x),
    "floats round as Python's": lambda x, f: x * ((f + 0.1) + 0.2) / (f * 3 - 7),
    "alpha": lambda x, f: (torch.add(x, x, alpha=f), x.clone().add_(x, alpha=-f)),
    "comparison and choice": lambda x, f: (x > f, torch.where(x > 0, x, f), x.clamp(min=-abs(f)), x.masked_fill(x > 0, f)),
    "made tensors": lambda x, f: (torch.full((), f), torch.full_like(x, f), torch.scalar_tensor(f), torch.linspace(0, f, 5)),
    "literals": lambda x, f: (torch.tensor(f), torch.tensor([f, 1.0, f * 2]), torch.full((2,), f, dtype=torch.float16)),
    "other dtypes": lambda x, f: (x.half() * f, x.bfloat16() * f + f, x.double() * (f / 3), torch.arange(4) * f, (x > 0) * f),
    "items": lambda x, f: x.clone().index_put_((torch.tensor(2),), torch.tensor(f)),
    "containers": lambda x, f: {"a": x * [f, (f, 2.0)][1][0], "b": (f, f + 1)},
    "root": lambda x, f: (x * math.sqrt(abs(f)), x * abs(f) ** 0.5),
    "remainder": lambda x, f: (x * (f % 0.3), f % -0.3),
    "sum": lambda x, f: x * sum([f, 0.1, 0.2]),
    "signs of zero": lambda x, f: 1.0 / (x * 0 + f * 0.0),
    "class": lambda x, f: x * f if isinstance(f, float) and type(f) is float else x,
    "truth": lambda x, f: x * bool(f) + (f and 2.0),
    "lists of tensors": lambda x, f: torch._foreach_add(torch._foreach_mul([x, x + 1], f), [x, x], alpha=f),
}  # fmt: skip


LATER_STAGES = [
    (name, backend)
    for name in ("times", "floats round as Python's", "alpha", "made tensors", "root", "remainder")
    for backend in ("aot_eager_decomp_partition", "triton")
]


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, backend) for name in ON_TENSORS for backend in ("eager", "aot_eager")), *LATER_STAGES],
)
def test_two_graphs_serve_every_value(name: str, backend: str) -> None:
    assert graphs_of(ON_TENSORS[name], SIGNED, backend) == [1, 2, 2, 2, 2]


GRADIENTS: dict[str, Program] = {
    "times": lambda x, f: x * f + 2,
    "scalar in a formula": lambda x, f: F.leaky_relu(x, f) + F.elu(x, f),
    "value": lambda x, f: torch.addcdiv(torch.addcmul(x, x, x, value=f), x + 3, x * x + 1, value=f) * f,
    "clamp": lambda x, f: x.clamp(-f, f) / f,
    "power": lambda x, f: (x + 3).pow(f),
    "lerp": lambda x, f: (x * f).relu() ** 2 + torch.lerp(x, x * f, f),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_have_the_bits_of_eager(name: str, backend: str) -> None:
    """A formula of autograd that asks for a float adds a guard: then there are more graphs."""
    graphs = graphs_of(GRADIENTS[name], POSITIVE, backend, has_gradient=True)
    assert 2 <= graphs[-1] <= len(POSITIVE)


def test_the_graph_takes_a_tensor_and_reads_it() -> None:
    recorder: Any = Recorder()
    compiled = compile(lambda x, f: x * f, backend=recorder)
    for value in (0.1, 0.2):
        compiled(x_of(), value)
    first, second = recorder.graphs
    assert [node.op for node in first.graph.nodes] == ["placeholder", "call_function", "output"]
    inputs = [node.meta["example_value"] for node in second.graph.nodes if node.op == "placeholder"]
    assert [(value.dtype, value.dim()) for value in inputs] == [(torch.float32, 1), (torch.float64, 0)]
    assert recorder.targets == ["mul", "item", "mul"]


SPECIALISED: dict[str, tuple[Program, list[int]]] = {
    "branch": (lambda x, f: x * f if f > 1.0 else x - f, [1, 2, 3, 3, 3]),
    "equality": (lambda x, f: x * 2 if f == 1.7 else x * f, [1, 2, 3, 3, 3]),
    "int": (lambda x, f: x * int(f), [1, 2, 3, 4, 4]),
    "floor": (lambda x, f: x * math.floor(f), [1, 2, 3, 4, 5]),
    "shape": (lambda x, f: torch.ones(int(abs(f) * 10)), [1, 2, 3, 4, 5]),
    "key": (lambda x, f: x * {f: 2.0}[f], [1, 2, 3, 4, 5]),
    "text": (lambda x, f: x + len(f"{f:.3f}{f!r}"), [1, 2, 3, 4, 5]),
    "method": (lambda x, f: x * f.is_integer() + len(f.hex()) + f.real, [1, 2, 3, 4, 5]),
    "hash": (lambda x, f: x + hash(f) % 7, [1, 2, 3, 4, 5]),
    "exp": (lambda x, f: x * math.exp(f), [1, 2, 3, 4, 5]),
    "largest": (lambda x, f: x * max(f, 0.5), [1, 2, 3, 3, 3]),
    "largest of an int": (lambda x, f: torch.arange(3) * max(1, f), [1, 2, 3, 3, 3]),
    "floor division": (lambda x, f: x * (f // 0.3), [1, 2, 3, 4, 5]),
    "negative base": (lambda x, f: x * f**3, [1, 2, 2, 2, 3]),
    "constant -0.0": (lambda x, f: x + f * -0.0, [1, 2, 3, 4, 5]),
    "constant inf": (lambda x, f: x * (1.0 if f * 1e308 * 10 < math.inf else 2.0), [1, 2, 2, 2, 3]),
    "zero of an expression": (lambda x, f: x * math.copysign(1.0, f * 0.0), [1, 2, 3, 4, 5]),
    "python operator of torch": (lambda x, f: F.dropout(x, abs(f) / 4, training=False), [1, 2, 3, 4, 5]),
    "kernel that reads": (lambda x, f: F.layer_norm(x, (7,), eps=abs(f)), [1, 2, 3, 4, 5]),
    "complex": (lambda x, f: x * complex(f, 1.0), [1, 2, 3, 4, 5]),
    "only returned": (lambda x, f: (x + 1, f), [1, 1, 1, 1, 1]),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", SPECIALISED)
def test_what_asks_for_the_value_is_captured_again(name: str, backend: str) -> None:
    program, expected = SPECIALISED[name]
    assert graphs_of(program, SIGNED, backend) == expected
    graphs_of(program, SIGNED, backend, fullgraph=True)  # and ends no graph


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.1, 0.2, math.nan, math.inf, -math.inf, 0.3), [1, 2, 3, 4, 5, 5]),
        ((0.5, 0.2, 0.0, -0.0, 0.7), [1, 2, 2, 3, 3]),
        ((-0.0, 0.0, 0.1, -0.0, 0.0), [1, 2, 3, 3, 3]),
        ((0.1, 3, 0.2, 4, 0.3), [1, 2, 3, 3, 3]),
        ([float(np.float32(value)) for value in SIGNED], [1, 2, 2, 2, 2]),
        ([np.float64(value) for value in SIGNED], [1, 1, 1, 1, 1]),
        ((5e-324, 1.7976931348623157e308, 0.1, 1e-310), [1, 2, 2, 2]),
    ],
    ids=["not finite", "zeros", "zeros first", "ints between", "of float32", "of numpy", "extreme"],
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_special_values(values: Any, expected: list[int], backend: str) -> None:
    assert graphs_of(lambda x, f: x * f, values, backend) == expected


@pytest.mark.parametrize(
    ("options", "settings", "expected"),
    [
        ({}, {"specialize_float": True}, [1, 2, 3, 4, 5]),
        ({}, {"automatic_dynamic_shapes": False}, [1, 2, 3, 4, 5]),
        ({"dynamic": False}, {}, [1, 2, 3, 4, 5]),
        ({"dynamic": True}, {}, [1, 1, 1, 1, 1]),
        ({"dynamic": True}, {"specialize_float": True}, [1, 2, 3, 4, 5]),
        ({}, {"dynamic_sources": "L['f']"}, [1, 1, 1, 1, 1]),
    ],
)
def test_settings(options: dict[str, Any], settings: dict[str, Any], expected: list[int]) -> None:
    with config.patch(settings):
        assert graphs_of(lambda x, f: x * f, SIGNED, **options) == expected


class Scaled(torch.nn.Module):
    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_float_is_read_from_where_the_program_has_it() -> None:
    module, groups = Scaled(), [{"lr": 0.1}, {"lr": 0.1}]
    factor = 0.1

    def program(x: Tensor, f: float) -> Any:
        return module(x), x * groups[0]["lr"], x * groups[1]["lr"], x * factor, f

    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder)
    for value in SIGNED:
        module.scale = groups[0]["lr"] = value
        groups[1]["lr"] = value * 2 if value > 1 else value  # sometimes one object, sometimes two
        factor = value + 1
        assert bits(compiled(x_of(), value)) == bits(program(x_of(), value))
    assert len(recorder.graphs) == 2


def test_two_variables_may_have_one_float_or_two() -> None:
    def program(x: Tensor, f: float, g: float) -> Any:
        return (x * f, f is g) if f is g else (x * g, f is g)

    compiled = compile(program, backend="eager", dynamic=True)
    for f, g in ((0.1, 0.2), (0.3, 0.3), (0.5, 0.6)):
        assert bits(compiled(x_of(), f, g)) == bits(program(x_of(), f, g))
    for value in (float("0.1"), float("0.2")):
        assert bits(compiled(x_of(), value, value)) == bits(program(x_of(), value, value))


def test_a_float_is_a_constant_after_the_backend_has_failed_on_a_symbol() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def refusing(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if any(node.target == "item" for node in graph.graph.nodes):
            raise NotImplementedError("a float that is a symbol")
        graphs.append(graph)
        return graph.forward

    compiled = compile(lambda x, f: x * f, backend=refusing)
    for value in SIGNED:
        assert bits(compiled(x_of(), value)) == bits(x_of() * value)
    assert len(graphs) == len(SIGNED)


def test_a_constant_float_costs_no_input_and_one_guard() -> None:
    recorder: Any = Recorder()
    guards: list[Any] = []
    compiled = compile(
        lambda x, f: x * f, backend=recorder,
        options={"guard_filter_fn": lambda found: guards.extend(found) or [True] * len(found)},
    )  # fmt: skip
    for _ in range(3):
        compiled(x_of(), 0.1)
    (graph,) = recorder.graphs
    assert len(graph.graph.find_nodes(op="placeholder")) == 1
    assert len([guard for guard in guards if guard.name == "f"]) == 1


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.01, amsgrad=True, **k),
}
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "exponential": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    "from zero": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 5),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
}


def trained(optimizer: str, schedule: str, backend: str | None, **options: Any) -> tuple[list[Tensor], int]:
    """The parameters after ten steps, and the number of graphs."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    optimizing = OPTIMIZERS[optimizer](model.parameters(), **options)
    scheduling = SCHEDULES[schedule](optimizing)
    graphs: list[Any] = []

    def counting(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(graph)
        return lookup_backend(str(backend))(graph, inputs)

    def step() -> None:
        optimizing.step()

    stepping = step if backend is None else compile(step, backend=counting)
    for _ in range(10):
        optimizing.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        stepping()
        scheduling.step()
    return list(model.parameters()), len(graphs)


@pytest.mark.parametrize(
    ("optimizer", "schedule", "backend"),
    [
        *((optimizer, "exponential", backend) for optimizer in OPTIMIZERS for backend in ("eager", "aot_eager")),
        ("SGD", "one cycle", "eager"), ("Adam", "one cycle", "eager"), ("Adam", "from zero", "eager"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "each"])
def test_a_schedule_of_the_learning_rate_takes_two_graphs(
    optimizer: str, schedule: str, foreach: bool, backend: str
) -> None:
    expected, _ = trained(optimizer, schedule, None, foreach=foreach)
    actual, graphs = trained(optimizer, schedule, backend, foreach=foreach)
    assert bits(actual) == bits(expected)
    assert graphs == 2
