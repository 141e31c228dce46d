"""Examples of the guides of control flow operators: cond, while_loop, scan, associative_scan and map."""

from __future__ import annotations

from typing import Any

import torch
import torch._higher_order_ops as operators
from torch import nn

from refimpl.tests.documentation.example import Page, equal, raising

associative_scan, scan, while_loop = operators.associative_scan, operators.scan, operators.while_loop
map_rows: Any = operators.map  # its annotation allows one argument only

_FOLDER = "higher_order_ops"
_AREA = "control flow"
cond = Page(_AREA, "Control Flow - Cond", f"{_FOLDER}/cond.html")
looping = Page(_AREA, "Control Flow - While Loop", f"{_FOLDER}/while_loop.html")
scanning = Page(_AREA, "Control Flow - Scan", f"{_FOLDER}/scan.html")
associative = Page(_AREA, "Control Flow - Associative Scan", f"{_FOLDER}/associative_scan.html")
mapping = Page(_AREA, "Control Flow - Map", f"{_FOLDER}/map.html")


class _BySize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda x: x.cos(), lambda x: x.sin(), (x,))


class _ByData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 4.0, lambda x: x.cos() + x, lambda x: x.sin(), (x,))


@cond
def a_branch_on_a_size(api: Any) -> None:
    """The size decides, with one graph for both sides of a dynamic one."""
    compiled = api.compile(_BySize(), backend="eager", fullgraph=True)
    for size in (3, 5):
        x = torch.randn(size)
        equal(compiled(x), x.cos() if size > 4 else x.sin())


@cond(entry="export")
def a_branch_on_a_size_exported(api: Any) -> None:
    """The predicate stays in the exported program: both sides run."""
    program = api.export.export(_BySize(), (torch.randn(4, 3),), dynamic_shapes={"x": {0: api.export.Dim.DYNAMIC}})
    run = program.module()
    for size in (3, 4, 6):
        x = torch.randn(size, 3)
        equal(run(x), x.cos() if size > 4 else x.sin())
    assert any("cond" in str(node.target) for node in program.graph.nodes)


@cond(entry="export")
def a_branch_on_data_exported(api: Any) -> None:
    """The data decides, for any batch."""
    program = api.export.export(_ByData(), (torch.randn(4, 3),), dynamic_shapes={"x": {0: api.export.Dim.DYNAMIC}})
    run = program.module()
    for x in (torch.ones(4, 3), torch.zeros(4, 3), torch.ones(7, 3)):
        equal(run(x), x.cos() + x if x.sum() > 4 else x.sin())


@cond
def a_nested_branch(api: Any) -> None:
    """cond in a branch of cond, with a tensor of the closure."""

    def body(x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.amax() > 2, lambda x: x + offset, lambda x: x - offset, (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: x * offset, (x,))

    compiled = api.compile(body, backend="aot_eager", fullgraph=True)
    offset = torch.full((3,), 5.0)
    equal(compiled(torch.full((3,), 3.0), offset), torch.full((3,), 8.0))
    equal(compiled(torch.ones(3), offset), torch.full((3,), -4.0))
    equal(compiled(-torch.ones(3), offset), torch.full((3,), -5.0))


@cond
def gradients_of_a_branch(api: Any) -> None:
    """The gradient is that of the branch that was taken."""

    def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: (x * w).sin(), lambda x, w: x - w, (x, w))

    compiled = api.compile(body, backend="aot_eager", fullgraph=True)
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign, requires_grad=True)
        w = torch.full((3,), 2.0, requires_grad=True)
        expected = (x * w).sin() if sign > 0 else x - w
        for one, other in zip(
            torch.autograd.grad(compiled(x, w).sum(), [x, w]), torch.autograd.grad(expected.sum(), [x, w]), strict=True
        ):
            equal(one, other)


