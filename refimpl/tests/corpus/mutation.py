"""Programs that write to arguments, intermediates and what shares their memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refimpl.tests.corpus.program import Inputs, MakeInputs, Topic, computed, given, leaves, named, views

TOPIC = Topic("mutation", "aot")
TWO = computed((3, 4), (3, 4))
MATRIX = given(lambda: (torch.arange(12.0).view(3, 4),))
ONE = computed((3, 4))
OVERLAPPING = named("overlapping", views((12,), lambda w: w[:8], lambda w: w[4:]))
DISJOINT = named("disjoint", views((12,), lambda w: w[:6], lambda w: w[6:]))
BASE_AND_VIEW = named("base_and_view", views((3, 4), lambda w: w.t()[:3], lambda w: w))
SAME_TWICE = named("same_twice", views((4, 4), lambda w: w, lambda w: w))
DETACHED = named("detached", views((4, 4), lambda w: w, lambda w: w.detach()))
ONE_VIEW = named("one_view", views((4, 4), lambda w: w[1:3], others=1))
SHARED = (OVERLAPPING, DISJOINT, BASE_AND_VIEW, SAME_TWICE, DETACHED, ONE_VIEW)


@TOPIC.program(computed((3, 4), (4,)), rooms=("trace", "aot"))
def mutate_input(x, y):
    x.add_(y)
    x[0] = 7
    return x * 2


@TOPIC.program(ONE, rooms=("trace", "aot"))
def mutate_through_view(x):
    row = x[1]
    row.mul_(3)
    x.t()[0].zero_()
    return x + row


@TOPIC.program(ONE, rooms=("trace", "aot"))
def mutate_intermediate(x):
    y = x.clone()
    y[:, 1:].copy_(x[:, :-1])
    y.relu_()
    return y


@TOPIC.program(computed((3,), (4,)), rooms=("trace", "aot"))
def in_place_on_list(x, y):
    torch._foreach_add_([x, y], 1.0)
    return torch._foreach_mul([x, y], [2.0, 3.0])


@TOPIC.program(leaves((3,), (3,)), rooms=("trace", "aot"), with_gradients=(False,))
def out_of_intermediate(x, y):
    result = torch.empty_like(x)
    torch.add(x, y, out=result)
    return result.sin()


@TOPIC.program(leaves((3,), (3,)), rooms=("trace", "aot"))
def update_through_detach(weight, gradient):
    weight.detach().sub_(0.1 * gradient)
    return weight * 1


@TOPIC.program(TWO, calls_again=True)
def in_place(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x * y


@TOPIC.program(TWO)
def in_place_on_view(x: Any, y: Any) -> Any:
    x[0].add_(y[0])
    return x.sin(), y


@TOPIC.program(TWO)
def under_no_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
        v = x.view(-1)
    return x * y, v


@TOPIC.program(TWO)
def through_detach(x: Any, y: Any) -> Any:
    z = x * y
    x.detach().add_(1)
    return z + 1, x.detach()


@TOPIC.program(TWO)
def through_data(x: Any, y: Any) -> Any:
    x.data.add_(1)
    return y * 2


@TOPIC.program(TWO)
def copy_into(x: Any, y: Any) -> Any:
    x.copy_(y)
    return x, y + 1


@TOPIC.program(TWO)
def saved_then_written(x: Any, y: Any) -> Any:
    z = x.exp()
    z.mul_(2)
    return z + y


@TOPIC.program(TWO)
def fill_and_zero(x: Any, y: Any) -> Any:
    x[:, 1:3].zero_()
    x[:, ::2].fill_(5)
    return x * y


@TOPIC.program(TWO)
def write_other_dtype(x: Any, y: Any) -> Any:
    z = torch.zeros(3, 4, dtype=torch.float64)
    z.add_(x)
    return z, y


@TOPIC.program(TWO)
def foreach_on_arguments(x: Any, y: Any) -> Any:
    torch._foreach_add_([x, y], 2.0)
    return x * y


@TOPIC.program(TWO)
def returns_copy_source(x: Any, y: Any) -> Any:
    y.mul_(x)
    x.add_(y)
    return ()


@TOPIC.program(TWO)
def out_argument(x: Any, y: Any) -> Any:
    z = torch.empty(3, 4)
    torch.mul(x.detach(), 2, out=z)
    return z * y


@TOPIC.program(TWO, with_gradients=(False,))
def foreach_copies_what_it_has_written(x: Any, y: Any) -> Any:
    a, b = x * 2, y * 3
    torch._foreach_copy_([a, b], [b, a])
    return a, b


@TOPIC.program(TWO)
def foreach_writes_views(x: Any, y: Any) -> Any:
    a, b = (x * 2).t(), y.exp()
    torch._foreach_mul_([a, b.view(-1)], [y.t(), x.view(-1)])
    torch._foreach_exp_([a])
    return a, b


@TOPIC.program(computed((4, 4), (4, 4)), rooms=("aot", "partition"))
def mutating(x, w):
    y = x.exp()
    x.mul_(2)
    return (y @ w).exp() * x, x.t()


@TOPIC.program(computed((4, 4), (4, 4)), rooms=("aot", "partition"))
def mutated_and_saved(x, w):
    z = (x.clone().t().sin() * w).t()  # its gradient reads x as it was, which nobody keeps
    x.add_(1)
    return z.sin()


# ------------------------------------------------------------------------------------------ arguments that share memory


@TOPIC.program(*SHARED)
def write_first(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x.sum() + y.sum() * 3


@TOPIC.program(*SHARED)
def write_both(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(2)
    return x.sin().sum() + y.cos().sum(), y.view(-1)


@TOPIC.program(*SHARED)
def write_second_return_first(x: Any, y: Any) -> Any:
    y.mul_(3)
    return x, x[0], y + 1


def _expanded_and_ones(requires_grad: bool) -> Inputs:
    base = torch.arange(6.0)
    return Inputs([base], [base.add(1).expand(2, 6), torch.ones(6)])


def _windows_and_ones(requires_grad: bool) -> Inputs:
    base = torch.arange(6.0)
    return Inputs([base], [base.as_strided((3, 4), (1, 1)), torch.ones(3, 4)])


def _beside_memory(requires_grad: bool) -> Inputs:
    memory = torch.arange(12.0)
    return Inputs([memory], [memory[4:8], torch.ones(3)])


def _two_parts(requires_grad: bool) -> Inputs:
    memory = torch.arange(8.0)
    return Inputs([memory], [memory[:4], memory[4:]])


def _expanded_row(requires_grad: bool) -> Inputs:
    leaf = torch.arange(4.0, requires_grad=requires_grad)
    base = leaf * 1 if requires_grad else leaf
    return Inputs([leaf], [base.expand(2, 4), torch.tensor(3.0)])


def _rows(size: tuple[int, ...], stride: tuple[int, ...]) -> MakeInputs:
    name = f"rows_{size}_{stride}"
    return named(name, lambda _: Inputs([], [torch.arange(12.0).as_strided(size, stride), torch.tensor(3.0)]))


ROWS = [_rows((2, 4), (2, 1)), _rows((2, 2), (1, 1)), _rows((3, 2), (0, 1))]


@TOPIC.program(named("expanded", _expanded_and_ones), named("windows", _windows_and_ones), with_gradients=(False,))
def fill(x: Any, y: Any) -> Any:
    x.fill_(3)
    return x * y


@TOPIC.program(_beside_memory, with_gradients=(False,))
def writes_beyond_the_argument(x: Any, y: Any) -> Any:
    x.as_strided((2, 2), (3, 1), 0).zero_()
    return y + 1


@TOPIC.program(_two_parts, with_gradients=(False,))
def reads_beside_the_argument(x: Any, y: Any) -> Any:
    x.mul_(2)
    return y.as_strided((3,), (2,), 1) * 1  # begins in the memory of x


@TOPIC.program(_expanded_row)
def writes_one_copy_of_a_row(x: Any, factor: Any) -> Any:
    x[:1].reshape(2, -1).fill_(2)
    return x * factor


@TOPIC.program(*ROWS, with_gradients=(False,))
def writes_to_a_part_of_a_part(x: Any, factor: Any) -> Any:
    part = x[:, 1:]
    part[0].mul_(factor)
    return part * 1


@TOPIC.program(*ROWS, with_gradients=(False,), refused={"aot.scatter": "reads overlapping elements as another dtype"})
def writes_a_part_that_is_read_otherwise(x: Any, factor: Any) -> Any:
    pairs = torch.view_as_complex(x[0].view(-1, 2))
    pairs.mul_(factor)
    return x + factor


# ------------------------------------------------------------------------------------------------------ one small matrix


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def foreach_on_parts(x: Tensor) -> Any:
    a, b, c = x.unbind()
    torch._foreach_mul_([a, b], [2.0, 3.0])
    torch._foreach_add_([a, a], 1)
    torch._foreach_copy_([c], [b])
    return torch._foreach_neg([a, c])


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def out_variants(x: Tensor) -> Any:
    low, high = torch.empty(3), torch.empty(3)
    torch.aminmax(x, dim=1, out=(low, high))
    torch.mul(x, 2, out=x)
    torch.arange(4, out=x[2])
    return low, high


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def overlapping(x: Tensor) -> Any:
    rows = x.unfold(0, 2, 1)
    rows[0].add_(1)
    wide = x[:, :1].expand(3, 4)
    x[1, 0] = 100
    windows = x.as_strided((4, 3), (2, 1))
    windows[1].mul_(2)
    return rows.clone(), wide.clone(), windows.clone()


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def chains(x: Tensor) -> Any:
    for i in range(5):
        x[i % 3, ::2].add_(i).mul_(2)
        x.view(-1)[i:].sub_(x[0, 1].clone())
    return x.sum()


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def constants(x: Tensor) -> Any:
    y = torch.tensor([1.0, 2.0, 3.0, 4.0])
    y[1] = x[0, 1]
    return x.add_(y)


def _positive(requires_grad: bool) -> Inputs:
    source = torch.arange(1.0, 4.0, requires_grad=requires_grad)
    return Inputs([source], [source * 1])


def _negative(requires_grad: bool) -> Inputs:
    source = (-torch.arange(1.0, 4.0)).requires_grad_(requires_grad)
    return Inputs([source], [source * 1])


SIGNS: dict[str, Any] = {"ways": ("default",), "with_gradients": (True,)}


@TOPIC.program(named("positive", _positive), named("negative", _negative), **SIGNS)
def number_masked_by_itself(x: Tensor) -> Any:
    v = x.sum()
    v[v.clone() > 0] = 2
    return v * 3


@TOPIC.program(named("positive", _positive), named("negative", _negative), **SIGNS)
def part_masked_by_a_number(x: Tensor) -> Any:
    x[x.sum() > 0] = x[:1].clone() * 2
    return x.sin()


@TOPIC.program(named("positive", _positive), named("negative", _negative), **SIGNS)
def longer_tensor_masked_by_a_number(x: Tensor) -> Any:
    v = x * 1
    v[x.sum() > 0] = x.unsqueeze(0).exp()
    return v
