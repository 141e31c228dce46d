"""Programs that `compile_aot` runs as they are, because no graph could do what they do: results, gradients, writes and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot

WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "compile_aot": compile_aot,
    "captured": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
}


class Cosine(torch.Tensor):
    """`torch.sin` of it is a plain tensor of cosines."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.sin:
            return torch.cos(args[0].as_subclass(torch.Tensor))
        return super().__torch_function__(func, types, args, kwargs or {})


class Sevens(torch.Tensor):
    """`sin` of it, below autograd, is a tensor of sevens."""

    @staticmethod
    def __new__(cls, data: Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, data)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.sin.default:
            return torch.full((3,), 7.0)
        return func(*args, **(kwargs or {}))


def _leaf() -> Tensor:
    return torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_()  # a leaf, and a view of another tensor


def _leaf_of_its_own() -> Tensor:
    return _leaf().detach().clone().requires_grad_()


def _rows_of_a_copy() -> Sequence[Tensor]:
    return _leaf().clone().unbind(0)


def _view_without_gradients() -> Sequence[Tensor]:
    copy = _leaf().clone()
    with torch.no_grad():
        return [copy.view(-1)]


def _without_memory() -> Tensor:
    x = torch.zeros(2, 3)
    x.untyped_storage().resize_(0)
    return x


def transposed(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t_()
    return x * 2


def viewed_after_a_change_of_shape(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.unsqueeze_(0)
    return x.view(-1)


def changed_and_scaled(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t_()
        x.mul_(3)
    return x.sin()


def hooked(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient * 2)
    return x * 3


def hooked_after_accumulation(x: Tensor) -> Tensor:
    def scale(leaf: Tensor) -> None:
        assert leaf.grad is not None
        leaf.grad.mul_(5)

    x.register_post_accumulate_grad_hook(scale)
    return x * 3


def written_first(first: Tensor, *others: Tensor) -> Tensor:
    first.mul_(2)
    return others[0] * 1 if others else first


def written_first_without_gradients(first: Tensor, *others: Tensor) -> Tensor:
    with torch.no_grad():
        first.mul_(2)
    return others[0] * 1 if others else first


def written_by(weight: Tensor, first: Tensor, second: Tensor) -> Tensor:
    first.mul_(weight)
    return second + 1


def freed(x: Tensor) -> Tensor:
    y = x * 2
    x.untyped_storage().resize_(0)
    return y


def filled(x: Tensor, y: Tensor) -> Tensor:
    x.untyped_storage().resize_(24)
    x.copy_(y)
    return x * 2


def filled_again(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(24)
    return x.fill_(3).clone()


def ones_without_memory(x: Tensor) -> Tensor:
    return torch.ones(2, 3) if x.untyped_storage().nbytes() == 0 else x * 2


def enlarged(x: Tensor, y: Tensor) -> Tensor:
    torch.sin(x, out=y)
    y.add_(1)
    return y.view(-1)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: y.sin().exp(), x, use_reentrant=True)


def scaled_by_a_leaf(x: Tensor) -> Tensor:
    return torch.full((3,), 2.0, requires_grad=True) * x


def written_by_a_leaf(x: Tensor) -> Tensor:
    return x.copy_(torch.full((3,), 2.0, requires_grad=True) * 3)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Any]]]] = {
    "a leaf is transposed": (transposed, lambda: [_leaf_of_its_own()]),
    "a leaf that is a view is transposed": (transposed, lambda: [_leaf()]),
    "a leaf gets a dimension": (viewed_after_a_change_of_shape, lambda: [_leaf_of_its_own()]),
    "a leaf is transposed and scaled": (changed_and_scaled, lambda: [_leaf()]),
    "a hook on an argument": (hooked, lambda: [_leaf() * 1]),
    "a hook on a leaf": (hooked, lambda: [_leaf()]),
    "a hook after accumulation": (hooked_after_accumulation, lambda: [_leaf()]),
    "one of several rows": (written_first, _rows_of_a_copy),
    "one of several rows, in no_grad mode": (written_first_without_gradients, _rows_of_a_copy),
    "a view made in no_grad mode": (written_first, _view_without_gradients),
    "a row gets a history": (written_by, lambda: [torch.ones(3, requires_grad=True), *torch.ones(2, 3).unbind(0)]),
    "an argument without memory": (filled, lambda: [_without_memory(), torch.ones(2, 3)]),
    "a checkpoint that calls backward": (checkpointed, lambda: [_leaf()]),
    "a leaf of the program": (scaled_by_a_leaf, lambda: [torch.ones(3)]),
    "a leaf of the program is written": (written_by_a_leaf, lambda: [torch.ones(3)]),
    "an enlarged argument is viewed": (enlarged, lambda: [torch.ones(2, 3), torch.empty(0)]),
    "an argument is freed": (freed, lambda: [torch.ones(2, 3)]),
    "__torch_function__": (lambda x: torch.sin(x) * x, lambda: [torch.ones(3).as_subclass(Cosine)]),
    "__torch_function__ in a list": (lambda xs: torch.sin(xs[0]) + 1, lambda: [[torch.ones(3).as_subclass(Cosine)]]),
    "a strided nested tensor": (lambda x: x * 2, lambda: [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]),
}


