"""Tensor subclasses, wrappers of tensors and function modes in captured programs: one graph that does what eager does."""

# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from refimpl.aot.analysis.subclasses import dense_parts
from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.capture.entry_points.reset import reset
from refimpl.tests.capture.capturing import Recorder
from refimpl.tests.capture.subclass_programs import (
    AddsByMultiplying,
    Counting,
    DoublesItems,
    InFloat64,
    NoTensor,
    Operators,
    Placed,
    Plain,
    PlusOne,
    Scaled,
    Second,
    Shaped,
    Tagged,
    Tenfold,
    Unasked,
    WithMethods,
)

Tensor = torch.Tensor
Make = Callable[[], Any]


def plain(*, requires_grad: bool = False) -> Tensor:
    return torch.randn(3, 4, requires_grad=requires_grad)


def leaf() -> Tensor:
    return plain(requires_grad=True)


def of(class_: type) -> Make:
    return lambda: plain().as_subclass(class_)


def two() -> Any:
    return TwoTensor(plain(), plain())


def two_leaf() -> Any:
    return two().requires_grad_()


def scaled() -> Any:
    return Scaled(plain(), torch.tensor(2.0))


def placed() -> Any:
    return Placed(plain(), "shard")


def tagged() -> Any:
    return Tagged(plain(), "tag")


def scale_attribute() -> Any:
    x: Any = plain().as_subclass(WithMethods)
    x.scale = 2.5
    return x


def set_attribute(x: Any) -> Any:
    y = x * 2
    y.tag = "t"
    return y, y.tag


