"""Jagged tensors (`torch.nested` with layout `torch.jagged`) in captured programs: one graph that does what eager does."""

# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.backend_registry import lookup_backend
from refimpl.capture.compile import compile
from refimpl.capture.entry_points.reset import reset
from refimpl.trace.make_fx import make_fx

Tensor = torch.Tensor
Make = Callable[[], tuple[Any, ...]]
LINEAR = torch.nn.Linear(5, 5)
from_jagged: Any = torch.nested.nested_tensor_from_jagged

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def rows(*lengths: int, seed: int = 1, requires_grad: bool = False) -> Any:
    """A jagged tensor with rows of these lengths, of 5 numbers each."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(length, 5, generator=generator) for length in lengths or (2, 3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)


def one() -> tuple[Any, ...]:
    return (rows(),)


def leaf() -> tuple[Any, ...]:
    return (rows(requires_grad=True),)


def with_holes() -> tuple[Any, ...]:
    values = torch.arange(50.0).reshape(10, 5)
    return (from_jagged(values, torch.tensor([0, 4, 10]), lengths=torch.tensor([2, 3])),)


def pair() -> tuple[Any, ...]:
    """Two tensors with the same offsets, which are two different tensors."""
    x = rows()
    return x, from_jagged(x.values().cos(), x.offsets())


def strangers() -> tuple[Any, ...]:
    """Two tensors that differ from `pair` only in that their equal offsets are two tensors: eager refuses to add them."""
    x = rows()
    return x, from_jagged(x.values().cos(), x.offsets().clone())


def twice() -> tuple[Any, ...]:
    x = rows()
    return x, x


# What eager and a compiled function are compared on: (program, arguments of its calls).
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Make, ...]]] = {
    "pointwise": (lambda x: (x * 2).sin() + x.cos(), (one, lambda: (rows(4, 1),))),
    "a linear layer": (lambda x: F.linear(x, LINEAR.weight, LINEAR.bias).relu(), (one, leaf)),
    "a module": (lambda x: F.layer_norm(LINEAR(x), (5,)), (leaf, lambda: (rows(1, 1, 6),))),
    "values": (lambda x: x.values().sum(), (one, leaf)),
    "offsets": (lambda x: x.offsets() + 1, (one,)),
    "built of values": (lambda x: from_jagged(x.values() * 2, x.offsets()), (one,)),
    "built of a list": (
        lambda x: torch.nested.nested_tensor([x.values()[:2], x.values()[2:]], layout=torch.jagged),
        (one,),
    ),
    "built with other offsets": (lambda x: from_jagged(x.values() * 2, x.offsets() * 1), (one,)),
    "sum of rows": (lambda x: x.sum(dim=1), (one,)),
    "sum of columns": (lambda x: x.sum(dim=-1), (one,)),
    "softmax": (lambda x: x.softmax(dim=-1), (one, leaf)),
    "matmul": (lambda x: torch.matmul(x, torch.ones(5, 3)), (one, leaf)),
    "padded": (lambda x: torch.nested.to_padded_tensor(x, 0.0), (one, leaf)),
    "transposed": (lambda x: x.transpose(1, 2) * 2, (one, leaf)),
    "views of its own sizes": (lambda x: x.view(x.size(0), x.size(1), 5, 1) * 3, (one, leaf)),
    "unbind": (lambda x: [part * 2 for part in x.unbind()], (one, lambda: (rows(4, 4),))),
    "cat, chunk and where": (
        lambda x: torch.where(torch.cat([x, x], dim=-1).chunk(2, dim=-1)[0] > 0, x, -x),
        (one, leaf),
    ),
    "another dtype": (lambda x: x.to(torch.float64), (one, leaf)),
    "questions": (lambda x: x * 2 if x.is_nested and x.layout == torch.jagged and x.dim() == 3 else x, (one,)),
    "batch and width": (lambda x: x * x.size(0) * x.shape[2], (one, lambda: (rows(1, 2, 3),))),
    "numel": (lambda x: x * x.numel(), (one, lambda: (rows(4, 4),))),
    "longest row": (lambda x: x * x._get_max_seqlen(), (one, lambda: (rows(4, 1),))),
    "a branch on the number of values": (
        lambda x: x * 2 if x.values().shape[0] > 6 else x * 3,
        (one, lambda: (rows(4, 4),), lambda: (rows(3, 2),)),
    ),
    "with lengths": (lambda x: (x * 2 + 1, x.lengths()), (with_holes, one, with_holes)),
    "its sizes and strides as results": (lambda x: (x.size(1), x.size(), x.stride(), x + 1), (one,)),
    "an equal size": (lambda x: (x.size(1) == x.size(1), x.size(1) == 5, x.cos().size(1) == x.size(1)), (one,)),
    "two with the same offsets": (lambda x, y: x + y, (pair, strangers, pair, twice)),
    "equal shapes": (lambda x, y: x * 2 if x.shape == y.shape else x * 3, (pair, strangers, twice, pair)),
    "written to": (lambda x: (x.mul_(2), x + 1), (one, lambda: (rows(4, 4),))),
    "values written to": (lambda x: (x.values().mul_(2), x + 1), (one,)),
    "detached": (lambda x: (x.detach() * 2, x.requires_grad), (leaf, one)),
    "no gradients": (lambda x: torch.no_grad()(lambda: x * 2)(), (leaf,)),
}  # fmt: skip


def tensors(value: Any) -> list[Tensor]:
    """The dense tensors of a result, and of the nested tensors in it."""
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors(part)]
    if not isinstance(value, Tensor):
        return []
    return [value.values(), value.offsets()] if value.is_nested else [value]


def nested_ints(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [number for part in value for number in nested_ints(part)]
    if isinstance(value, Tensor):
        return [number for number in value.shape if isinstance(number, torch.SymInt)] if value.is_nested else []
    return [value] if isinstance(value, torch.SymInt) else []


def others(value: Any) -> Any:
    """Everything in a result but its tensors and nested ints."""
    if isinstance(value, (tuple, list)):
        return type(value), [others(part) for part in value]
    return type(value) if isinstance(value, (Tensor, torch.SymInt)) else value


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, gradients and equal ragged sizes after a call; the class of the error if it raises."""
    torch.manual_seed(0)
    try:
        result = function(*args)
    except RuntimeError as error:
        return (RuntimeError, type(error).__name__ == "Unsupported")
    parts = [*tensors(result), *tensors(args)]
    total = [part.double().sum() for part in tensors(result) if part.requires_grad]
    is_needed = bool(total) and args[0].requires_grad
    gradients = torch.autograd.grad(total, args[0], allow_unused=True) if is_needed else ()
    sizes = nested_ints([result, list(args)])
    relations = [[bool(a == b) for b in sizes] for a in sizes]
    facts = [(part.dtype, part.requires_grad) for part in parts]
    return [part.detach() for part in parts], tensors(list(gradients)), relations, facts, others(result)


