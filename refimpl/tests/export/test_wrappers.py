"""Exports of programs with wrapper subclasses among their inputs, parameters, buffers and results."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import export, load, save, unflatten
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.errors import GradientOfWrapper, InputMismatch
from refimpl.tests.export.forms import FORMS, STRICT, saved

Tensor = torch.Tensor


class Quantized(Tensor):
    """An int8 tensor and a scale for each row. Operators compute with the product of both."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, strides=data.stride())

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self.int_data, self.scale = data, scale

    def __tensor_flatten__(self) -> Any:
        return ["int_data", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Quantized(inner["int_data"], inner["scale"])

    def product(self) -> Tensor:
        return self.int_data.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten.t.default):
            return Quantized(func(args[0].int_data), func(args[0].scale))
        args, kwargs = pytree.tree_map_only(Quantized, Quantized.product, (args, kwargs or {}))
        return func(*args, **kwargs)


class Replacing(Quantized):
    """A write puts another tensor into it."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Replacing(inner["int_data"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mul_.Tensor:
            args[0].scale = args[0].scale * args[1]
            return args[0]
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return Replacing(func(args[0].int_data), func(args[0].scale))
        return super().__torch_dispatch__(func, types, args, kwargs)


def quantized(rows: int = 3) -> Any:
    return Quantized(
        (torch.arange(rows * 4, dtype=torch.int8) - 5).view(rows, 4), torch.linspace(0.1, 0.5, rows).unsqueeze(1)
    )


def two(start: float = 1.0) -> Any:
    return TwoTensor(torch.arange(12.0).view(3, 4) + start, torch.arange(12.0).view(3, 4) * start)


def plain() -> Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(quantized(), requires_grad=False)
        self.bias = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight, self.bias)


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = Linear()
        self.scale = nn.Parameter(two())
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        found = self.scale * (x + self.shift)
        return self.lin(x).relu() + (found.a + found.b).sum()


class Attributes(nn.Module):
    """Reads the tensors of its parameter, within a method of the class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(quantized(), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x @ self.weight.product().t(), self.weight.scale


class Buffers(nn.Module):
    """Writes to buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", two())
        self.register_buffer("last", two(2.0), persistent=False)

    def forward(self, x: Any) -> Any:
        self.seen.add_(x)
        self.last.copy_(self.seen * 2)
        return self.last + 1, self.seen.a.sum()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(quantized(), requires_grad=False)
        self.second = self.first

    def forward(self, x: Any) -> Any:
        return x * self.first + self.second


class Program(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def writes_inside(x: Any) -> Any:
    x.a.mul_(3)
    return x + 1


def of_two_levels(x: Any) -> Any:
    return TwoTensor(TwoTensor(x, x + 1), TwoTensor(x * 2, x - 1)).sin()


def branches(x: Any) -> Any:
    return torch.cond(x.a.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x.a, x.b))


class Constant(nn.Module):
    """Its tensor is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = two()

    def forward(self, x: Any) -> Any:
        return x * self.shift, (x + self.shift).a


class Assigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", two())

    def forward(self, x: Any) -> Any:
        self.seen = self.seen + x
        return self.seen * 2


def in_regions(x: Any) -> Any:
    with torch.no_grad():
        doubled = x * 2
        found = doubled.a + x.b
    with torch.autocast("cpu", torch.bfloat16):
        return doubled + 1, found, x.a @ x.b.t()


def replaces(x: Any) -> Any:
    copied = x.clone()
    before = copied.scale
    copied.mul_(2)
    return before + 1, copied.scale + 1, copied * 3


def replacing() -> Any:
    return Replacing(quantized().int_data, quantized().scale)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "a quantized weight": (Linear, lambda: (plain(),)),
    "weights of a submodule": (Inside, lambda: (plain(),)),
    "attributes": (Attributes, lambda: (plain(),)),
    "written buffers": (Buffers, lambda: (plain(),)),
    "tied weights": (Tied, lambda: (plain(),)),
    "inputs and results": (lambda: Program(lambda x, y: ((x + y).sin(), x.a * 2)), lambda: (two(), two(3.0))),
    "one input twice": (lambda: Program(lambda x, y: x * y + x.a.sum()), lambda: (two(),) * 2),
    "a written input": (lambda: Program(lambda x: x.mul_(2) + 1), lambda: (two(),)),
    "a write inside": (lambda: Program(writes_inside), lambda: (two(),)),
    "a view of an input": (lambda: Program(lambda x: (x.t(), x.t()[0])), lambda: (two(),)),
    "an input as it is": (lambda: Program(lambda x, y: (x, y.b)), lambda: (two(), two())),
    "two levels": (lambda: Program(lambda x: (x * 2, x.a + 1, x.b.a)), lambda: (TwoTensor(two(), two(2.0)),)),
    "made within": (lambda: Program(lambda x: (TwoTensor(x, x + 1) * 2).a), lambda: (plain(),)),
    "made as a result": (lambda: Program(lambda x: TwoTensor(x, x + 1) * 2), lambda: (plain(),)),
    "made of two levels": (lambda: Program(of_two_levels), lambda: (plain(),)),
    "a constant": (Constant, lambda: (plain(),)),
    "a written, assigned buffer": (Assigned, lambda: (plain(),)),
    "regions": (lambda: Program(in_regions), lambda: (two(),)),
    "replaced tensors": (lambda: Program(replaces), lambda: (replacing(),)),
    "a result in a dict": (lambda: Program(lambda x, y: {"s": x - y, "l": [x.a, y]}), lambda: (two(), two(2.0))),
    "tensors inside as operands": (lambda: Program(branches), lambda: (two(),)),
}
EVERY = pytest.mark.parametrize("name", list(PROGRAMS))