@cond
def a_write_in_a_branch_is_refused(api: Any) -> None:
    """A branch that writes to its operand raises where gradients are recorded."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.add_(1), lambda x: x - 1, (x,))

    with raising(Exception):
        api.compile(body, backend="aot_eager", fullgraph=True)(torch.ones(3, requires_grad=True))


class _Doubled(nn.Module):
    def until(self, count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return count.sum() > 0

    def step(self, count: torch.Tensor, x: torch.Tensor) -> Any:
        return count - 1, x * 2

    def forward(self, count: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(self.until, self.step, (count, x))


@looping
def a_loop_on_data(api: Any) -> None:
    """The number of rounds is read from data."""
    compiled = api.compile(_Doubled(), backend="aot_eager", fullgraph=True)
    for rounds in (3, 0, 6):
        equal(compiled(torch.tensor([rounds]), torch.ones(3))[1], torch.full((3,), 2.0**rounds))


@looping(entry="export")
def a_loop_on_data_exported(api: Any) -> None:
    """The same as an exported program."""
    program = api.export.export(_Doubled(), (torch.tensor([5]), torch.ones(3)))
    for rounds in (3, 0, 6):
        equal(program.module()(torch.tensor([rounds]), torch.ones(3))[1], torch.full((3,), 2.0**rounds))
    assert any("while_loop" in str(node.target) for node in program.graph.nodes)


@looping
def a_loop_over_an_int(api: Any) -> None:
    """A carried int, and a parameter of the closure."""
    weight = torch.full((2,), 3.0)

    def body(x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x + weight), (torch.tensor(0), x))

    equal(api.compile(body, backend="aot_eager", fullgraph=True)(torch.zeros(2))[1], torch.full((2,), 12.0))


@looping
def a_write_in_a_loop_is_refused(api: Any) -> None:
    """A body that writes to what is carried raises."""

    def body(x: torch.Tensor) -> Any:
        return while_loop(lambda x: x.sum() < 10, lambda x: (x.add_(1),), (x,))

    with raising(Exception):
        api.compile(body, backend="aot_eager", fullgraph=True)(torch.zeros(3, requires_grad=True))


def _running(carry: torch.Tensor, x: torch.Tensor) -> Any:
    following = carry + x
    return following, following * 2


@scanning
def a_running_sum(api: Any) -> None:
    """The last carry and all results, from both ends."""

    def body(xs: torch.Tensor) -> Any:
        return scan(_running, torch.zeros(2), xs), scan(_running, torch.zeros(2), xs, reverse=True)

    xs = torch.arange(8.0).view(4, 2)
    (carry, ys), (last, reversed_ys) = api.compile(body, backend="aot_eager", fullgraph=True)(xs)
    equal(carry, xs.sum(0))
    equal(ys, xs.cumsum(0) * 2)
    equal(last, xs.sum(0))
    equal(reversed_ys, xs.flip(0).cumsum(0).flip(0) * 2)


@scanning(entry="export")
def a_running_sum_exported(api: Any) -> None:
    """The length is dynamic."""

    class Sums(nn.Module):
        def forward(self, xs: torch.Tensor) -> Any:
            return scan(_running, torch.zeros_like(xs[0]), xs)

    sizes = {"xs": {0: api.export.Dim.DYNAMIC}}
    run = api.export.export(Sums(), (torch.randn(5, 3),), dynamic_shapes=sizes).module()
    for length in (5, 8):
        xs = torch.randn(length, 3)
        carry, ys = run(xs)
        equal(carry, xs.sum(0))
        equal(ys, xs.cumsum(0) * 2)


@scanning
def gradients_of_a_scan(api: Any) -> None:
    """A recurrence: gradients of the start and of the sequence."""

    def body(start: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
        return scan(lambda carry, x: ((carry * x).tanh(), carry + x), start, xs)[0]

    start, xs = torch.randn(2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    expected = start
    for x in xs:
        expected = (expected * x).tanh()
    found = api.compile(body, backend="aot_eager", fullgraph=True)(start, xs)
    equal(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.sum(), [start, xs]), torch.autograd.grad(expected.sum(), [start, xs]), strict=True
    ):
        equal(one, other)


@associative
def sums_and_products(api: Any) -> None:
    """cumsum and cumprod."""

    def body(xs: torch.Tensor) -> Any:
        return (
            associative_scan(lambda a, b: a + b, xs, dim=0, combine_mode="generic"),
            associative_scan(lambda a, b: a * b, xs, dim=0, reverse=True, combine_mode="generic"),
        )

    xs = torch.arange(1.0, 6.0)
    total, product = api.compile(body, backend="aot_eager", fullgraph=True)(xs)
    equal(total, xs.cumsum(0))
    equal(product, xs.flip(0).cumprod(0).flip(0))


@associative
def a_scan_of_pairs(api: Any) -> None:
    """A pytree as the element: a linear recurrence."""

    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    def body(a: torch.Tensor, b: torch.Tensor) -> Any:
        return associative_scan(combine, (a, b), dim=0, combine_mode="generic")

    a, b = torch.rand(4, 2), torch.rand(4, 2)
    expected = [b[0]]
    for i in range(1, 4):
        expected.append(a[i] * expected[-1] + b[i])
    equal(api.compile(body, backend="aot_eager", fullgraph=True)(a, b)[1], torch.stack(expected))


@associative(entry="export")
def an_associative_scan_exported(api: Any) -> None:
    """A length that export finds out."""

    class Sums(nn.Module):
        def forward(self, xs: torch.Tensor) -> torch.Tensor:
            return associative_scan(lambda a, b: a + b, xs, dim=0, combine_mode="generic")

    sizes = {"xs": {0: api.export.Dim.AUTO}}
    run = api.export.export(Sums(), (torch.randn(5, 3),), dynamic_shapes=sizes).module()
    xs = torch.randn(5, 3)
    equal(run(xs), xs.cumsum(0))


@mapping
def a_function_of_rows(api: Any) -> None:
    """The function is applied to each row, with an argument for all."""

    def body(xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return map_rows(lambda x, y: x.sin() * y, xs, y)

    xs, y = torch.randn(3, 4), torch.randn(4)
    equal(api.compile(body, backend="aot_eager", fullgraph=True)(xs, y), xs.sin() * y)


@mapping(entry="export")
def a_function_of_rows_exported(api: Any) -> None:
    """A dynamic number of rows."""

    class Rows(nn.Module):
        def forward(self, xs: torch.Tensor) -> torch.Tensor:
            return map_rows(lambda x: x.sin() + x.cos(), xs)

    run = api.export.export(Rows(), (torch.randn(3, 4),), dynamic_shapes={"xs": {0: api.export.Dim.DYNAMIC}}).module()
    xs = torch.randn(6, 4)
    equal(run(xs), xs.sin() + xs.cos())


@mapping
def gradients_of_a_map(api: Any) -> None:
    """Gradients of the rows and of the shared argument."""

    def body(xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return map_rows(lambda x, y: (x * y).exp(), xs, y)

    xs, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    found = api.compile(body, backend="aot_eager", fullgraph=True)(xs, y)
    for one, other in zip(
        torch.autograd.grad(found.sum(), [xs, y]), torch.autograd.grad((xs * y).exp().sum(), [xs, y]), strict=True
    ):
        equal(one, other)
