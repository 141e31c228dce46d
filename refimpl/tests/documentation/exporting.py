"""Examples of torch.export's guides: exported programs run like the modules that they were made of."""

from __future__ import annotations

import io
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from refimpl.tests.documentation.example import Page, equal, raising

_GUIDE = "user_guide/torch_compiler"
_AREA = "torch.export"
guide = Page(_AREA, "torch.export", f"{_GUIDE}/export.html", "export")
model = Page(_AREA, "torch.export Programming Model", f"{_GUIDE}/export/programming_model.html", "export")
draft = Page(_AREA, "Draft Export", f"{_GUIDE}/export/draft_export.html", "export")
tutorial = Page(_AREA, "torch.export Tutorial", "intermediate/torch_export_tutorial.html", "export")
ir = Page(_AREA, "torch.export IR Specification", f"{_GUIDE}/export/ir_spec.html", "export")
archive = Page(_AREA, "PT2 Archive Spec", f"{_GUIDE}/export/pt2_archive.html", "export")


class _Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tan(x) - torch.cos(y)


class _Two(nn.Module):
    """Two branches and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 3), nn.ReLU())
        self.right = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
        self.offset = torch.ones(3)

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(x1) - self.offset, self.right(x2)


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1, 1)
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.bn(self.conv(x)),)


def _names(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@guide
def a_module_of_two_calls(api: Any) -> None:
    """The graph is of aten operators, and gives eager's values."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    program = api.export.export(_Sum(), args=(x, y))
    equal(_names(program), ["aten.tan.default", "aten.cos.default", "aten.sub.Tensor"])
    equal(program.module()(x, y), _Sum()(x, y))


