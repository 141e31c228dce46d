"""Exported programs of the reference implementation as torch's: run, saved, decomposed, compiled, with sizes that vary."""

from __future__ import annotations

import copy
import io
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from oracle.subjects.refimpl import export
from oracle.subjects.torch_export import NotConvertible, to_torch

SIZES = (3, 4, 8)  # the ends of the range, and the size of the example
BATCH = Dim("batch", min=3, max=8)


class TiedAttention(nn.Module):
    """Containers in and out, a tied weight, a constant that nobody registered, a buffer that is not saved."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.key.weight = self.query.weight
        self.register_buffer("mask", torch.tril(torch.ones(5, 5)).bool(), persistent=False)
        self.scales = [torch.arange(8.0)]

    def forward(self, inputs: dict[str, torch.Tensor], *, scale: float = 2.0) -> dict[str, Any]:
        x = inputs["x"] * self.scales[0] * scale
        y = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), x, attn_mask=self.mask)
        return {"out": y, "parts": (y.sum((1, 2)), None, 3)}


class Updates(nn.Module):
    """Writes to a buffer and to an input, and gives a view of the input back."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.add_(x.sum(0))
        y.mul_(2)
        return self.norm(x) + self.total, y.view(-1, 2)


class Branches(nn.Module):
    """torch.cond, whose branches read a parameter; a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.cond(x.sum() > 0, lambda a: self.linear(a).sin(), lambda a: a.cos() - 1, (x,))
        with torch.no_grad():
            z = z + self.linear(x)
        return z.reshape(-1)


class CountsPositive(nn.Module):
    """A size that is known at run time only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count: Any = (x > 0).sum().item()
        torch._check(count >= 0)
        return torch.zeros(count + x.shape[0]) + 1


class ComputedSizes(nn.Module):
    """Sizes that are divided, halved and compared."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = x.shape[0]
        return x.repeat(2, 1).view(n, -1), x[: (n + 1) // 2]


class Convolution(nn.Module):
    """Convolution, pooling, dropout in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(12, 5),
        ).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _rows(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(size, 4),), {}


# model -> (class, inputs of a size, which sizes vary)
KINDS: Mapping[str, tuple[type[nn.Module], Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]], Any]] = (
    MappingProxyType(
        {
            "attention": (TiedAttention, lambda n: (({"x": torch.randn(n, 5, 8)},), {"scale": 2.0}),
                          {"inputs": {"x": {0: BATCH}}, "scale": None}),
            "updates": (Updates, lambda n: ((torch.randn(n, 4), torch.randn(n, 2, 2)), {}), ({0: BATCH}, {0: BATCH})),
            "branches": (Branches, _rows, ({0: BATCH},)),
            "counts": (CountsPositive, _rows, ({0: BATCH},)),
            "computed sizes": (ComputedSizes, _rows, ({0: BATCH},)),
            "convolution": (Convolution, lambda n: ((torch.randn(n, 2, 6, 6),), {}), ({0: BATCH},)),
        }
    )
)  # fmt: skip


def _saved(program: ExportedProgram) -> nn.Module:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


WAYS: Mapping[str, Callable[[ExportedProgram], Callable[..., Any]]] = MappingProxyType(
    {
        "module": lambda program: program.module(),
        "saved": _saved,
        "functional": lambda program: program.run_decompositions({}).module(),
        "decomposed": lambda program: program.run_decompositions().module(),
        "aot_eager": lambda program: torch.compile(program.module(), backend="aot_eager"),
    }
)


def _exported(kind: str, *, strict: bool = False) -> tuple[nn.Module, Any]:
    make, inputs, shapes = KINDS[kind]
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = make()
    args, kwargs = inputs(4)
    return module, export(copy.deepcopy(module), args, kwargs, dynamic_shapes=shapes, strict=strict)


def _leaves_of_calls(run: Callable[..., Any], kind: str) -> list[Any]:
    """Results and inputs after calls of all sizes, one after another: what one call writes the next one sees."""
    seen: list[Any] = []
    for size in SIZES:
        torch.manual_seed(size)
        args, kwargs = KINDS[kind][1](size)
        seen += pytree.tree_leaves((run(*args, **kwargs), args))
    return seen


def _assert_same(actual: list[Any], expected: list[Any], *, where: str) -> None:
    assert len(actual) == len(expected), where
    for number, (ours, wanted) in enumerate(zip(actual, expected, strict=True)):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(ours, wanted, msg=lambda text, at=number: f"{where}, leaf {at}: {text}")
        else:
            assert ours == wanted, f"{where}, leaf {number}"


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_program_gives_what_eager_gives_at_every_size(kind: str, way: str) -> None:
    module, program = _exported(kind)
    run = WAYS[way](to_torch(program))
    _assert_same(_leaves_of_calls(run, kind), _leaves_of_calls(module, kind), where=f"{kind} {way}")