def switched_off(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.sum(x)


def all_switched_off(x: Any) -> Any:
    with AddsByMultiplying(), torch._C.DisableTorchFunction():
        return torch.add(x, 2)


def mode_inside(x: Any) -> Any:
    with AddsByMultiplying():
        return torch.add(x, 3) + 1


def nested_modes(x: Any) -> Any:
    with AddsByMultiplying(), Counting() as mode:
        y = torch.add(x, 2).sin() @ x.T
        z = y[0] + x.shape[0]
    return z, mode.count, mode.names


def item_mode(x: Any) -> Any:
    with DoublesItems():
        return x[0]


def factory_mode(x: Any) -> Any:
    with InFloat64():
        return torch.ones(3), x


def functional_mode(x: Any) -> Any:
    with Counting() as mode:
        y = (
            torch.nn.functional.max_pool2d(x[None], 2)
            + torch.nn.functional.softmax(x, 0).sum()
            + torch.cat([x, x]).sum()
        )
    return y, mode.names


def mode_left_by_an_error(x: Any) -> Any:
    try:
        with AddsByMultiplying():
            raise ValueError
    except ValueError:
        return torch.add(x, 3)


def assigned_on_wrapper(x: Any) -> Any:
    x.note = x.a * 2
    return x.note + 1


def under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        return x * 2


def unwrapped(x: Any) -> Any:
    made: Any = TwoTensor(x, x + 1)
    return made.a * made.b


def on_meta(x: Any) -> Any:
    with torch.device("meta"):
        y = torch.ones(4)
        z = torch.ones(4, device="cpu") + x.shape[0]
    return x + z, y.device.type, torch.zeros(2).device.type


def device_within_a_stack(x: Any) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        made = torch.ones(3)
    return x + 1, made.device.type, torch.ones(2)


def device_under_a_mode(x: Any) -> Any:
    with InFloat64(), torch.device("meta"):
        made = torch.ones(3)
    return x + 1, made.device.type, made.dtype


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Make, ...]]] = {
    "an operator of a wrapper": (lambda x: x * 2, (two,)),
    "gradients of a wrapper": (lambda x: (x * 2).sin(), (two_leaf,)),
    "tensors inside of a wrapper": (lambda x: x.a + x.b, (two,)),
    "a wrapper and a plain tensor": (lambda x, y: x * y, (two_leaf, leaf)),
    "a wrapper made": (lambda x: TwoTensor(x, x.sin()) * 2, (plain,)),
    "a wrapper made and unwrapped": (unwrapped, (plain,)),
    "a wrapper written to": (lambda x: (x.mul_(2), x.sum())[1], (two,)),
    "the class of a wrapper": (lambda x: (x + 1, type(x) is TwoTensor, isinstance(x, TwoTensor), x.shape[0]), (two,)),
    "a list of wrappers": (lambda x, y: [each * 2 for each in (x, y)], (two, two)),
    "views of a wrapper": (lambda x: x.view(-1)[2:].reshape(2, 5), (two_leaf,)),
    "a wrapper detached": (lambda x: x.detach() * 2, (two_leaf,)),
    "a wrapper of wrappers": (lambda x: x * 2, (lambda: TwoTensor(two(), two()),)),
    "a wrapper under no_grad": (under_no_grad, (two_leaf,)),
    "names of a wrapper's tensors": (lambda x: (x.__tensor_flatten__()[0], x + 1), (two,)),
    "an attribute assigned on a wrapper": (assigned_on_wrapper, (two,)),
    "a wrapper that becomes plain": (lambda x, y: torch.mm(y, x), (scaled, lambda: torch.randn(2, 3))),
    "a wrapper as a weight": (lambda x, w: torch.nn.functional.linear(x, w), (lambda: torch.randn(2, 4), scaled)),
    "a method of a wrapper": (lambda x: x.product() + 1, (scaled,)),
    "a wrapper made that becomes plain": (lambda x: Scaled(x, torch.tensor(2.0)) + 1, (plain,)),
    "context of a wrapper": (lambda x: (x + 1, x.placement), (placed,)),
    "context of a result": (lambda x: ((x + 1).placement, x.local.sin()), (placed,)),
    "a wrapper with another context": (lambda x: x.moved("rep") * 2, (placed,)),
    "a class that overrides nothing": (lambda x, y: (x * 2, x + y, y - x), (of(Plain), plain)),
    "as_subclass": (lambda x: x.as_subclass(Plain) * 2, (leaf,)),
    "as_subclass and back": (lambda x: (x.as_subclass(Plain) * 2).as_subclass(Tensor), (leaf,)),
    "isinstance of a result": (lambda x: (isinstance(x * 2, Plain), x * 2), (of(Plain),)),
    "a class called": (lambda x: Plain(x) * 2, (leaf,)),
    "a write to a subclass": (lambda x: (x.mul_(2), x.sum())[1], (of(Plain),)),
    "a function overridden": (lambda x: torch.sum(x * 2), (of(PlusOne),)),
    "a function overridden after as_subclass": (lambda x: torch.sum(x.as_subclass(PlusOne) * 2), (leaf,)),
    "a method beside an overridden function": (lambda x: (x * 2).sum(), (of(PlusOne),)),
    "methods and properties of a class": (lambda x: x.twice().half * x.three(), (of(WithMethods),)),
    "a class method": (lambda x: (x + 1, x.kind(), type(x).__name__), (of(WithMethods),)),
    "an attribute of a tensor": (lambda x: x * x.scale, (scale_attribute,)),
    "an attribute set on a result": (set_attribute, (of(WithMethods),)),
    "operators in Python": (lambda x: (x + 1, len(x), x[0], x - 1), (of(Operators),)),
    "a tag set by __new__": (lambda x: (lambda t: t * t.tag)(Tagged(x.sin(), 3)), (plain,)),
    "a tag passed on": (lambda x: (lambda y: (y, y.tag))(torch.relu(x)), (tagged,)),
    "an answer without the class": (lambda x: x + 1, (of(Tenfold),)),
    "the class of both that is asked first": (
        lambda x, y: (torch.add(x, y), torch.sub(x, y)), (of(Tenfold), of(Second)),
    ),
    "a class that is never asked": (lambda x: x.sin() + 1, (of(Unasked),)),
    "an object that is no tensor": (lambda x: torch.add(NoTensor(x), 1), (plain,)),
    "an argument that is no tensor": (lambda x: torch.sin(x), (lambda: NoTensor(plain()),)),
    "a property overridden": (lambda x: (x.shape, x * 2, x.size(0)), (of(Shaped),)),
    "who may be asked": (
        lambda x, y: (x + 1, torch.overrides.has_torch_function((x,)), torch.overrides.has_torch_function((y,))),
        (of(PlusOne), plain),
    ),
    "classes switched off": (switched_off, (of(PlusOne),)),
    "everything switched off": (all_switched_off, (plain,)),
    "a mode inside": (mode_inside, (leaf,)),
    "modes in each other": (nested_modes, (plain,)),
    "a mode on items": (item_mode, (plain,)),
    "a mode on a factory": (factory_mode, (plain,)),
    "a mode on functions in Python": (functional_mode, (plain,)),
    "a device around a factory": (on_meta, (plain,)),
    "a device on a stack": (device_within_a_stack, (plain,)),
    "a device under a mode": (device_under_a_mode, (plain,)),
    "a mode left by an error": (mode_left_by_an_error, (plain,)),
    "a buffer made": (lambda x: (lambda b: (b * 2, b.persistent, isinstance(b, torch.nn.Buffer)))(torch.nn.Buffer(x)), (plain,)),
    "attributes of plain tensors": (lambda x: (set_attribute(x), hasattr(x, "tag")), (leaf,)),
}  # fmt: skip