def dense(value: Any) -> list[Any]:
    """The dense tensors in a value, with the classes of wrappers."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, (Quantized, TwoTensor)):
            names = leaf.__tensor_flatten__()[0]
            found += [type(leaf), *dense([getattr(leaf, name) for name in names])]
        else:
            found.append(leaf)
    return found


def assert_same(found: Any, expected: Any) -> None:
    __tracebackhide__ = True
    mine, other = dense(found), dense(expected)
    for a, b in zip(mine, other, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


def run(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """The results of two calls with the same inputs, and the inputs afterwards: writes to state and inputs show."""
    with torch.no_grad():
        return module(*inputs), module(*inputs), inputs


@STRICT
@EVERY
def test_all_forms_compute_what_eager_does(name: str, strict: bool) -> None:
    make, inputs = PROGRAMS[name]
    expected = run(make(), inputs())
    for form in ("decomposed",) if strict else ("exported", "functional", "exported again, decomposed"):
        made = FORMS[form](export(make(), inputs(), strict=strict))
        try:
            assert_same(run(made.module(), inputs()), expected)
        except AssertionError as error:
            raise AssertionError(f"{form}: {error}") from error


@pytest.mark.parametrize(
    "name", ["weights of a submodule", "attributes", "written buffers", "inputs and results", "made as a result"]
)
def test_unflattened_programs_compute_what_eager_does(name: str) -> None:
    make, inputs = PROGRAMS[name]
    for form in ("exported", "decomposed"):
        assert_same(unflatten(FORMS[form](export(make(), inputs())))(*inputs()), make()(*inputs()))


@STRICT
def test_the_graph_has_wrappers_until_it_is_decomposed(strict: bool) -> None:
    program = export(Inside(), (plain(),), strict=strict)
    assert list(program.graph_signature.parameters) == ["scale", "shift", "lin.weight", "lin.bias"]
    assert type(program.state_dict["scale"]) is TwoTensor
    assert type(next(iter(program.graph.nodes)).meta["val"]) is TwoTensor
    assert [node.args[1] for node in program.graph.nodes if node.target is getattr] == ["a", "b"]
    made = program.run_decompositions()
    expected = [
        "shift", "lin.bias", "lin.parametrizations.weight.original0", "lin.parametrizations.weight.original1",
        "parametrizations.scale.original0", "parametrizations.scale.original1",
    ]  # fmt: skip
    assert list(made.graph_signature.parameters) == expected
    assert sorted(made.state_dict) == sorted(expected)
    assert [made.state_dict[name].requires_grad for name in expected] == [True, True, False, False, True, True]
    assert not any(isinstance(node.meta.get("val"), (TwoTensor, Quantized)) for node in made.graph.nodes)


def test_buffers_keep_their_kind() -> None:
    made = export(Buffers(), (plain(),)).run_decompositions()
    assert sorted(made.state_dict) == ["parametrizations.seen.original0", "parametrizations.seen.original1"]
    assert sorted(made.constants) == ["parametrizations.last.original0", "parametrizations.last.original1"]
    assert sorted(made.graph_signature.buffers_to_mutate.values()) == sorted((*made.state_dict, *made.constants))


def test_tied_weights_stay_tied() -> None:
    state = export(Tied(), (plain(),)).run_decompositions().state_dict
    assert state["parametrizations.first.original0"] is state["parametrizations.second.original0"]


@pytest.mark.parametrize("rows", [3, 7])
def test_plain_inputs_beside_wrappers_have_dynamic_sizes(rows: int) -> None:
    for make in (Linear, Attributes, lambda: Program(lambda x: TwoTensor(x, x + 1) * 2)):
        shapes = (
            {"x": {0: torch.export.Dim("rows")}}
            if isinstance(make, type)
            else {"args": ({0: torch.export.Dim("rows")},)}
        )
        program = export(make(), (plain(),), dynamic_shapes=shapes)
        given = torch.linspace(-2, 2, rows * 4).view(rows, 4)
        for made in (program, program.run_decompositions()):
            assert_same(run(made.module(), (given,)), run(make(), (given,)))


def test_a_saved_program_has_the_dense_tensors_of_its_parameters() -> None:
    program = export(Inside(), (plain(),))
    with pytest.raises(ArchiveError, match="has for its value a TwoTensor"):
        save(program, saved(program.run_decompositions()))
    made = load(saved(program.run_decompositions()))
    assert_same(run(made.module(), (plain(),)), run(Inside(), (plain(),)))


class Scaled(nn.Module):
    """Its result is plain, so that a decomposed program has gradients too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(two())

    def forward(self, x: Any) -> Any:
        return x * self.scale


