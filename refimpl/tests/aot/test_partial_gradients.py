"""Backward with only some of the tangents: as in eager mode, nothing is computed for results whose tangent is missing.

Zeros in place of a missing tangent fail if a derivative is infinite, or if the backward of an `autograd.Function` adds to them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.backends import aot_eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import same


class AddsOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return grad_outputs[0] * 2 + 1


def infinite(x: Any, y: Any) -> Any:
    return x.sqrt(), x * 2 + y, y.log()


def own_backward(x: Any, y: Any) -> Any:
    return AddsOne.apply(x), x * y, AddsOne.apply(y * 2)


def parts(x: Any, y: Any) -> Any:
    first, second = x.sqrt().split(2)
    return first, second * y[:2], torch.stack([x, y.log()]).unbind()[1]


def several_sums(x: Any, y: Any) -> Any:
    z = x.log()
    return z + y, (z * y).sin() + z, y.rsqrt() * x


def transposed(x: Any, y: Any) -> Any:
    z = (x.reshape(2, 2).t() * 2).sqrt()
    return z.t(), z * y.reshape(2, 2), x.reshape(2, 2).t().contiguous()


PROGRAMS = (infinite, own_backward, parts, several_sums, transposed)
WAYS: dict[str, Callable[[Any], Any]] = {
    "default": lambda f: compile_aot(f, partition="default"),
    "min_cut": lambda f: compile_aot(f, partition="min_cut"),
    "captured": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
    "kernels": lambda f: with_options(f, CaptureOptions(backend=triton)),
}


def gradients(function: Any, used: tuple[int, ...]) -> Any:
    x = torch.tensor([0.0, 1.0, 4.0, 0.25], requires_grad=True)
    y = torch.tensor([1.0, 0.0, 2.0, 0.0], requires_grad=True)
    results = function(x, y)
    torch.autograd.backward([results[i].sum() for i in used])
    return [None if leaf.grad is None else torch.nan_to_num(leaf.grad, nan=77.0) for leaf in (x, y)]


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_only_what_arrives_is_computed(program: Callable[..., Any], way: str) -> None:
    compiled = WAYS[way](program)
    for used in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        assert same(gradients(compiled, used), gradients(program, used)), used


def of_rows(x: Any) -> Any:
    a, b = x.unbind()
    return a.exp(), b.sqrt()


def of_a_view(x: Any) -> Any:
    a, b = x.unbind()
    return a.exp(), (b.unsqueeze(0) * 2).sqrt()


def of_doubles(x: Any) -> Any:
    a, b = x.unbind()
    return a.double().sqrt(), b.exp(), (x.t() * 2).sqrt()


def of_products(x: Any) -> Any:
    a, b = x.unsqueeze(1).unbind()
    return b.exp(), a @ x.detach().t()


@pytest.mark.fractional
@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("program", [of_rows, of_a_view, of_doubles, of_products])
def test_only_what_arrives_is_computed_where_sizes_are_symbols(
    program: Callable[..., Any], backend: str, partition: Any
) -> None:
    compiled = compile_aot(program, dynamic=True, backend=backend, partition=partition)

    def gradient(function: Any, used: int) -> torch.Tensor:
        x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 4.0, 0.0]], requires_grad=True)
        function(x)[used].sum().backward()
        assert x.grad is not None
        return x.grad

    for used in range(len(program(torch.ones(2, 3)))):
        assert same(gradient(compiled, used), gradient(program, used)), used


RESAMPLING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nearest": lambda x: F.interpolate(x, size=(9, 9)),
    "nearest-exact": lambda x: F.interpolate(x, size=(3, 4), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, size=(7, 5), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(7, 5), mode="bicubic"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "roll": lambda x: x.roll(1, 1),
    "pad": lambda x: F.pad(x, (1, 2, 3, 4)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x[:, :1], (6, 6)),
}


def negated(x: Any) -> Any:
    z = x.neg()
    return z, z.sum()


def multiplied(x: Any) -> Any:
    z = torch.stack([x, x]) @ torch.ones(3, 2)  # is reshaped in the backward
    return z, z.sum(0)


def two_parts(x: Any) -> Any:
    z = torch.view_as_real(torch.complex(x, x.sin())) + x.unsqueeze(-1)  # its gradient is read as complex numbers
    return z, z.sum()


def rounded(x: Any) -> Any:
    z = x.round()  # its gradient is zeros like what arrives
    return z, z.sum()


def flipped(x: Any) -> Any:
    z = x.flip(0)  # a copy that is laid out as what it reads
    return z, z.sum(0)


def limited(x: Any) -> Any:
    z = F.hardswish(x)  # a kernel for the gradient alone
    return z, z.sum(0)


def on_a_diagonal(x: Any) -> Any:
    z = torch.diag_embed(x)  # its gradient is a view
    return z, z.sum()


def reshaped(x: Any) -> Any:
    z = x.reshape(3, 2)  # of all gradients in a copy, of an expanded one not
    return z, z.sum(), z.t().contiguous()


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", [(1, 2), (3, 1)])
@pytest.mark.parametrize(
    "program",
    [negated, multiplied, two_parts, rounded, flipped, limited, on_a_diagonal, reshaped],
)
def test_a_gradient_lies_in_memory_as_if_nothing_else_had_been_asked_for(
    program: Callable[..., Any], layout: tuple[int, int], way: str
) -> None:
    def found(function: Any) -> tuple[torch.Tensor, tuple[int, ...]]:
        x = torch.arange(6.0).as_strided((2, 3), layout).requires_grad_()
        (gradient,) = torch.autograd.grad(function(x)[1].sum(), x)
        return gradient, gradient.stride()

    (expected, strides), (actual, traced) = found(program), found(WAYS[way](program))
    assert same(actual, expected)
    assert traced == strides


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("resample", RESAMPLING)
def test_a_gradient_of_an_image_lies_in_memory_as_if_nothing_else_had_been_asked_for(resample: str, way: str) -> None:
    def program(x: Any) -> Any:
        z = RESAMPLING[resample](x)
        return z, z.sum()

    x = torch.arange(144.0).reshape(1, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    (expected,) = torch.autograd.grad(program(x)[1], x)
    (actual,) = torch.autograd.grad(WAYS[way](program)(x)[1], x)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_written_into_lies_in_memory_as_it_would_alone(way: str) -> None:
    """Zeros are written into the gradient of a deviation where it is 0."""

    def program(x: Any) -> Any:
        z = x.std(1, keepdim=True)
        return z, z.sum(), (z * 2 + 1).sum(0), z.transpose(0, -1).contiguous()

    def found(function: Any) -> tuple[torch.Tensor, tuple[int, ...]]:
        x = (torch.arange(60.0) ** 2).reshape(3, 5, 4).transpose(1, 2).requires_grad_()
        result = function(x)[3]
        (gradient,) = torch.autograd.grad(result, x, torch.ones_like(result))
        return gradient, gradient.stride()

    (expected, strides), (actual, traced) = found(program), found(WAYS[way](program))
    torch.testing.assert_close(actual, expected)
    assert traced == strides


def test_no_gradient_is_none_behind_a_graph_too() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):  # a break
            z = x.neg()
        return y.neg(), z.neg()

    for function in (program, with_options(program, CaptureOptions(backend=aot_eager))):
        x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        function(x, y)[0].sum().backward()
        assert x.grad is None
        assert same(y.grad, -torch.ones(1))


def test_results_of_one_op_have_the_gradients_of_their_own_operand() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch._foreach_expm1([x, y, y])[2]

    for function in (program, with_options(program, CaptureOptions(backend=aot_eager))):
        leaf = torch.ones(1, requires_grad=True)
        x = leaf.clone()
        function(x, x.detach()).sum().backward()
        assert leaf.grad is None


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_gradient_that_reads_nothing_is_given(dynamic: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x**0, -x * y, y.floor(), Ignores.apply(x)

    for function in (program, compile_aot(program, dynamic=dynamic)):
        found = []
        for used in range(4):
            x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
            gradients = torch.autograd.grad(function(x, y)[used].sum(), [x, y], allow_unused=True)
            found.append([None if g is None else g.tolist() for g in gradients])
        assert found == [[[0, 0], None], [[-1, -1], [-1, -1]], [None, [0, 0]], [None, None]]


class Masks(torch.autograd.Function):
    """A function with two differentiable results. Its backward gets None, not zeros, for a missing tangent."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *others: Any) -> Any:
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        ctx.set_materialize_grads(False)
        return x * mask, x * 2, mask

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return None if grad_outputs[0] is None else grad_outputs[0] * mask, None, None


class GivesZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *others: Any) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return torch.zeros_like(grad_outputs[0]), None, None


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [torch.angle, torch.round, lambda x: x.clamp(5, 6), lambda x: x**0, torch.clone])
@pytest.mark.parametrize("custom", [Masks, GivesZeros])
def test_a_gradient_that_reads_nothing_is_given_through_a_user_s_function(custom: Any, function: Any, way: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = function(x)
        first, second = custom.apply(y, torch.ones(2), 3)[:2]
        return first, second, y * 1, x * 2

    def gradient(function: Any, used: int) -> Any:
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        return torch.autograd.grad(function(x)[used].sum(), x, allow_unused=True)

    compiled = WAYS[way](program)
    for used in range(4):
        assert same(gradient(compiled, used), gradient(program, used)), used


def test_a_gradient_inside_of_the_program_is_zeros_through_a_user_s_function() -> None:
    def program(x: torch.Tensor) -> Any:
        (gradient,) = torch.autograd.grad(Masks.apply(torch.angle(x))[0].sum(), [x], allow_unused=True)
        return gradient * 0

    x = torch.tensor([-0.5, 0.5], requires_grad=True)
    assert same(WAYS["captured"](program)(x), program(x))


class Ignores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> None:
        return None


def saved_results(x: Any, y: Any) -> Any:
    return x.exp(), y.sigmoid(), (x * y).tanh()


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("written", [0, 1, 2])
def test_what_is_written_to_is_refused_only_where_it_is_needed(written: int, way: str) -> None:
    def outcomes(function: Any) -> list[Any]:
        found: list[Any] = []
        for used in (0, 1, 2):
            x, y = torch.full((2,), 0.5, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
            results = function(x, y)
            results[written].detach().mul_(3)
            try:
                found.append(torch.autograd.grad(results[used].sum(), [x, y], allow_unused=True))
            except RuntimeError as error:
                found.append("modified by an inplace operation" in str(error))
        return found

    expected, actual = outcomes(saved_results), outcomes(WAYS[way](saved_results))
    assert expected[written] is True
    if actual[written] is not True:  # made again of what was not written to
        assert way != "default"
        del actual[written], expected[written]
    assert same(actual, expected)


def test_an_input_is_written_to_that_what_arrives_does_not_need() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Any:
        return x * scale, y.sin()

    for function in (program, compile_aot(program, partition="min_cut")):
        x, y, scale = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True), torch.ones(2)
        results = function(x, y, scale)
        scale.add_(1)
        assert same(torch.autograd.grad(results[1].sum(), y, retain_graph=True)[0], torch.ones(2).cos())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(results[0].sum(), x)


def test_saved_results_are_let_go_after_the_backward_and_with_the_results() -> None:
    compiled = compile_aot(saved_results)
    x, y = torch.full((2,), 0.5, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
    for _ in range(2):
        results = compiled(x, y)
        for _ in range(2):
            torch.autograd.grad(results[0].sum(), x, retain_graph=True)
        torch.autograd.grad(results[0].sum(), x)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(results[0].sum(), x)
    storage = weakref.ref(compiled(x, y)[0].untyped_storage())
    assert storage() is None
    seen = [weakref.ref(result) for result in compiled(x, y)]
    assert [one() for one in seen] == [None, None, None]


def apart(x: Any, y: Any) -> Any:
    return x.exp(), y.sin(), x + y


def of_one_input(x: Any, y: Any) -> Any:
    return x.sin(), x.cos() * y, x.view(-1).neg()


def of_one_step(x: Any, y: Any) -> Any:
    z = x.exp()
    return z + y, z + 1, y.sigmoid()


def written_in_part(x: Any, y: Any) -> Any:
    z = x + y
    z[:1] = 2
    return z, x + 1, y * y


@pytest.mark.fractional
@pytest.mark.parametrize("way", [*WAYS, "dynamic"])
@pytest.mark.parametrize("program", [apart, of_one_input, of_one_step, written_in_part])
def test_one_part_may_run_for_good_before_another(program: Callable[..., Any], way: str) -> None:
    """A second backward is an error where a step that keeps values has run in the first, and there alone."""

    def outcomes(function: Any, order: tuple[int, ...]) -> list[Any]:
        x, y = torch.full((2,), 0.5, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
        results = function(x, y)
        found: list[Any] = []
        for used in order:
            try:
                found.append(torch.autograd.grad(results[used].sum(), [x, y], allow_unused=True))
            except RuntimeError as error:
                found.append("a second time" in str(error))
        return found

    compiled = compile_aot(program, dynamic=True) if way == "dynamic" else WAYS[way](program)
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 1), (2, 2, 0), (0, 0, 2)):
        assert same(outcomes(compiled, order), outcomes(program, order)), order


class Accumulates(torch.nn.Module):
    """Its buffers get histories, which go on from call to call; what it returns reads them where `reads` says so."""

    written: torch.Tensor
    assigned: torch.Tensor

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("written", torch.ones(3))
        self.register_buffer("assigned", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x.exp() + self.written if self.reads else x.exp()
        self.written.mul_(x)
        self.assigned = self.assigned * x.sin()
        return result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reads", [True, False])
def test_a_history_that_goes_on_from_call_to_call(reads: bool, way: str) -> None:
    def found(compiled: Callable[[Any], Any]) -> list[Any]:
        module = Accumulates(reads)
        call: Any = compiled(module)
        gradients: list[Any] = []
        for scale in (1.0, 2.0, 3.0):
            x = torch.full((3,), scale, requires_grad=True)
            try:
                call(x).sum().backward()
            except RuntimeError as error:
                gradients.append("a second time" in str(error))
            gradients.append((x.grad, module.written.detach().clone()))
        return gradients

    assert same(found(WAYS[way]), found(lambda module: module))


def two_towers(x: torch.Tensor, y: torch.Tensor) -> Any:
    h, g = x.sqrt(), y.exp()
    h.data_ptr()  # a break
    return h * h, g.sin(), h + g


def updated(x: torch.Tensor, y: torch.Tensor) -> Any:
    state = x * x
    state.data_ptr()
    state.mul_(y)
    state.data_ptr()
    return y.sin() + 1, state * 2, state


@pytest.mark.parametrize("way", ["captured", "kernels"])
@pytest.mark.parametrize("program", [two_towers, updated])
def test_nothing_runs_behind_what_has_no_gradient(program: Callable[..., Any], way: str) -> None:
    """What is behind a graph is not called, with None, by the backward of a result that does not go on from it."""

    def outcomes(function: Any, order: tuple[tuple[int, ...], ...]) -> list[Any]:
        x, y = torch.tensor([0.25, 4.0], requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
        results = function(x, y)
        found: list[Any] = []
        for used in order:
            try:
                total = torch.stack([results[i].sum() for i in used]).sum()
                found.append(torch.autograd.grad(total, [x, y], allow_unused=True))
            except RuntimeError as error:
                found.append("a second time" in str(error))
        return found

    compiled = WAYS[way](program)
    for order in (((0,), (1,)), ((1,), (0,)), ((2,), (0,)), ((0,), (2,)), ((0, 1, 2), (1,)), ((1, 2), (0,))):
        assert same(outcomes(compiled, order), outcomes(program, order)), order


def of_no_input(x: torch.Tensor) -> Any:
    """The view is a leaf that requires a gradient, behind which nothing lies."""
    y = x * 2
    with torch.no_grad():
        view = y.view(-1)
    return y.sin(), view * 3, view * 5


@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_leads_to_no_input_has_a_history_as_well(way: str) -> None:
    def outcome(function: Any, order: tuple[int, ...]) -> list[Any]:
        x = torch.full((2,), 0.5, requires_grad=True)
        results = function(x * 1)  # whose history is let go by the first backward
        facts: list[Any] = [(result.requires_grad, result.is_leaf) for result in results]
        for used in order:
            results[used].sum().backward()
            facts.append(None if x.grad is None else x.grad.clone())
        return facts

    compiled = WAYS[way](of_no_input)
    for order in ((1, 0), (0, 2), (2, 1, 0)):
        assert same(outcome(compiled, order), outcome(of_no_input, order)), order


def test_results_of_leaves_are_one_step_of_autograd() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    compiled = compile_aot(apart)
    steps = [{result.grad_fn for result in compiled(*given)} for given in ((x, y), (x * 1, y), (x * 1, y * 1))]
    assert [len(found) for found in steps] == [1, 2, 3]


def test_a_part_lets_go_of_what_no_other_needs() -> None:
    x, y = torch.full((2,), 0.5, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
    seen: list[weakref.ref[Any]] = []

    def backend(graph_module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results = graph_module(*args)
            seen.extend(weakref.ref(r.untyped_storage()) for r in results[2:] if r is not None and not seen[1:])
            return results

        return run

    results = compile_aot(lambda x, y: ((x * 2).sin(), (y * 3).cos()), backend=backend)(x, y)
    assert [one() is None for one in seen] == [False, False]
    results[0].sum().backward()
    assert [one() is None for one in seen] == [True, False]
    results[1].sum().backward()
    assert [one() is None for one in seen] == [True, True]


def test_sizes_are_read_of_what_a_part_does_not_need_and_of_what_another_has_let_go_of() -> None:
    sizes: list[list[int]] = []

    def backend(graph_module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            sizes.append([arg.size(0) for arg in args if not isinstance(arg, int)])
            return graph_module(*args)

        return run

    def program(x: Any, y: Any) -> Any:
        return x * 2 + y, (x * y).sin(), y.cos()

    compiled = compile_aot(program, backend=backend, dynamic=True)
    for count in (3, 4):
        x, y = torch.full((count,), 0.5, requires_grad=True), torch.full((count,), 2.0, requires_grad=True)
        sizes.clear()
        results = compiled(x, y)
        for index in (1, 0, 2):
            arguments = [y] if index == 2 else [x, y]
            expected = torch.autograd.grad(program(x, y)[index].sum(), arguments)
            torch.testing.assert_close(torch.autograd.grad(results[index].sum(), arguments), expected)
        assert len(sizes) == 4
        assert all(size == count for one in sizes for size in one)


def test_a_gradient_by_what_is_kept_is_not_differentiated() -> None:
    x, y = torch.full((2,), 0.5, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(compile_aot(saved_results)(x, y)[0].sum(), x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.sum(), x)