def facts(value: Any) -> Any:
    """What is compared: classes, metadata, attributes and values of tensors, and everything else."""
    if not isinstance(value, Tensor):
        return value
    with torch._C.DisableTorchFunction():
        parts = [part.detach().as_subclass(Tensor).clone() for part in dense_parts(value)]
        own = {name: item for name, item in value.__dict__.items() if not isinstance(item, Tensor)}
        return type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad, own, parts


def observed(function: Callable[..., Any], makes: tuple[Make, ...]) -> Any:
    """Facts of the results, of the arguments after the call, and of gradients."""
    torch.manual_seed(0)
    args = [make() for make in makes]
    result = function(*args)
    results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    seen = [pytree.tree_map(facts, result), [facts(arg) for arg in args if isinstance(arg, Tensor)]]
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    if leaves and any(out.requires_grad for out in results):
        loss: Any = sum((out * 2).sum() for out in results if out.requires_grad)
        loss.backward(torch.ones_like(loss))
        seen.append([None if each.grad is None else facts(each.grad) for each in leaves])
    return seen


def assert_agrees(function: Callable[..., Any], compiled: Callable[..., Any], makes: tuple[Make, ...]) -> None:
    __tracebackhide__ = True
    expected = observed(function, makes)
    for _ in range(2):
        actual = observed(compiled, makes)
        assert pytree.tree_structure(actual) == pytree.tree_structure(expected)
        for mine, theirs in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            if isinstance(theirs, Tensor):
                torch.testing.assert_close(mine, theirs)
            else:
                assert mine == theirs


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_does_what_eager_does(name: str) -> None:
    program, makes = PROGRAMS[name]
    recorder: Any = Recorder()
    assert_agrees(program, compile(program, backend=recorder, fullgraph=True), makes)
    assert len(recorder.graphs) <= 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_traced_graphs_do_what_eager_does(name: str) -> None:
    program, makes = PROGRAMS[name]
    assert_agrees(program, compile(program, backend="aot_eager"), makes)


def test_a_mode_that_is_on_around_the_call_is_in_the_graph() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.add(x, 3) + 1

    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder, fullgraph=True)
    x = plain()
    with AddsByMultiplying():
        torch.testing.assert_close(compiled(x), x * 3 + 1)
    torch.testing.assert_close(compiled(x), x + 4)
    with AddsByMultiplying():
        torch.testing.assert_close(compiled(x), x * 3 + 1)
    assert len(recorder.graphs) == 2


def test_a_mode_is_called_as_often_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.sin(x) + x.shape[0]

    compiled = compile(program, backend="aot_eager")
    for function in (program, compiled, compiled):
        x = plain()
        with Counting() as mode:
            function(x)
        assert mode.names == ["sin", "__get__", "add"]


def test_a_break_under_a_mode_of_the_program_keeps_its_meaning() -> None:
    def program(x: Tensor) -> Any:
        with AddsByMultiplying(), Counting() as mode:
            y = torch.add(x, 2)
            torch._dynamo.graph_break()
            return torch.add(y, 3), mode.count

    for backend in ("eager", "aot_eager"):
        reset()
        assert_agrees(program, compile(program, backend=backend), (plain,))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Placed(plain(), "shard"), lambda: Placed(plain(), "rep")),
        (two, plain),
        (two, of(Plain)),
        (of(Plain), of(PlusOne)),
        (two, lambda: TwoTensor(plain().double(), plain().double())),
        (lambda: Scaled(plain(), torch.tensor(2.0)), lambda: Scaled(plain(), torch.tensor(2.0, dtype=torch.float64))),
    ],
)
def test_another_class_context_or_part_is_captured_again(first: Make, second: Make) -> None:
    def program(x: Any) -> Any:
        return x * 2, getattr(x, "placement", None)

    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder)
    for make in (first, second, first, second):
        expected, actual = observed(program, (make,)), observed(compiled, (make,))
        assert str(actual) == str(expected)
    assert len(recorder.graphs) == 2