def test_gradients_are_those_of_eager() -> None:
    expected, module = Scaled(), Scaled()
    made = export(module, (plain(),)).module()
    given, mine = (plain().requires_grad_() for _ in range(2))
    expected(given).sum().backward()
    made(mine).sum().backward()
    assert_same((module.scale.grad, mine.grad), (expected.scale.grad, given.grad))


def test_gradients_that_would_be_lost_are_refused() -> None:
    made = export(Scaled(), (plain(),)).run_decompositions().module()
    with pytest.raises(GradientOfWrapper, match="a TwoTensor as a result"):
        made(plain())
    made = export(Program(lambda x: (x * 2).a), (two(),)).run_decompositions().module()
    with pytest.raises(GradientOfWrapper, match="a TwoTensor that requires gradients as an input"):
        made(two().requires_grad_())


@pytest.mark.parametrize("table", ["none", "default"])
def test_other_wrappers_are_refused(table: str) -> None:
    program = export(Program(lambda x: x * 2), (two(),))
    made = (program if table == "none" else program.run_decompositions()).module()
    with pytest.raises(InputMismatch, match="is Tensor"):
        made(plain())
    with pytest.raises(InputMismatch, match="is Quantized"):
        made(quantized())
    program = export(Program(lambda x: x * 2), (quantized(),))
    made = (program if table == "none" else program.run_decompositions()).module()
    with pytest.raises(InputMismatch, match=r"a tensor of torch.float32 and shape \(1, 1\)"):
        made(Quantized(quantized().int_data, torch.ones(1, 1)))


def test_dynamic_sizes_of_wrappers_are_refused() -> None:
    with pytest.raises(UnsupportedByRefimpl, match=r"a dynamic dimension of .*a TwoTensor"):
        export(Program(lambda x: x * 2), (two(),), dynamic_shapes={"args": ({0: torch.export.Dim("rows")},)})


def test_joint_graphs_and_preserved_calls_of_wrappers_are_refused() -> None:
    program = export(Inside(), (plain(),), preserve_module_call_signature=("lin",))
    assert_same(run(program.run_decompositions().module(), (plain(),)), run(Inside(), (plain(),)))
    with pytest.raises(RuntimeError, match="not currently supported with traceable tensor subclass"):
        export(Program(lambda x: (x * 2).a.sum()), (two(),)).forward_backward()


def test_a_replaced_tensor_of_an_input_is_refused_by_the_decomposition() -> None:
    program = export(Program(lambda x: x.mul_(2) + 1), (replacing(),))
    assert_same(run(program.module(), (replacing(),)), run(Program(lambda x: x.mul_(2) + 1), (replacing(),)))
    with pytest.raises(UnsupportedByRefimpl, match="puts another tensor into args_0, a Replacing"):
        program.run_decompositions()


@STRICT
def test_wrappers_as_operands_are_refused(strict: bool) -> None:
    program = Program(lambda x: torch.cond(x.a.sum() > 0, lambda: (x * 2).a, lambda: (x + 1).b))
    with pytest.raises(UnsupportedByRefimpl, match="cond on a TwoTensor"):
        export(program, (two(),), strict=strict)


def _assigns(x: Any) -> Tensor:
    x.a = x.b * 2
    return x * 1


def _exchanges(x: Any) -> Tensor:
    y = x + 1
    x.a, x.b = x.b, x.a
    return y


def _has_other_data(x: Any) -> Tensor:
    x.data = x * 3
    return x + 1


@pytest.mark.parametrize("function", [_assigns, _exchanges, _has_other_data])
def test_another_tensor_put_into_an_input_is_refused(function: Callable[..., Any]) -> None:
    """The graph has the wrapper as a node, and no operator puts a tensor into it."""

    class Module(nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    with pytest.raises(UnsupportedByRefimpl, match="TwoTensor"):
        export(Module(), (TwoTensor(torch.ones(2), torch.ones(2) * 2),), strict=False)