@pytest.mark.parametrize("kind", KINDS)
def test_decomposed_and_strict_programs_are_converted_too(kind: str) -> None:
    for name, program in {
        "decomposed": _exported(kind)[1].run_decompositions(),
        "strict": _exported(kind, strict=True)[1],
    }.items():
        converted = to_torch(program)
        assert converted.dialect == program.dialect
        expected = _leaves_of_calls(_exported(kind)[0], kind)
        _assert_same(_leaves_of_calls(converted.module(), kind), expected, where=f"{kind} {name}")
        expected = _leaves_of_calls(_exported(kind)[0], kind)
        _assert_same(_leaves_of_calls(_saved(to_torch(_fresh(kind, name))), kind), expected, where=f"{kind} {name}")


def _fresh(kind: str, name: str) -> Any:
    program = _exported(kind, strict=name == "strict")[1]
    return program.run_decompositions() if name == "decomposed" else program


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_above_the_range_is_refused(kind: str) -> None:
    run = to_torch(_exported(kind)[1]).module()
    args, kwargs = KINDS[kind][1](9)
    with pytest.raises(AssertionError, match=r"Guard failed: .*<= 8"):
        run(*args, **kwargs)


def test_names_kinds_ranges_and_state_are_the_programs_own() -> None:
    program = _exported("updates")[1]
    converted = to_torch(program)
    assert isinstance(converted, ExportedProgram)
    assert [node.name for node in converted.graph.nodes] == [node.name for node in program.graph.nodes]
    assert [(s.kind.name, s.arg.name, s.target) for s in converted.graph_signature.input_specs] == [
        (s.kind.name, s.arg.name, s.target) for s in program.graph_signature.input_specs
    ]
    assert {str(s): (r.lower, r.upper) for s, r in converted.range_constraints.items()} == {"s77": (3, 8)}
    for name, tensor in program.state_dict.items():
        assert converted.state_dict[name] is tensor, name
    env = next(iter(converted.graph.nodes)).meta["val"].fake_mode.shape_env
    assert type(env).__module__ == "torch.fx.experimental.symbolic_shapes"
    x = next(node for node in converted.graph.nodes if node.name == "x").meta["val"]
    assert x.shape[0].node.hint == 4
    assert x.shape[0].node.shape_env is env


class NeedsEven(nn.Module):
    """Divides a size, which is then asked to be even."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] // 2, 2, -1).sum(1) if x.shape[0] % 2 == 0 else x


def test_conditions_besides_ranges_are_checked_as_well() -> None:
    program = export(NeedsEven(), (torch.ones(6, 3),), dynamic_shapes=({0: Dim.AUTO},))
    assert program.guards, "the program has no condition: nothing is tested"
    run = to_torch(program).module()
    assert run(torch.ones(10, 3)).shape == (5, 3)
    with pytest.raises(AssertionError, match="Guard failed"):
        run(torch.ones(7, 3))


class Joined(nn.Module):
    """Takes any two sizes. Only the shapes that it is exported with relate them."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) * y.shape[0]


