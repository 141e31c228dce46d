"""Values that are no plain tensors: tensor subclasses, script and opaque objects, lists that an op writes to."""

from __future__ import annotations

import enum
import logging
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._library.opaque_object import OpaqueBase, register_opaque_type
from torch.testing._internal.two_tensor import TwoTensor

import refimpl
from refimpl.errors import UnsupportedByRefimpl
from refimpl.tests.graphs import targets_of

MODES = ("real", "fake", "symbolic")
Tensor = torch.Tensor
aten = torch.ops.aten


# ----------------------------------------------------------------------------------------------------- subclasses


def test_types_that_are_left_to_themselves_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """PX-13"""
    with caplog.at_level(logging.DEBUG, logger="refimpl.trace.not_implemented"):
        refimpl.make_fx(lambda x: TwoTensor(x, x + 1).sin().a)(torch.ones(2))  # pyright: ignore[reportAttributeAccessIssue]
    messages = [record.getMessage() for record in caplog.records if record.name == "refimpl.trace.not_implemented"]
    assert len(messages) == 1
    assert "TwoTensor" in messages[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_subclass_made_along_the_way_desugars(mode: str) -> None:
    """PX-13"""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z: Any = (TwoTensor(x, y).sin() + 1).mul(2)
        return z.a, z.b

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3, 4), torch.randn(3, 4))
    assert targets_of(graph_module) == [aten.sin.default] * 2 + [aten.add.Tensor] * 2 + [aten.mul.Tensor] * 2
    size = 5 if mode == "symbolic" else 3
    x, y = torch.randn(size, 4), torch.randn(size, 4)
    torch.testing.assert_close(graph_module(x, y), program(x, y))


@pytest.mark.parametrize("mode", MODES)
def test_a_subclass_among_the_inputs_is_one_value(mode: str) -> None:
    """XC-18: what the graph is given is what it gives back."""

    def program(x: Tensor) -> Tensor:
        return (x.sin() + 1) * x.shape[0]

    two = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    graph_module = refimpl.make_fx(program, tracing_mode=mode)(two)
    assert isinstance(graph_module.graph.find_nodes(op="placeholder")[0].meta["val"], TwoTensor)
    size = 6 if mode == "symbolic" else 3
    for x in (TwoTensor(torch.randn(size, 4), torch.randn(size, 4)), torch.randn(size, 4)):
        result = graph_module(x)
        assert type(result) is type(x)
        parts = (result.a, result.b) if isinstance(result, TwoTensor) else (result,)
        expected = program(x)
        expected_parts = (expected.a, expected.b) if isinstance(expected, TwoTensor) else (expected,)
        torch.testing.assert_close(parts, expected_parts)


@pytest.mark.parametrize("mode", MODES)
def test_a_subclass_goes_through_a_graph_of_its_parts_and_back(mode: str) -> None:
    """XC-18"""
    two: Any = TwoTensor(torch.randn(3, 2), torch.randn(3, 2))
    names, context = two.__tensor_flatten__()

    def on_parts(*parts: Tensor) -> tuple[Tensor, ...]:
        x = TwoTensor.__tensor_unflatten__(
            dict(zip(names, parts, strict=True)), context, parts[0].shape, parts[0].stride()
        )
        y: Any = x @ x.t() + 1
        return tuple(getattr(y, name) for name in y.__tensor_flatten__()[0])

    graph_module = refimpl.make_fx(on_parts, tracing_mode=mode)(*(getattr(two, name) for name in names))
    assert targets_of(graph_module).count(aten.mm.default) == 2
    result = TwoTensor(*graph_module(two.a, two.b))
    expected: Any = two @ two.t() + 1
    torch.testing.assert_close((result.a, result.b), (expected.a, expected.b))