def test_capture_runs_no_code_of_the_class() -> None:
    asked: list[str] = []

    class Noting(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def program(x: Any) -> Any:
        return (torch.sin(x) + 1).as_subclass(Tensor)

    compiled = compile(program, backend="aot_eager", fullgraph=True)
    x = plain().as_subclass(Noting)
    for function in (program, compiled, compiled):
        asked.clear()
        function(x)
        assert asked == ["sin", "add"]


def test_nothing_answers_within_the_graph() -> None:
    """The graph holds what the answers were: running it asks nobody."""
    recorder: Any = Recorder()
    compiled = compile(lambda x: torch.sum(x), backend=recorder, fullgraph=True)
    x = plain().as_subclass(PlusOne)
    torch.testing.assert_close(compiled(x).as_subclass(Tensor), x.as_subclass(Tensor).sum() + 1)
    assert recorder.targets == ["sum", "add"]


def test_classes_may_be_left_out() -> None:
    recorder: Any = Recorder()
    with config.patch(nontraceable_tensor_subclasses={Plain}):
        compiled = compile(lambda x: x * 2, backend=recorder)
        assert type(compiled(plain().as_subclass(Plain))) is Plain
        assert not recorder.graphs
        compiled(plain().as_subclass(PlusOne))
    assert len(recorder.graphs) == 1


class CallsTensorsOwn(Tensor):
    """Has methods of the names of torch.Tensor's, which they call."""

    def add_(self, other: Any) -> Any:  # type: ignore[override]
        return super().add_(other * 2)

    def mul(self, other: Any) -> Any:  # type: ignore[override]
        return super().mul(other) + 1

    def __iadd__(self, other: Any) -> Any:
        return super().__iadd__(other * 3)

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, item * 2)


def set_an_item(x: Any) -> Any:
    x[0] = 5
    return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.add_(1),
        lambda x: x.mul(2),
        lambda x: operator.iadd(x, 1),
        set_an_item,
        lambda x: Tensor.add_(x, 1),
        lambda x: (Tensor.mul(x, 2), x.mul(3)),
    ],
)
def test_a_method_of_super_is_torch_s_when_the_graph_runs(program: Callable[[Any], Any], backend: str) -> None:
    compiled = compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        x = plain()
        given, expected = (x.clone().as_subclass(CallsTensorsOwn) for _ in range(2))
        assert_like(compiled(given), program(expected))
        assert_like(given, expected)


def assert_like(found: Any, expected: Any) -> None:
    for left, right in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert type(left) is type(right)
        torch.testing.assert_close(left.as_subclass(Tensor), right.as_subclass(Tensor), rtol=0, atol=0)


def unpacked(x: Any) -> Any:
    first, *others = x
    return first + 1, others


@pytest.mark.parametrize(
    "program", [list, unpacked, lambda x: [row * 2 for row in x], lambda x: [a + b for a, b in zip(x, x, strict=True)]]
)
@pytest.mark.parametrize("class_", [Plain, PlusOne, Tagged])
def test_the_rows_of_a_tensor_are_of_its_class(program: Callable[[Any], Any], class_: Any) -> None:
    """Iterating calls `unbind`, which `__torch_function__` answers."""
    compiled = compile(program, backend="eager", fullgraph=True)
    x = plain()
    assert_like(compiled(x.clone().as_subclass(class_)), program(x.clone().as_subclass(class_)))


class Zeros(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.add, Tensor.unbind):
            return func(torch.zeros(2, 2), *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_what_switches_overrides_off_is_guarded() -> None:
    """With all of them off, the mode does not answer either."""

    def program(x: Any) -> Any:
        return torch.add(x, 3)

    compiled = compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2, 2).as_subclass(Plain)
    with Zeros():
        for switch in (contextlib.nullcontext, torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction):
            with switch():
                expected, found = program(x), compiled(x)
            assert_like(found, expected)


def test_a_mode_answers_what_iterating_calls() -> None:
    compiled = compile(unpacked, backend="eager", fullgraph=True)
    with Zeros():
        expected, found = unpacked(torch.ones(2, 2)), compiled(torch.ones(2, 2))
    assert_like(found, expected)