def seen(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """What a call gives its caller to see: its result, or the class of its error, and gradients of all uses of the arguments."""
    leaves = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad and a.is_leaf]
    others = [a * 5 for a in arguments if isinstance(a, Tensor) and not a.is_leaf and not a._is_view()]
    try:
        result = function(*arguments)
    except RuntimeError as error:
        return [type(error)]
    if result.is_nested:
        return [part.tolist() for part in result.unbind()]
    if result.requires_grad:
        torch.autograd.backward([result, *others], [torch.ones_like(t) for t in (result, *others)])
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    flags = [t.requires_grad for t in (result, *tensors)]
    freed_now = [a.untyped_storage().nbytes() for a in tensors]
    shared = [a.untyped_storage()._cdata == result.untyped_storage()._cdata for a in tensors]
    written = [a.tolist() for a in tensors if a.untyped_storage().nbytes()]
    gradients = [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]
    return [type(result), result.tolist(), flags, shared, freed_now, written, gradients]


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_eager_mode_gives(name: str, way: str) -> None:
    program, make = PROGRAMS[name]
    expected = seen(program, make())
    compiled = WAYS[way](program)
    assert [seen(compiled, make()) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [filled_again, ones_without_memory])
def test_an_argument_loses_its_memory_between_calls(program: Callable[..., Any], way: str) -> None:
    made = [torch.ones(2, 3), _without_memory(), torch.ones(2, 3)]
    expected = [seen(program, [each]) for each in made]
    made = [torch.ones(2, 3), _without_memory(), torch.ones(2, 3)]
    compiled = WAYS[way](program)
    assert [seen(compiled, [each]) for each in made] == expected


def test_operators_of_a_subclass_are_its_own() -> None:
    assert compile_aot(torch.sin)(Sevens(torch.ones(3))).tolist() == [7.0] * 3


def test_a_program_compiled_for_dense_tensors_is_called_with_a_nested_one() -> None:
    double = compile_aot(lambda x: x * 2)
    double(torch.ones(3))
    assert [part.tolist() for part in double(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])).unbind()] == [
        [2.0],
        [2.0, 2.0],
    ]


def test_a_buffer_of_a_subclass_makes_a_module_run_as_it_is() -> None:
    class Module(torch.nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.zeros(3).as_subclass(Cosine))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(self.scale) * x

    assert compile_aot(Module())(torch.ones(3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("way", WAYS)
def test_a_view_with_other_memory_than_its_base_is_no_part_of_the_base(way: str) -> None:
    """A call with a view of the base in its place comes first."""

    def program(base: Tensor, view: Tensor) -> Tensor:
        base.mul_(3)
        return view + base.sum()

    found = []
    for function in (program, WAYS[way](program)):
        results: list[Any] = []
        for moves in (False, True):
            leaf = torch.arange(4.0).view(2, 2).requires_grad_()
            base = leaf * 1
            view = base[:, :1]
            if moves:
                view.data = torch.full((2, 1), 5.0)
            result = function(base, view)
            result.sum().backward()
            results += [result.detach(), base.detach(), leaf.grad]
        found.append(results)
    torch.testing.assert_close(found[1], found[0])