@guide
def a_module_with_a_keyword(api: Any) -> None:
    """Parameters are inputs of the graph; the keyword is passed by its name; in-place addition stays."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, kernel_size=3, padding=1)
            self.pool = nn.MaxPool2d(kernel_size=3)

        def forward(self, x: torch.Tensor, *, constant: Any = None) -> torch.Tensor:
            a = self.conv(x)
            a.add_(constant)
            return self.pool(torch.relu(a))

    module, x, constant = Pooled(), torch.randn(1, 3, 9, 9), torch.ones(1, 4, 9, 9)
    program = api.export.export(module, args=(x,), kwargs={"constant": constant})
    equal(program.module()(x, constant=constant), module(x, constant=constant))
    equal(sorted(program.graph_signature.parameters), ["conv.bias", "conv.weight"])
    assert "aten.add_.Tensor" in _names(program)


@guide
def sizes_are_fixed(api: Any) -> None:
    """Another batch is refused."""
    module = _Two()
    program = api.export.export(module, (torch.randn(5, 6), torch.randn(5, 8)))
    with raising(Exception):
        program.module()(torch.randn(7, 6), torch.randn(7, 8))


@guide
def a_named_size(api: Any) -> None:
    """One Dim for two arguments: another batch runs, two different ones are refused."""
    module, batch = _Two(), api.export.Dim("batch")
    given = (torch.randn(5, 6), torch.randn(5, 8))
    program = api.export.export(module, args=given, dynamic_shapes={"x1": {0: batch}, "x2": {0: batch}})
    x1, x2 = torch.randn(7, 6), torch.randn(7, 8)
    for one, other in zip(program.module()(x1, x2), module(x1, x2), strict=True):
        equal(one, other)
    with raising(Exception):
        program.module()(x1, torch.randn(6, 8))


@guide
def sizes_in_relation(api: Any) -> None:
    """A Dim with bounds, and one that is twice another."""

    class Halves(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() + y[: x.shape[0]].sum() + y.shape[1]

    dx, dh = api.export.Dim("dx", min=4, max=256), api.export.Dim("dh", max=512)
    given = (torch.ones(5, 2), torch.ones(10, 3))
    program = api.export.export(Halves(), given, dynamic_shapes={"x": (dx, None), "y": (2 * dx, dh)})
    equal(program.module()(torch.ones(6, 2), torch.ones(12, 4)), torch.tensor(12.0 + 24 + 4))
    with raising(Exception):
        program.module()(torch.ones(6, 2), torch.ones(13, 4))
    with raising(Exception):
        program.module()(torch.ones(3, 2), torch.ones(6, 4))


@guide
def sizes_that_are_found_out(api: Any) -> None:
    """Dim.DYNAMIC and Dim.AUTO: export finds that the sizes are equal."""
    dynamic, auto = api.export.Dim.DYNAMIC, api.export.Dim.AUTO
    given = (torch.randn(5, 4), torch.randn(5, 4))
    program = api.export.export(_Sum(), given, dynamic_shapes={"x": (dynamic, None), "y": (dynamic, auto)})
    x = torch.randn(7, 4)
    equal(program.module()(x, x), _Sum()(x, x))
    with raising(Exception):
        program.module()(x, torch.randn(6, 4))


@guide
def a_size_that_must_be_fixed(api: Any) -> None:
    """Dim.DYNAMIC on a size that a parameter fixes raises; Dim.AUTO does not."""
    module = nn.Linear(4, 2)
    with raising(Exception):
        api.export.export(module, (torch.randn(3, 4),), dynamic_shapes=((None, api.export.Dim.DYNAMIC),))
    program = api.export.export(module, (torch.randn(3, 4),), dynamic_shapes=((None, api.export.Dim.AUTO),))
    x = torch.randn(3, 4)
    equal(program.module()(x), module(x))


@guide
def sizes_by_tensor(api: Any) -> None:
    """ShapesCollection: sizes are given for tensors in a nested argument."""

    class Nested(nn.Module):
        def forward(self, given: dict[str, Any]) -> Any:
            return given["x"] * 2, given["others"][0] - 1, given["others"][1] * 3

    x, y, z = torch.randn(3, 4, 8), torch.randn(6), torch.randn(6)
    given = {"x": x, "others": [y, z]}
    size = api.export.Dim("size")
    collection = api.export.ShapesCollection()
    collection[x] = (size, size + 1, 8)
    collection[y] = {0: size * 2}
    program = api.export.export(Nested(), (given,), dynamic_shapes=collection)
    other = {"x": torch.randn(4, 5, 8), "others": [torch.randn(8), torch.randn(6)]}
    equal(program.module()(other)[1], other["others"][0] - 1)


@dataclass
class _Record:
    is_set: bool
    count: int
    scale: float
    value: torch.Tensor


pytree.register_dataclass(_Record)


@guide
def sizes_by_more_inputs(api: Any) -> None:
    """AdditionalInputs: what differs between inputs is dynamic, the int too."""

    class Uses(nn.Module):
        def forward(self, record: _Record) -> torch.Tensor:
            return record.count + record.scale * record.value

    first = (_Record(True, 3, 3.0, torch.ones(3)),)
    inputs = api.export.AdditionalInputs()
    inputs.add(first)
    inputs.add((_Record(True, 4, 3.0, torch.ones(4)),))
    program = api.export.export(Uses(), first, dynamic_shapes=inputs)
    equal(program.module()(_Record(True, 6, 3.0, torch.ones(5))), torch.full((5,), 9.0))


@guide
def stored_and_loaded(api: Any) -> None:
    """save and load: the loaded program gives the same."""
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4)
    program = api.export.export(module, (x,))
    buffer = io.BytesIO()
    api.export.save(program, buffer)
    buffer.seek(0)
    equal(api.export.load(buffer).module()(x), module(x))


@guide
def a_graph_for_training(api: Any) -> None:
    """Batch norm in training: one call, which changes the running mean; gradients of the parameters are eager's."""
    torch.manual_seed(3)
    module, x = _Normed(), torch.randn(2, 1, 3, 3)
    program = api.export.export(module, (x,))
    assert "aten.batch_norm.default" in _names(program)
    exported = program.module()
    exported(x)[0].pow(2).sum().backward()
    module(x)[0].pow(2).sum().backward()
    equal(exported.bn.running_mean, module.bn.running_mean)
    equal(exported.conv.weight.grad, module.conv.weight.grad)


