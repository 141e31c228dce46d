"""Wrapper subclasses through AOT autograd: dense graphs inside, outside what eager has (AO-09, AO-18, AO-48, XC-18)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.subclasses import WrapperSubclass
from torch.testing._internal.two_tensor import TwoTensor

from refimpl._torch import pytree
from refimpl.aot.analysis.subclasses import dense_parts
from refimpl.aot.errors import StaleWrapper, UnexpectedSubclass
from refimpl.aot_entry_points import aot_function, aot_module
from refimpl.pipeline import compile_aot
from refimpl.tests.graphs import Graphs

Tensor = torch.Tensor
Make = Callable[[], tuple[Sequence[Tensor], Sequence[Any]]]


def nop(graph_module: torch.fx.GraphModule, examples: Any) -> torch.fx.GraphModule:
    return graph_module


def placeholders(graph_module: torch.fx.GraphModule) -> list[str]:
    return [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]


def two(*size: int, requires_grad: bool = True) -> Any:
    return TwoTensor(torch.randn(*size), torch.randn(*size)).requires_grad_(requires_grad)


# --------------------------------------------------------------------------------------------- what eager does is done


def _facts(tensor: Any, tensors: list[Any]) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    is_same = [i for i, other in enumerate(tensors) if other is tensor]
    is_view_of = [i for i, other in enumerate(tensors) if tensor._base is other]
    return (
        type(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf, tensor._is_view(),
        is_same, is_view_of, tensor._version,
    )  # fmt: skip


def _values(tensors: Sequence[Any]) -> list[Any]:
    return [[p.detach().clone() for p in dense_parts(t)] if isinstance(t, Tensor) else t for t in tensors]


def observe(function: Callable[..., Any], make: Make) -> dict[str, Any]:
    """Facts and values after the call; gradients; values after a write to every result."""
    torch.manual_seed(1)
    sources, arguments = make()
    result = function(*arguments)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [*arguments, *results]
    seen: dict[str, Any] = {"facts": [_facts(t, tensors) for t in tensors], "values": _values(tensors)}
    ends = [t for t in tensors if isinstance(t, Tensor) and t.requires_grad and t.grad_fn is not None]
    wanted = [s for s in sources if s.requires_grad]
    if ends and wanted:
        losses = [(t * (2 + i)).sin().sum() for i, t in enumerate(ends)]
        found = torch.autograd.grad(losses, wanted, allow_unused=True, retain_graph=True)
        seen["facts"].append([type(g) for g in found])
        seen["gradients"] = _values(found)
    for tensor in results:
        if isinstance(tensor, Tensor):
            with torch.no_grad():
                try:
                    tensor.add_(1)
                except RuntimeError as refusal:
                    seen["facts"].append(type(refusal))
    return {**seen, "values after a write": _values(tensors)}


def assert_agrees(function: Callable[..., Any], make: Make, **options: Any) -> None:
    __tracebackhide__ = True
    expected = observe(function, make)
    actual = observe(aot_function(function, nop, **options), make)
    assert actual["facts"] == expected["facts"]
    for part in expected:
        if part != "facts":
            torch.testing.assert_close(actual[part], expected[part], msg=lambda text, p=part: f"{p}: {text}")


def _leaf() -> Any:
    x = two(4, 4)
    return [x], [x]


def _inner() -> Any:
    x = two(4, 4)
    return [x], [x * 1]


def _no_gradient() -> Any:
    return [], [two(4, 4, requires_grad=False)]


def _plain() -> Any:
    x = torch.randn(4, 4, requires_grad=True)
    return [x], [x]


def _mixed() -> Any:
    x, y = two(4, 4), torch.randn(4, 4, requires_grad=True)
    return [x, y], [x * 1, y]


def _view() -> Any:
    x = two(4, 4)
    return [x], [(x * 1)[1:3]]


def _two_views() -> Any:
    x = two(4, 4)
    whole = x * 1
    return [x], [whole[:3], whole[1:]]


def _base_and_view() -> Any:
    x = two(4, 4)
    whole = x * 1
    return [x], [whole, whole.t()]


def _nested() -> Any:
    x: Any = TwoTensor(two(4, 4, requires_grad=False), two(4, 4, requires_grad=False)).requires_grad_()
    return [x], [x * 1]


def _one_part_twice() -> Any:
    part = torch.randn(4, 4)
    x: Any = TwoTensor(part, part).requires_grad_()
    return [x], [x]


def _part_beside() -> Any:
    part = torch.randn(4, 4)
    return [], [TwoTensor(part, torch.randn(4, 4)), part]


def in_place(x: Any) -> Any:
    x.mul_(2)
    return x * 3


def in_place_on_view(x: Any) -> Any:
    x[0].mul_(2)
    return x * 3


def in_place_on_part(x: Any) -> Any:
    x.a.mul_(2)
    return x * 3


def in_place_on_detached(x: Any) -> Any:
    x.detach().mul_(2)
    return x.add(3)


def transposed_in_place(x: Any) -> Any:
    x.t_()
    return x * 3


def two_views_of_intermediate(x: Any) -> Any:
    y = x * 2
    return y.view(-1), y.t()


def intermediate_and_view(x: Any) -> Any:
    y = x * 2
    return y, y.t()


def writes_second(x: Any, y: Any) -> Any:
    y.mul_(2)
    return x * y


def writes_both(x: Any, y: Any) -> Any:
    x.add_(y)
    return x * y, y + 1


def without_gradient(x: Any) -> Any:
    with torch.no_grad():
        return x * 2, x.t()


PROGRAMS: list[tuple[Callable[..., Any], Make]] = [
    (lambda x: x * 2, _leaf),
    (lambda x: (x @ x.t()).relu(), _inner),
    (lambda x: x.sum(), _leaf),
    (lambda x: x, _leaf),
    (lambda x: (x.cos(), x.t(), x), _inner),
    (lambda x: x.view(-1), _leaf),
    (lambda x: x[1:].t()[0], _leaf),
    (lambda x: x.unbind(), _leaf),
    (lambda x: (x * 2).chunk(2), _leaf),
    (lambda x: x.detach(), _leaf),
    (lambda x: x.requires_grad_(), _no_gradient),
    (lambda x: (x.a * 2, x.b.t(), x * 3), _leaf),
    (lambda x: (x.a, x * 3), _no_gradient),
    (lambda x: (x.a.t(), x.a.view(-1)), _no_gradient),
    (lambda x: x * x, _one_part_twice),
    (lambda x: TwoTensor(x.detach(), x.detach().sin()), _plain),
    (lambda x: TwoTensor(x.detach() + 1, x.detach() * 2).mul(3), _plain),
    (lambda x, y: (x * y, y + 1), _mixed),
    (lambda x: torch.ones(4, 4) * x, _leaf),
    (two_views_of_intermediate, _leaf),
    (intermediate_and_view, _leaf),
    (in_place, _inner),
    (in_place, _no_gradient),
    (in_place, _view),
    (in_place, _nested),
    (in_place_on_view, _inner),
    (in_place_on_part, _no_gradient),
    (in_place_on_detached, _inner),
    (transposed_in_place, _inner),
    (transposed_in_place, _no_gradient),
    (writes_second, _two_views),
    (writes_second, _base_and_view),
    (writes_second, _part_beside),
    (writes_both, _mixed),
    (lambda x, y: (x.mul_(2), y * 3), _part_beside),
    (lambda x: x.copy_(x.t() * 2), _inner),
    (lambda x: (x.sin(), x.view(-1)), _nested),
    (without_gradient, _leaf),
]


@pytest.mark.parametrize(("program", "make"), PROGRAMS)
def test_a_program_on_wrappers_does_what_eager_does(program: Callable[..., Any], make: Make) -> None:
    """AO-48, XC-18"""
    assert_agrees(program, make)


@pytest.mark.parametrize(("program", "make"), PROGRAMS[::2])
def test_sizes_may_be_symbols(program: Callable[..., Any], make: Make) -> None:
    """AO-48"""
    assert_agrees(program, make, dynamic=True)


def test_another_size_needs_no_other_graph() -> None:
    graphs = Graphs()
    compiled = aot_function(lambda x, y: (x * y).sin(), graphs, dynamic=True)
    for size in (3, 5):
        x, y = two(size, 4), torch.randn(size, 4)
        compiled(x, y).sum().backward()
        torch.testing.assert_close(x.grad.a, y * (x.a * y).cos())
        assert x.grad.shape == (size, 4)
    assert len(graphs.seen) == 2


# -------------------------------------------------------------------------------------------------------------- graphs


def test_placeholders_are_dense() -> None:
    """AO-48"""
    graphs = Graphs()
    x = two(3, 4)
    out = aot_function(lambda x: x * 2, graphs)(x)
    out.sum().backward()
    forward, backward = graphs.seen
    assert placeholders(forward) == ["primals_1", "primals_2"]
    assert placeholders(backward) == ["tangents_1", "tangents_2"]
    assert all(type(n.meta["val"]).__name__ == "FakeTensor" for n in forward.graph.nodes if n.op == "placeholder")
    assert type(out) is TwoTensor
    assert type(x.grad) is TwoTensor


def test_a_wrapper_of_wrappers_has_as_many_placeholders_as_dense_tensors() -> None:
    graphs = Graphs()
    aot_function(lambda x: x.detach() * 2, graphs)(_nested()[1][0])
    assert placeholders(graphs.seen[0]) == ["arg0_1", "arg1_1", "arg2_1", "arg3_1"]


def test_two_outputs_that_alias_one_another_are_supported() -> None:
    """AO-18: upstream raises; here the views are replayed on the wrapper, so that one sees writes to the other."""
    x = two(4, 4)
    a, b = aot_function(two_views_of_intermediate, nop)(x)
    a.mul_(3)
    torch.testing.assert_close(b.a, (x.a * 6).t())
    b.sum().backward()
    assert torch.equal(x.grad.b, torch.full((4, 4), 6.0))


def test_an_output_that_has_a_part_of_the_input_has_tangents_of_its_own() -> None:
    """AO-09: the offsets of a nested tensor are those of the input, the tangents are no placeholders of the input."""
    graphs = Graphs()
    x = _jagged()
    out = aot_function(lambda x: x * 2, graphs)(x)
    assert out.offsets() is x.offsets()
    (out.values() * torch.arange(6).unsqueeze(1)).sum().backward()
    torch.testing.assert_close(x.grad.values(), 2.0 * torch.arange(6).unsqueeze(1).expand(6, 3))
    backward = graphs.seen[1]
    used = [n.name for n in backward.graph.nodes if n.op == "placeholder" and n.users]
    assert "tangents_1" in used


# ------------------------------------------------------------------------------------------------------ nested tensors


def _jagged() -> Any:
    torch.manual_seed(0)
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2,
        lambda x: x @ torch.ones(3, 5),
        lambda x: x.transpose(1, 2),
        lambda x: x.values() * 2,
        lambda x: torch.nn.functional.softmax(x, dim=-1),
        lambda x: (x * 1).mul_(2),
        lambda x: x,
    ],
)
def test_nested_tensors_do_what_eager_does(program: Callable[..., Any]) -> None:
    """XC-18: jagged layout"""
    found = []
    for function in (program, aot_function(program, nop)):
        x = _jagged()
        out = function(x)
        values = out.values() if out.is_nested else out
        values.sin().sum().backward()
        found.append((type(out), out.requires_grad, values.detach(), x.grad.values()))
    assert found[0][:2] == found[1][:2]
    torch.testing.assert_close(found[1][2:], found[0][2:])


# ------------------------------------------------------------------------------------------------------------ tangents


def test_a_plain_gradient_becomes_a_wrapper() -> None:
    x = two(3, 4)
    aot_function(lambda x: x * 2, nop)(x).backward(torch.full((3, 4), 5.0))
    assert type(x.grad) is TwoTensor
    assert torch.equal(x.grad.b, torch.full((3, 4), 10.0))


def test_an_output_without_gradient_counts_as_zeros() -> None:
    """AO-52"""
    x = two(3, 4)
    _, used = aot_function(lambda x: (x * 2, x.sin()), nop)(x)
    used.sum().backward()
    torch.testing.assert_close(x.grad.a, x.a.cos())


def test_a_class_may_say_how_it_becomes_the_expected_gradient() -> None:
    x = two(3, 4)
    aot_function(lambda x: x * 2, nop)(x).backward(WrapperSubclass(torch.full((3, 4), 5.0)))
    assert torch.equal(x.grad.a, torch.full((3, 4), 10.0))


def test_a_gradient_of_an_unexpected_class_is_refused() -> None:
    x = WrapperSubclass(torch.randn(3, 4)).requires_grad_()
    out = aot_function(lambda x: x * 2, nop)(x)
    with pytest.raises(UnexpectedSubclass, match="gradient 0 of a compiled function is TwoTensor"):
        out.backward(two(3, 4, requires_grad=False))


def test_gradients_in_another_memory_layout_are_copied() -> None:
    x = two(3, 4)
    tangent: Any = TwoTensor(torch.randn(4, 3).t(), torch.randn(4, 3).t())
    aot_function(lambda x: (x * 2).view(-1).view(3, 4), nop)(x).backward(tangent)
    torch.testing.assert_close(x.grad.a, tangent.a * 2)


# ------------------------------------------------------------------------------------------------- around the compiled


def test_arguments_of_another_class_are_refused() -> None:
    compiled = aot_function(lambda x: x * 2, nop)
    compiled(two(3, 4, requires_grad=False))
    with pytest.raises(UnexpectedSubclass, match="argument 0 of a compiled function is Tensor"):
        compiled(torch.ones(3, 4))


def test_parameters_may_be_wrappers() -> None:
    """AO-26, AO-48"""
    module = torch.nn.Linear(4, 4)
    module.weight = torch.nn.Parameter(TwoTensor(module.weight.detach(), module.weight.detach() * 2))
    module.bias = torch.nn.Parameter(TwoTensor(module.bias.detach(), module.bias.detach() * 2))
    x = torch.randn(2, 4)
    gradients = []
    for run in (module, aot_module(module, nop)):
        module.zero_grad()
        run(x).sin().sum().backward()
        gradients.append([g for p in module.parameters() for g in dense_parts(p.grad)])
    assert len(gradients[1]) == 4
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_wrapper_from_around_the_program_is_an_input() -> None:
    scale = two(4, 4, requires_grad=False)
    compiled = aot_function(lambda x: x * scale, nop)
    x = two(4, 4)
    torch.testing.assert_close(compiled(x).a, x.a * scale.a)
    scale.mul_(2)
    torch.testing.assert_close(compiled(x).a, x.a * scale.a)


def test_a_write_between_forward_and_backward_is_noticed() -> None:
    """XC-14: the parts of a wrapper know nothing of a write to it."""
    x = two(3, 4)
    y = x * 1
    out = aot_function(lambda y: y.sin(), nop)(y)
    y.add_(1)
    with pytest.raises(StaleWrapper, match="modified by an inplace operation"):
        out.sum().backward()


def test_outputs_are_freed_with_their_last_user() -> None:
    out = aot_function(lambda x: x.exp(), nop)(two(3, 4))
    gone = weakref.ref(out)
    del out
    assert gone() is None


# ------------------------------------------------------------------------------- a class that is not made of its values


class Scaled(Tensor):
    """Integers times a number. Ops see the product, and give plain tensors."""

    @staticmethod
    def __new__(cls, payload: Tensor, scale: float) -> Any:
        make: Any = getattr(Tensor, "_make_wrapper_subclass")
        return make(cls, payload.shape, strides=payload.stride(), dtype=torch.float32, device=payload.device)

    def __init__(self, payload: Tensor, scale: float) -> None:
        self.payload, self.scale = payload, scale

    def __tensor_flatten__(self) -> tuple[list[str], float]:
        return ["payload"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], scale: float, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["payload"], scale)

    def __coerce_tangent_metadata__(self) -> Tensor:
        return torch.zeros(self.shape)

    def plain(self) -> Tensor:
        return self.payload.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].payload.detach(), args[0].scale)
        args, kwargs = pytree.tree_map_only(Scaled, Scaled.plain, (args, kwargs or {}))
        return func(*args, **kwargs)


class Rounded(torch.autograd.Function):
    """Rounds to quarters. The gradient is passed on unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return Scaled((x / 0.25).round().to(torch.int8), 0.25)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * 2