@pytest.mark.parametrize("mode", ("real", "fake"))
def test_a_subclass_in_a_subclass_desugars_to_all_its_parts(mode: str) -> None:
    def program(x: Tensor) -> Tensor:
        inner = TwoTensor(x, x + 1)
        outer: Any = TwoTensor(inner, inner).sin()
        return outer.b.b

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3))
    assert targets_of(graph_module).count(aten.sin.default) == 4
    x = torch.randn(3)
    torch.testing.assert_close(graph_module(x), (x + 1).sin())


def test_a_fake_tensor_from_around_is_a_constant_where_that_is_allowed() -> None:
    """PX-13"""
    with torch._subclasses.FakeTensorMode() as mode:
        captured = torch.ones(3)
    with mode:
        with pytest.raises(RuntimeError, match="is not tracked"):
            refimpl.make_fx(lambda x: x + captured, tracing_mode="fake")(torch.ones(3))
        graph_module = refimpl.make_fx(lambda x: x + captured, tracing_mode="fake", _allow_fake_constant=True)(
            torch.ones(3)
        )
    assert graph_module._tensor_constant0 is captured


# -------------------------------------------------------------------------------------------- in-place ops on lists


@pytest.mark.parametrize("mode", MODES)
def test_an_op_that_writes_to_a_list_keeps_its_place(mode: str) -> None:
    """PX-19: its schema returns nothing, so the order of the nodes says what comes first."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        ys = [x + 1, x + 2]
        torch._foreach_mul_(ys, 2)
        before = ys[1] * 1
        torch._foreach_add_(ys, 1)
        return ys[0] * 2, before

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3))
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    assert aten._foreach_add_.Scalar in targets_of(graph_module)
    x = torch.randn(3)
    torch.testing.assert_close(graph_module(x), program(x))


@pytest.fixture
def touch() -> Iterator[Any]:
    """An op like the collectives: writes to the tensors of a list, and returns them."""
    library = torch.library.Library("refimpl_test_lists", "FRAGMENT")
    library.define("touch_(Tensor(a!)[] xs, float by) -> Tensor(a!)[]")

    def run(xs: list[Tensor], by: float) -> list[Tensor]:
        for x in xs:
            x.add_(by)
        return xs

    for key in ("CPU", "Meta"):
        library.impl("touch_", run, key)
    yield torch.ops.refimpl_test_lists.touch_.default
    library._destroy()


@pytest.mark.parametrize("mode", MODES)
def test_what_an_op_writes_to_in_a_list_is_what_it_returns_from_then_on(mode: str, touch: Any) -> None:
    """PX-19"""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        ys = [x + 1, x + 2]
        touch(ys, 3.0)
        return ys[0] * 2, ys[1]

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(3))
    (call,) = graph_module.graph.find_nodes(op="call_function", target=touch)
    items = graph_module.graph.find_nodes(op="call_function", target=operator.getitem)
    assert [node.args for node in items] == [(call, 0), (call, 1)]
    (product,) = graph_module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert product.args[0] is items[0]
    x = torch.randn(3)
    torch.testing.assert_close(graph_module(x), program(x))


# ---------------------------------------------------------------------------------------------------------- objects


def _packed() -> Any:
    weight = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, torch.randn(3))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ("real", "fake"))
def test_a_script_object_is_an_input_or_an_attribute(mode: str) -> None:
    """Its class has no fake: it stays what it is. PX-41"""
    packed, x = _packed(), torch.randn(2, 4)
    linear = torch.ops.quantized.linear_dynamic
    as_input = refimpl.make_fx(lambda x, p: linear(x, p), tracing_mode=mode)(x, packed)
    (node,) = as_input.graph.find_nodes(op="call_function", target=linear.default)
    assert [argument.op for argument in node.args] == ["placeholder", "placeholder"]
    other = _packed()
    torch.testing.assert_close(as_input(x, other), linear(x, other))
    captured = refimpl.make_fx(lambda x: linear(x, packed) + linear(x, packed), tracing_mode=mode)(x)
    assert hash(captured._object_constant0) == hash(packed)
    assert not hasattr(captured, "_object_constant1")
    torch.testing.assert_close(captured(x), linear(x, packed) * 2)


class _Scale(OpaqueBase):
    def __init__(self, factor: float) -> None:
        self.factor = factor


@pytest.fixture(scope="module")
def scale() -> Any:
    register_opaque_type(_Scale, typ="reference")
    library = torch.library.Library("refimpl_test_opaque", "FRAGMENT")
    kind = f"{_Scale.__module__}.{_Scale.__qualname__}"
    library.define(f"scale(Tensor x, {kind} by) -> Tensor")
    library.impl("scale", lambda x, by: x * by.factor, "CPU")
    torch.library.register_fake("refimpl_test_opaque::scale", lambda x, by: torch.empty_like(x), lib=library)
    yield torch.ops.refimpl_test_opaque.scale.default
    library._destroy()


@pytest.mark.parametrize("mode", MODES)
def test_an_opaque_object_is_passed_on(mode: str, scale: Any) -> None:
    """PX-05, PX-10, PX-25"""

    def program(x: Tensor, by: Any) -> tuple[Tensor, Any]:
        return scale(x, by) + 1, by

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2), _Scale(2.0))
    placeholder = graph_module.graph.find_nodes(op="placeholder")[1]
    assert isinstance(placeholder.meta["val"], _Scale if mode == "real" else FakeScriptObject)
    by = _Scale(5.0)
    result, returned = graph_module(torch.ones(2), by)
    assert result.tolist() == [6.0, 6.0]
    assert returned is by


@pytest.mark.parametrize("mode", MODES)
def test_an_object_of_the_trace_is_not_burned_into_a_branch(mode: str, scale: Any) -> None:
    def program(p: Tensor, x: Tensor, by: Any) -> Tensor:
        return torch.cond(p, lambda a: scale(a, by), lambda a: a + 1, (x,))

    with pytest.raises(UnsupportedByRefimpl, match="closes over"):
        refimpl.make_fx(program, tracing_mode=mode)(torch.tensor(True), torch.ones(2), _Scale(2.0))


def test_a_captured_object_is_an_attribute(scale: Any) -> None:
    captured = _Scale(3.0)
    graph_module = refimpl.make_fx(lambda x: scale(x, captured))(torch.ones(2))
    assert graph_module._object_constant0 is captured
    assert graph_module(torch.ones(1)).tolist() == [3.0]


class _Kind(enum.Enum):
    A = 1
    B = 2


@pytest.mark.parametrize("mode", MODES)
def test_a_member_of_an_enumeration_is_what_it_was_when_traced(mode: str) -> None:
    graph_module = refimpl.make_fx(lambda x, kind: x + 1 if kind is _Kind.A else x - 1, tracing_mode=mode)(
        torch.ones(2), _Kind.A
    )
    assert graph_module(torch.ones(2), _Kind.A).tolist() == [2.0, 2.0]
    assert targets_of(graph_module) == [aten.add.Tensor]


@pytest.mark.parametrize("mode", ("fake", "symbolic"))
def test_an_object_that_is_fake_already_is_refused(mode: str) -> None:
    """PX-41"""
    fake = FakeScriptObject(None, "refimpl_test.Nothing", None)
    with pytest.raises(AssertionError, match="the fake of a script object"):
        refimpl.make_fx(lambda x, o: x, tracing_mode=mode)(torch.ones(1), fake)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_object_passed_twice_is_its_last_placeholder() -> None:
    """PX-05"""
    packed = _packed()
    linear = torch.ops.quantized.linear_dynamic
    graph = refimpl.make_fx(lambda p, q, x: linear(x, p))(packed, packed, torch.randn(1, 4)).graph
    (node,) = graph.find_nodes(op="call_function", target=linear.default)
    assert str(node.args[1]) == "q_1"