@guide
def a_graph_for_inference(api: Any) -> None:
    """run_decompositions with an empty table: no operator of the graph writes in place."""
    module, x = _Normed(), torch.randn(2, 1, 3, 3)
    with torch.no_grad():
        program = api.export.export(module, (x,)).run_decompositions(decomp_table={})
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert not any(t._schema.is_mutable for t in targets if isinstance(t, torch._ops.OpOverload))
    assert "aten.conv2d.default" in _names(program)
    equal(program.module()(x)[0], module(x)[0])


@guide
def a_graph_of_core_operators(api: Any) -> None:
    """The default table takes conv2d apart."""
    module, x = _Normed(), torch.randn(2, 1, 3, 3)
    with torch.no_grad():
        program = api.export.export(module, (x,)).run_decompositions(decomp_table=None)
    assert "aten.convolution.default" in _names(program)
    assert "aten.conv2d.default" not in _names(program)
    equal(program.module()(x)[0], module(x)[0])


@guide
def a_table_of_one_s_own(api: Any) -> None:
    """A decomposition of conv2d of the program is used."""
    table = api.export.default_decompositions()

    def tripled(x: Any, weight: Any, bias: Any, stride: Any = (1, 1), padding: Any = (0, 0), *rest: Any) -> Any:
        return 3 * torch.ops.aten.convolution(x, weight, bias, stride, padding, [1, 1], False, [0, 0], 1)

    table[torch.ops.aten.conv2d.default] = tripled
    module, x = nn.Conv2d(1, 2, 1), torch.randn(1, 1, 3, 3)
    program = api.export.export(module, (x,)).run_decompositions(table)
    assert "aten.mul.Tensor" in _names(program)
    equal(program.module()(x), module(x) * 3)


@model
def a_static_number(api: Any) -> None:
    """An int is part of the graph: another one is refused."""

    class Shift(nn.Module):
        def forward(self, x: torch.Tensor, y: int) -> torch.Tensor:
            z = y + 5
            return x * z

    program = api.export.export(Shift(), (torch.ones(1), 4))
    equal(program.module()(torch.ones(1), 4), torch.tensor([9.0]))
    with raising(Exception):
        program.module()(torch.ones(1), 6)


@model
def a_dataclass_as_input(api: Any) -> None:
    """A dataclass that is registered as a pytree."""

    class First(nn.Module):
        def forward(self, x: _Record) -> torch.Tensor:
            return x.value * 2

    given = _Record(False, 1, 2.0, torch.ones(3))
    equal(api.export.export(First(), (given,)).module()(given), torch.full((3,), 2.0))


class _Optional(nn.Module):
    def forward(self, x: torch.Tensor, y: Any = None) -> torch.Tensor:
        return y - x if y is not None else x + x


@model
def an_optional_argument(api: Any) -> None:
    """Given or not, the branch is burned in."""
    x, y = torch.randn(3), torch.randn(3)
    equal(api.export.export(_Optional(), (x, y)).module()(x, y), y - x)
    equal(api.export.export(_Optional(), (x,)).module()(x), x + x)