def scaled(scale: float = 0.5) -> Any:
    torch.manual_seed(0)
    return Scaled(torch.randint(-8, 9, (4, 4), dtype=torch.int8), scale)


def test_a_wrapper_may_have_plain_gradients() -> None:
    """AO-48: one placeholder of integers, its gradient is dense."""
    found, graphs = [], Graphs()
    for function in (torch.matmul, aot_function(torch.matmul, graphs)):
        w, x = scaled().requires_grad_(), torch.ones(4, 4, requires_grad=True)
        out = function(w, x)
        out.sin().sum().backward()
        found.append([out.detach(), w.grad, x.grad])
    assert [type(t) for t in found[1]] == [Tensor] * 3
    torch.testing.assert_close(found[1], found[0])
    assert graphs.seen[0].graph.find_nodes(op="placeholder")[0].meta["val"].dtype == torch.int8


def test_an_output_says_what_its_gradients_are() -> None:
    """The class of the output is not that of its gradient, by `__coerce_tangent_metadata__`."""
    found = []
    for function in (Rounded.apply, aot_function(lambda x: Rounded.apply(x), nop)):
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        out: Any = function(x)
        assert type(out) is Scaled
        (out * torch.arange(4)).sum().backward()
        found.append((out.payload, x.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_what_a_wrapper_has_beside_its_tensors_is_part_of_the_program() -> None:
    compiled = aot_function(lambda w: w * 2, nop)
    assert torch.equal(compiled(scaled()), scaled().plain() * 2)
    with pytest.raises(
        UnexpectedSubclass, match=r"one with 0.25; when it was compiled it was taken to be one with 0.5"
    ):
        compiled(scaled(0.25))


def test_calls_that_differ_in_what_a_wrapper_is_made_of_are_compiled_for() -> None:
    graphs = Graphs()
    compiled = compile_aot(lambda x: (x * 2).view(-1), backend=graphs)
    for scale in (0.5, 0.25, 0.5):
        assert torch.equal(compiled(scaled(scale)), scaled(scale).plain().view(-1) * 2)
    assert len(graphs.seen) == 2
    for _ in range(2):
        x = two(2, 3, requires_grad=False)
        assert torch.equal(compiled(x).b, x.b.view(-1) * 2)
        x = _jagged().detach()
        torch.testing.assert_close(compile_aot(lambda x: x * 2)(x).values(), x.values() * 2)
    assert len(graphs.seen) == 3


def test_arguments_are_written_in_inference_mode() -> None:
    found = []
    for function in (in_place, aot_function(in_place, nop)):
        torch.manual_seed(0)
        x = two(4, 4) * 1
        with torch.inference_mode():
            out = function(x)
        found.append([*dense_parts(out), *dense_parts(x)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    "program",
    [lambda x: [part * 2 for part in x.unbind()], lambda x: [*(part.sin() for part in x.chunk(2, -1)), x * 3]],
    ids=["rows", "chunks and more"],
)
def test_parts_of_a_jagged_tensor_that_requires_a_gradient(program: Callable[..., Any]) -> None:
    """Their backward writes the gradient of each part into a gradient of the whole."""
    compiled, results = compile_aot(program), []
    for function in (program, compiled, compiled):
        values = torch.arange(15.0).reshape(5, 3).requires_grad_()
        parts = function(torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5])))
        dense = [part.values() if part.is_nested else part for part in parts]
        gradient = torch.autograd.grad(torch.stack([part.sum() for part in dense]).sum(), values)[0]
        results.append([part.tolist() for part in (*dense, gradient)])
    assert results[0] == results[1] == results[2]


def test_a_tensor_put_into_an_argument_stays_in_it() -> None:
    def program(x: Any) -> Any:
        x.a, x.b = x.b * 2, x.a
        return x + 1

    compiled = compile_aot(program)
    for _ in range(2):
        eager, given = (TwoTensor(torch.arange(3.0), torch.ones(3)) for _ in range(2))
        expected, result = program(eager), compiled(given)
        for ours, theirs in ((result, expected), (given, eager)):
            assert ours.a.equal(theirs.a)
            assert ours.b.equal(theirs.b)