def check_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected), (found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list) and theirs and isinstance(theirs[0], Tensor):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        else:
            assert ours == theirs


@pytest.mark.fractional
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_jagged_tensors_does_what_eager_does(name: str, backend: str) -> None:
    function, makers = PROGRAMS[name]
    reset()
    compiled = compile(function, backend=backend, fullgraph=True)
    for make in makers:
        expected = outcome(function, make())
        if expected[0] is RuntimeError:
            with pytest.raises(RuntimeError, match="raises RuntimeError"):
                compiled(*make())
        else:
            check_equal(outcome(compiled, make()), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_rows_of_other_lengths_run_the_same_graphs(backend: str) -> None:
    reset()
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return lookup_backend(backend)(graph, example_inputs)

    compiled = compile(lambda x: (LINEAR(x).relu() * x.values().shape[0], x.size(1)), backend=counting, fullgraph=True)
    lengths = random.Random(1)
    for seed in range(12):
        x = rows(lengths.randint(1, 9), lengths.randint(2, 9), seed=seed)
        y, size = compiled(x)
        assert size == x.size(1)
        assert torch.equal(y.values(), (LINEAR(x).relu() * x.values().shape[0]).values())
    assert len(graphs) <= 4  # the first lengths, then a symbol for all; extremes of 1 are numbers


def test_a_jagged_tensor_crosses_a_break() -> None:
    reset()
    seen: list[int] = []

    def program(x: Any) -> Any:
        y = x * 2
        seen.append(id(type(y)))
        print(end="")
        return y.sin() + x

    x = rows()
    assert torch.equal(compile(program, backend="aot_eager")(x).values(), program(x).values())


def test_attention_on_jagged_tensors_breaks_the_graph_between_layers() -> None:
    def program(x: Any) -> Any:
        heads = LINEAR(x).unflatten(-1, (1, 5)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)

    reset()
    compiled = compile(program, backend="aot_eager")
    for x in (rows(), rows(4, 4)):
        assert torch.equal(compiled(x).values(), program(x).values())


def test_arithmetic_with_a_ragged_size_breaks_the_graph() -> None:
    reset()
    x = rows()
    assert compile(lambda x: x.size(1) * 2, backend="aot_eager")(x) == x.size(1) * 2


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_of_make_fx_keeps_jagged_inputs_whole(mode: Any) -> None:
    graph = make_fx(lambda x: (x * 2).sin(), tracing_mode=mode)(rows())
    assert [node.name for node in graph.graph.nodes if node.op == "call_function"] == ["mul", "sin"]
    x = rows(4, 4) if mode == "symbolic" else rows()
    assert torch.equal(graph(x).values(), (x * 2).sin().values())