@model
def static_control_flow(api: Any) -> None:
    """A loop over layers, and a branch on a static size, leave no trace in the graph."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x) if x.shape[0] > 2 else x
            return x

    module, x = Deep(), torch.randn(4, 3)
    program = api.export.export(module, (x,))
    equal(_names(program).count("aten.linear.default"), 3)
    equal(program.module()(x), module(x))


@model
def a_branch_on_a_dynamic_size(api: Any) -> None:
    """The condition is a guard: a size on the other side is refused."""

    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] > 4 else x - 1

    sizes = ({0: api.export.Dim.DYNAMIC},)
    program = api.export.export(Branch(), (torch.zeros(6),), dynamic_shapes=sizes)
    equal(program.module()(torch.zeros(9)), torch.ones(9))
    with raising(Exception):
        program.module()(torch.zeros(3))


@model
def a_branch_on_data_is_refused(api: Any) -> None:
    """`if x.sum() > 0` cannot be exported; torch.cond can."""

    class Old(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.sum() > 0 else x.cos()

    class New(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(pred=x.sum() > 0, true_fn=lambda x: x.sin(), false_fn=lambda x: x.cos(), operands=(x,))

    with raising(Exception):
        api.export.export(Old(), (torch.ones(3),))
    run = api.export.export(New(), (torch.ones(3),)).module()
    equal(run(torch.ones(3)), torch.ones(3).sin())
    equal(run(-torch.ones(3)), torch.ones(3).cos())


@model
def a_check_of_a_size_from_data(api: Any) -> None:
    """torch._check of the number of non-zero elements: the branch is known, and checked at run time."""

    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = x.nonzero()
            torch._check(found.shape[0] > 0)
            return x.sin() if found.shape[0] > 0 else x.cos()

    run = api.export.export(Found(), (torch.ones(3),)).module()
    equal(run(torch.ones(3)), torch.ones(3).sin())
    with raising(RuntimeError):
        run(torch.zeros(3))


@model
def a_changed_buffer(api: Any) -> None:
    """A buffer that forward changes: every call of the exported module changes it."""

    class Counter(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x * self.calls

    program = api.export.export(Counter(), (torch.ones(2),))
    run = program.module()
    equal(run(torch.ones(2)), torch.ones(2))
    equal(run(torch.ones(2)), torch.full((2,), 2.0))
    equal(list(program.graph_signature.buffers), ["calls"])


@tutorial
def a_function_in_a_module(api: Any) -> None:
    """A module that calls functions of the program, strict and not."""

    def helper(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x.clamp(min=0) * scale

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return helper(self.lin(x), 0.5)

    module, x = Calls(), torch.randn(3, 4)
    for strict in (False, True):
        equal(api.export.export(module, (x,), strict=strict).module()(x), module(x))


@tutorial
def a_break_is_an_error(api: Any) -> None:
    """Strict export refuses a branch on data by name."""

    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.sin(x)
            return x + 1 if x.sum() > 0 else x - 1

    with raising(Exception):
        api.export.export(Bad(), (torch.randn(3),), strict=True)


@tutorial
def a_program_traced_by_python(api: Any) -> None:
    """Non-strict export runs Python as it is: a call of a library on constants, an in-place dictionary update."""

    class Python(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            out = {}
            for name, factor in sorted(OrderedDict(b=2, a=3).items()):
                out[name] = x * factor
            out.update(c=x - 1)
            return out

    x = torch.randn(3)
    found = api.export.export(Python(), (x,), strict=False).module()(x)
    equal(list(found), ["a", "b", "c"])
    equal(found["a"], x * 3)


@tutorial
def constraints_are_violated(api: Any) -> None:
    """A Dim on a size that must be one number raises, with the value in the message."""

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(5, 1)

    with raising(Exception, text="5"):
        api.export.export(Fixed(), (torch.randn(5, 2),), dynamic_shapes=({0: api.export.Dim("rows")},))


@tutorial
def a_number_from_data(api: Any) -> None:
    """item() with checks makes a size."""

    class Sized(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            n: Any = x.item()
            torch._check(n >= 2)
            torch._check(n < 10)
            return y.new_ones(n) * y.sum()

    run = api.export.export(Sized(), (torch.tensor(4), torch.ones(2))).module()
    equal(run(torch.tensor(6), torch.ones(3)[:2]), torch.full((6,), 2.0))
    with raising(RuntimeError):
        run(torch.tensor(12), torch.ones(2))


@tutorial
def decompositions_are_for_all_layers(api: Any) -> None:
    """Core operators of a small transformer layer in inference."""
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        program = api.export.export(module, (x,)).run_decompositions()
        equal(program.module()(x), module(x))
    assert not any("linear" in name for name in _names(program))


@tutorial
def unflattened(api: Any) -> None:
    """unflatten gives back the hierarchy of modules."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Sequential(nn.Linear(4, 2), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    module, x = Outer(), torch.randn(3, 4)
    whole = api.export.unflatten.unflatten(api.export.export(module, (x,)))
    equal(whole(x), module(x))
    equal(sorted(name for name, _ in whole.named_children()), ["first", "second"])