D = Dim("d", min=2, max=9)
REFUSED: Mapping[str, tuple[nn.Module, Any, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = MappingProxyType(
    {  # name -> module, sizes that vary, sizes of the example, sizes that are taken, sizes that are refused
        "derived": (Joined(), ({0: 2 * D + 1}, {0: D}), (9, 4), (7, 3), (8, 3)),
        "derived alone": (Joined(), ({0: 2 * D + 1}, None), (9, 4), (7, 4), (8, 4)),
        "asked in the program": (NeedsEven(), ({0: Dim.AUTO},), (4,), (6,), (7,)),
    }
)


@pytest.mark.parametrize("way", ["module", "saved", "decomposed"])
@pytest.mark.parametrize("name", REFUSED)
def test_sizes_that_break_a_relation_are_refused_in_every_form(name: str, way: str) -> None:
    module, shapes, sizes, taken, refused = REFUSED[name]
    examples = tuple(torch.ones(n, 3) for n in sizes)
    program = export(module, examples, dynamic_shapes=shapes)
    run = WAYS[way](to_torch(program))
    given = [torch.randn(n, 3) for n in taken]
    torch.testing.assert_close(run(*given), module(*given))
    with pytest.raises(AssertionError, match="Guard failed"):
        run(*(torch.randn(n, 3) for n in refused))


class Listed(nn.Module):
    """Parameters that no module has registered, and a number between the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(0.5))]

    def forward(self, x: torch.Tensor, power: float, y: torch.Tensor) -> torch.Tensor:
        for value in self.held:
            x = x * value**power
        return x.view(-1, 2, 3) + y.view(-1, 2, 3)


def test_numbers_between_tensors_sizes_that_are_multiples_and_parameters_in_lists() -> None:
    module = Listed()
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    shapes = ({0: Dim.AUTO}, None, {0: Dim.AUTO})
    program = export(module, (x, 2.0, y), dynamic_shapes=shapes)
    run = to_torch(program).module()
    for size in (4, 6):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        torch.testing.assert_close(run(x, 2.0, y), module(x, 2.0, y))
    run(x, 2.0, y).sum().backward()
    ours = [value.grad for value in module.held]
    for value in module.held:
        value.grad = None
    module(x, 2.0, y).sum().backward()
    torch.testing.assert_close(ours, [value.grad for value in module.held])
    with pytest.raises(AssertionError, match="Guard failed"):
        run(torch.randn(5, 3), 2.0, torch.randn(5, 3))
    with pytest.raises(AssertionError, match="Guard failed"):
        run(x, 3.0, y)


class Grouped(nn.Module):
    """One size is twice another, a third is even."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv_transpose1d(x, weight, bias, groups=2)


def test_ranges_of_sizes_that_are_computed_are_kept() -> None:
    every = dict.fromkeys(range(3), Dim.AUTO)
    inputs = (torch.randn(1, 2, 1), torch.randn(2, 2, 1), torch.randn(4))
    program = export(Grouped(), inputs, dynamic_shapes=(every, every, {0: Dim.AUTO}))
    assert any(not expr.is_Symbol for expr in program.range_constraints), "no size is computed: nothing is tested"
    converted = to_torch(program)
    assert {str(expr): str(bounds.lower) for expr, bounds in converted.range_constraints.items()} == {
        str(expr): str(bounds.lower) for expr, bounds in program.range_constraints.items()
    }
    torch.testing.assert_close(converted.module()(*inputs), Grouped()(*inputs))


class Pooled(nn.Module):
    """Sizes that are divided and asked questions of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.lp_pool2d(x, 1.0, 2)


def test_questions_about_sizes_are_answered_by_the_shape_env_that_was_made() -> None:
    program = export(Pooled(), (torch.randn(1, 1, 4, 6),), dynamic_shapes=(dict.fromkeys(range(4), Dim.AUTO),))
    converted = to_torch(program)
    x = torch.randn(1, 1, 6, 8)
    torch.testing.assert_close(converted.module()(x), Pooled()(x))
    torch.testing.assert_close(converted.run_decompositions().module()(x), Pooled()(x))


class Unfolded(nn.Module):
    """Decomposed, its strides are products of sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(0, 0, 2)


def test_arithmetic_on_sizes_that_says_nothing_of_itself_is_evaluated() -> None:
    program = export(Unfolded(), (torch.ones(1, 2, 2),), dynamic_shapes=(dict.fromkeys(range(3), Dim.AUTO),))
    program = program.run_decompositions()
    for node in program.graph.nodes:
        if node.target is operator.mul:
            node.meta.pop("val", None)
    converted = to_torch(program)
    products = [node.meta["val"] for node in converted.graph.nodes if node.target is operator.mul]
    assert products, "no arithmetic in the graph: nothing is tested"
    assert all(isinstance(value, torch.SymInt) for value in products)
    x = torch.randn(1, 3, 2)
    assert converted.module()(x).shape == Unfolded()(x).shape


def test_a_program_of_torch_itself_is_taken() -> None:
    x = torch.randn(4, 4)
    module = Branches()
    program = torch.export.export(module, (x,), dynamic_shapes=({0: BATCH},))
    torch.testing.assert_close(to_torch(program).module()(torch.ones(8, 4)), module(torch.ones(8, 4)))


def test_gradients_flow_to_the_parameters_of_the_program() -> None:
    module, program = _exported("convolution")
    run = to_torch(program).module()
    x = torch.randn(5, 2, 6, 6)
    for forward in (module, run):
        forward(x).sum().backward()
    assert len(list(run.parameters())) == len(list(module.parameters()))
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(run.get_parameter(name).grad, parameter.grad)


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(NotConvertible, match=r"a torch\.nn\.modules\.linear\.Linear without"):
        to_torch(nn.Linear(2, 2))
    program = _exported("convolution")[1]

    def ours(x: torch.Tensor) -> torch.Tensor:
        return x

    node = next(node for node in program.graph.nodes if node.op == "call_function")
    node.target = ours
    with pytest.raises(NotConvertible, match=f"node {node.name} calls .*ours"):
        to_torch(program)
