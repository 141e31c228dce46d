"""Objects that operators take, in captured code: opaque objects are inputs or literals of the graph, script objects inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._library.opaque_object import MemberType, OpaqueBase, register_opaque_type

import refimpl
from refimpl.capture.public.errors import Unsupported
from refimpl.export import export
from refimpl.tests.capture.compiled_graphs import Graphs

Tensor = torch.Tensor
PACKED = "__torch__.torch.classes.quantized.LinearPackedParamsBase"
ops: Any = torch.ops.refimpl_graph_objects


class Factor(OpaqueBase):
    """An object of a reference type."""

    def __init__(self, value: float) -> None:
        self.value = value

    def get(self) -> float:
        return self.value

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.value


class Guarded(OpaqueBase):
    """Its `guard_fn` tells its value."""

    def __init__(self, value: float) -> None:
        self.value = value


class Exponent:
    """An object of a value type."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exponent) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __fx_repr__(self) -> tuple[str, dict[str, type]]:
        return f"Exponent({self.value!r})", {"Exponent": Exponent}


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """times, twice and power of a tensor and an object; packed of packed weights."""
    register_opaque_type(Factor, typ="reference", members={"get": MemberType.USE_REAL, "scaled": MemberType.INLINED})
    register_opaque_type(
        Guarded, typ="reference", guard_fn=lambda each: [each.value], members={"value": MemberType.USE_REAL}
    )
    register_opaque_type(Exponent, typ="value")
    library = torch.library.Library("refimpl_graph_objects", "FRAGMENT")
    kernels: list[tuple[str, type, Callable[..., Any]]] = [
        ("times", Factor, lambda x, each: x * each.value),
        ("twice", Guarded, lambda x, each: x * each.value * 2),
        ("power", Exponent, lambda x, each: x**each.value),
    ]
    for name, class_, kernel in kernels:
        library.define(f"{name}(Tensor x, {class_.__module__}.{class_.__qualname__} each) -> Tensor")
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"refimpl_graph_objects::{name}", lambda x, each: torch.empty_like(x), lib=library)
    library.define(f"packed(Tensor x, {PACKED} weights) -> Tensor")
    library.impl("packed", lambda x, w: torch.ops.quantized.linear_dynamic_fp16(x, w), "CPU")
    torch.library.register_fake("refimpl_graph_objects::packed", lambda x, w: x.new_empty(x.shape[0], 3), lib=library)
    yield
    library._destroy()


def packed_weights(value: float) -> Any:
    return torch.ops.quantized.linear_prepack_fp16(torch.full((3, 4), value), torch.ones(3))


GLOBAL = Factor(4.0)


class Owning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = Factor(5.0)

    def forward(self, x: Tensor, _: Any) -> Tensor:
        return ops.times(x, self.factor).cos()


CASES: dict[str, tuple[Callable[..., Any], Callable[[float], Any]]] = {
    "an input": (lambda x, f: ops.times(x, f) + 1, Factor),
    "an input with a method": (lambda x, f: ops.times(x, f) * f.get(), Factor),
    "an input whose method computes": (lambda x, f: f.scaled(x) + ops.times(x, f), Factor),
    "an input that is asked for its class": (lambda x, f: ops.times(x, f) if isinstance(f, Factor) else x, Factor),
    "an input of two operators": (lambda x, f: ops.times(x, f) + ops.times(x.sin(), f), Factor),
    "an input in a list": (lambda x, f: ops.times(x, f[0]), lambda value: [Factor(value)]),
    "an input with guards": (lambda x, f: ops.twice(x, f) * f.value, Guarded),
    "a global": (lambda x, _: ops.times(x, GLOBAL), Factor),
    "of a module": (Owning(), Factor),
    "a value": (lambda x, f: ops.power(x, f) + 1, Exponent),
    "a value that is compared": (lambda x, f: ops.power(x, f) if f == Exponent(2.0) else x, Exponent),
    "a value made in the program": (lambda x, _: ops.power(x, Exponent(3.0)), Factor),
    "packed weights": (lambda x, w: ops.packed(x, w).sin(), packed_weights),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name: str, dynamic: bool) -> None:
    program, make = CASES[name]
    compiled = refimpl.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for value, rows in ((2.0, 2), (3.0, 2), (3.0, 5)):
        x = torch.linspace(0.5, 2.0, rows * 4).view(rows, 4)
        given = make(value)
        torch.testing.assert_close(compiled(x, given), program(x, given))


def test_another_object_runs_the_same_graph_and_another_value_does_not() -> None:
    graphs = Graphs()
    x = torch.ones(2)
    compiled = refimpl.compile(lambda x, f: ops.times(x, f), backend=graphs, fullgraph=True)
    assert [compiled(x, Factor(value)).tolist() for value in (2.0, 3.0)] == [[2.0, 2.0], [3.0, 3.0]]
    (graph,) = graphs.captured
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "placeholder", "call_function", "output"]
    for program, make in ((lambda x, f: ops.twice(x, f), Guarded), (lambda x, f: ops.power(x, f), Exponent)):
        graphs = Graphs()
        compiled = refimpl.compile(program, backend=graphs, fullgraph=True)
        for value in (2.0, 2.0, 3.0):
            compiled(x, make(value))
        assert len(graphs.captured) == 2


@pytest.mark.parametrize(("operator", "make"), [("times", Factor), ("twice", Guarded), ("power", Exponent)])
def test_an_object_that_changes_in_place_is_noticed(operator: str, make: Callable[[float], Any]) -> None:
    compiled = refimpl.compile(lambda x, f: getattr(ops, operator)(x, f), backend="aot_eager", fullgraph=True)
    x, given = torch.full((2,), 2.0), make(2.0)
    for value in (2.0, 3.0):
        given.value = value
        assert torch.equal(compiled(x, given), getattr(ops, operator)(x, given))


def test_a_value_is_a_literal_of_the_graph() -> None:
    graphs = Graphs()
    refimpl.compile(lambda x, f: ops.power(x, f), backend=graphs, fullgraph=True)(torch.ones(2), Exponent(2.0))
    assert "Exponent(2.0)" in graphs.captured[0].code


def test_an_object_of_a_reference_type_cannot_be_made_in_the_graph() -> None:
    with pytest.raises(Unsupported, match="a Factor"):
        refimpl.compile(lambda x: ops.times(x, Factor(2.0)), backend="eager", fullgraph=True)(torch.ones(2))


def test_a_method_of_a_script_object_without_a_fake_breaks_the_graph() -> None:
    with pytest.raises(Unsupported, match="attribute bias of a script object"):
        refimpl.compile(lambda x, w: x + w.bias(), backend="eager", fullgraph=True)(torch.ones(3), packed_weights(1.0))


def test_strict_export_takes_objects() -> None:
    module, x = Owning(), torch.ones(2, 4)
    program = export(module, (x, Factor(1.0)), strict=True)
    torch.testing.assert_close(program.module()(x, Factor(1.0)), module(x, None))