@draft
def a_draft_of_a_program_with_data(api: Any) -> None:
    """draft_export takes the way of the example values; a value for the other way is refused at run time."""

    class Way(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            n = x.item()
            return y + 1 if n > 5 else y - 1

    program = api.export.draft_export(Way(), (torch.tensor(7), torch.zeros(2)))
    run = program.module()
    equal(run(torch.tensor(9), torch.zeros(2)), torch.ones(2))
    with raising(RuntimeError):
        run(torch.tensor(3), torch.zeros(2))


@draft
def a_draft_without_a_fake_kernel(api: Any) -> None:
    """A custom operator without fake kernel: the report has its profile, and the values are right."""
    library = torch.library.Library("documentation_draft", "FRAGMENT")
    try:
        library.define("twice(Tensor a, Tensor b) -> Tensor")
        library.impl("twice", lambda a, b: a * 2 + b, "CPU")

        class Uses(nn.Module):
            def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return torch.ops.documentation_draft.twice(a, b)

        given = (torch.ones(3, 4), torch.ones(3, 4))
        program = api.export.draft_export(Uses(), given)
        equal(program.module()(*given), torch.full((3, 4), 3.0))
        equal(list(program._report.op_profiles), ["documentation_draft.twice.default"])
    finally:
        library._destroy()


@draft
def a_sliced_draft(api: Any) -> None:
    """A slice by arithmetic on a number from data."""

    class Sliced(nn.Module):
        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            a = -x.item() // 3 + 5
            z = torch.cat([z, z])
            torch._check(a >= 0)
            torch._check(a < z.shape[0])
            return z[:a] * 2

    given = (torch.tensor(3), torch.ones(3, 3))
    equal(api.export.draft_export(Sliced(), given).module()(*given), torch.full((4, 3), 2.0))


@ir
def values_of_nodes(api: Any) -> None:
    """Every node has its value; inputs are named after the arguments and parameters."""
    program = api.export.export(nn.Linear(3, 2), (torch.randn(4, 3),))
    names = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    equal(names, ["p_weight", "p_bias", "input"])
    shapes = [tuple(node.meta["val"].shape) for node in program.graph.nodes if node.op == "call_function"]
    equal(shapes, [(4, 2)])
    assert all("nn_module_stack" in node.meta for node in program.graph.nodes if node.op == "call_function")


@archive
def an_archive_on_disk(api: Any) -> None:
    """A program with a dynamic size is stored with its range."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/program.pt2"
        sizes = ({0: api.export.Dim("rows", min=2, max=9)},)
        api.export.save(api.export.export(nn.Tanh(), (torch.randn(4, 3),), dynamic_shapes=sizes), file)
        run = api.export.load(file).module()
    equal(run(torch.ones(7, 3)), torch.ones(7, 3).tanh())
    with raising(Exception):
        run(torch.ones(11, 3))


@tutorial
def a_module_is_trained_after_export(api: Any) -> None:
    """Gradients of the exported module are eager's."""
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    program = api.export.export(module, (torch.randn(2, 3),))
    x = torch.randn(2, 3)
    exported = program.module()
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    found = torch.autograd.grad(exported(x).sum(), list(exported.parameters()))
    for one, other in zip(found, expected, strict=True):
        equal(one, other)
