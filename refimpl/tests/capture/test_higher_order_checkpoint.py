"""Tests of activation checkpoints in captured code: they are nodes that compute their body again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl.aot.partition import default_partition
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backend_registry import lookup_backend
from refimpl.backends import eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, assert_agrees_at, captured_with, each_of, same

WEIGHT = torch.full((4, 4), 0.5, requires_grad=True)


def block(x: Any, w: Any = None, *, scale: float = 1.0) -> Any:
    return torch.tanh(x @ (WEIGHT if w is None else w)) * torch.sigmoid(x) * scale


def one(x: Any) -> Any:
    return checkpoint(block, x, use_reentrant=False)


def several(x: Any) -> Any:
    y = checkpoint(block, x, WEIGHT * 2, use_reentrant=False, scale=2.0)
    return checkpoint(block, y, y.mT, use_reentrant=False, preserve_rng_state=False).sum(dim=0)


def closing_over(x: Any) -> Any:
    factor, other = 3, x.exp()

    def inner(y: Any) -> Any:
        return {"a": y.sin() * other * factor, "b": [y.shape[0], y, None, (y.cos(),)]}

    found = checkpoint(inner, x, use_reentrant=False)
    return found["a"] + found["b"][0], found["b"][1] is x, found["b"][3][0]


def nested(x: Any) -> Any:
    def outer(y: Any) -> Any:
        return checkpoint(block, y.sin(), use_reentrant=False).cos()

    return checkpoint(outer, x, use_reentrant=False)


def random(x: Any) -> Any:
    def dropped(y: Any) -> Any:
        return torch.dropout(y.sin(), 0.5, True) * torch.rand_like(y) * y

    return checkpoint(dropped, x, use_reentrant=False) + torch.rand(4)


def viewing(x: Any) -> Any:
    y = x * 1
    z = checkpoint(lambda t: t.view(-1), y, use_reentrant=False)
    y.mul_(2)
    return z * 3


def under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = checkpoint(block, x, use_reentrant=False)
    return y * x, y.requires_grad


PROGRAMS: list[Callable[..., Any]] = [one, several, closing_over, nested, random, viewing, under_no_grad]


def has_checkpoints(targets: Iterable[str]) -> bool:
    """torch's operator, or refimpl's function for bodies that draw random numbers."""
    return any("activation_checkpoint" in target for target in targets)


def inputs() -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 16).view(4, 4), torch.linspace(-2, 1, 16).view(4, 4)]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(*PROGRAMS)
def test_values_gradients_and_random_numbers_are_those_of_eager(program: Callable[..., Any], mode: str) -> None:
    captured, recorder, options = captured_with(program, breaks_at=MODES[mode], fullgraph=MODES[mode] is None)
    assert_agrees_at(program, captured, *inputs(), others=[WEIGHT])
    if MODES[mode] is None:
        assert not options.breaks
        assert len(recorder.graphs) == 1
        assert has_checkpoints(recorder.targets) is (program is not under_no_grad)


@each_of(*PROGRAMS)
def test_they_are_those_of_eager_behind_aot_autograd(program: Callable[..., Any]) -> None:
    captured = refimpl.compile(program, backend="aot_eager", fullgraph=True)
    assert_agrees_at(program, captured, *inputs(), others=[WEIGHT])


@each_of(one, nested, random)
def test_a_graph_that_has_them_is_captured_again(program: Callable[..., Any]) -> None:
    first, recorder, _ = captured_with(program, fullgraph=True)
    first(inputs()[0].requires_grad_())
    (graph,) = recorder.graphs
    rest = [WEIGHT for node in graph.graph.nodes if node.op == "placeholder"][1:]
    again, recorder, _ = captured_with(lambda x: graph(x, *rest)[0], fullgraph=True)
    assert_agrees_at(program, again, *inputs(), others=[WEIGHT])
    assert has_checkpoints(recorder.targets)


def kept_by(function: Callable[..., Any], x: torch.Tensor) -> int:
    """How many elements are kept for backward, but for arguments."""
    kept: dict[int, int] = {}

    argument = x.clone().requires_grad_()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() != argument.data_ptr():
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(argument)
    return sum(kept.values())


def test_what_is_computed_again_is_not_kept() -> None:
    def long(x: Any) -> Any:
        for _ in range(5):
            x = x.sin().exp().tanh()
        return x

    def program(x: Any) -> Any:
        return checkpoint(long, x, use_reentrant=False)

    captured, _, _ = captured_with(program, fullgraph=True)
    assert kept_by(captured, inputs()[0]) <= kept_by(program, inputs()[0]) < kept_by(long, inputs()[0])


def test_behind_aot_autograd_it_is_not_kept_either() -> None:
    def long(x: Any) -> Any:
        for _ in range(5):
            x = torch.mm(x, x).tanh()
        return x

    def program(x: Any) -> Any:
        return checkpoint(long, x, use_reentrant=False)

    kept = []
    for function in (program, long):
        captured = with_options(function, CaptureOptions(backend=_default_partition, fullgraph=True))
        kept.append(kept_by(captured, inputs()[0]))
    assert kept[0] < kept[1]


def _default_partition(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
    return aot_module_simplified(graph, examples, fw_compiler=eager, partition_fn=default_partition)


def test_a_second_size_is_captured_once_for_all() -> None:
    def program(x: Any) -> Any:
        return checkpoint(lambda y: y.sin() * y.shape[0], x, use_reentrant=False)

    captured, recorder, _ = captured_with(program, fullgraph=True)
    for size in (3, 4, 5, 6):
        x = torch.ones(size, requires_grad=True)
        ours, theirs = captured(x), program(x)
        assert torch.equal(ours, theirs)
        assert same(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x))
    assert len(recorder.graphs) == 2


def test_modules_and_what_they_close_over_are_guarded() -> None:
    linear = torch.nn.Linear(4, 4)
    factor = 2

    def program(x: Any) -> Any:
        return checkpoint(linear, x, use_reentrant=False) * checkpoint(lambda y: y * factor, x, use_reentrant=False)

    captured, recorder, _ = captured_with(program, fullgraph=True)
    for factor in (2, 3, 2):  # noqa: B007 - the function reads it
        x = inputs()[0].requires_grad_()
        ours, theirs = captured(x), program(x)
        assert torch.equal(ours, theirs)
        wanted = (x, *linear.parameters())
        assert same(torch.autograd.grad(ours.sum(), wanted), torch.autograd.grad(theirs.sum(), wanted))
    assert len(recorder.graphs) == 2


LOG: list[int] = []


def reentrant_of_constants(x: Any) -> Any:
    return checkpoint(lambda y: block(y) * x, torch.ones(4, 4), use_reentrant=True) + x


def appending(x: Any) -> Any:
    def inner(y: Any) -> Any:
        LOG.append(1)
        return y.sin()

    return checkpoint(inner, x, use_reentrant=False)


def writing(x: Any) -> Any:
    y = x * 1
    return checkpoint(lambda t: t.add_(2) * 3, y, use_reentrant=False) + y


def normalizing(x: Any) -> Any:
    mean, variance = torch.zeros(4), torch.ones(4)
    y = checkpoint(torch.nn.functional.batch_norm, x, mean, variance, training=True, use_reentrant=False)
    return y * 1, mean, variance


def drawing_others(x: Any) -> Any:
    return checkpoint(lambda y: y.sin() * torch.rand(4), x, use_reentrant=False, preserve_rng_state=False)


def with_contexts(x: Any) -> Any:
    def contexts() -> Any:
        return torch.autograd.graph.save_on_cpu(), torch.autograd.graph.save_on_cpu()

    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (reentrant_of_constants, "call_of_native_code"),
        (with_contexts, "call_of_native_code"),
        (appending, "effect_in_branch"),
        (writing, "operator_mutates"),
        (normalizing, "effect_in_branch"),
        (drawing_others, "effect_in_branch"),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_what_is_no_node_is_run_as_it_is(program: Callable[..., Any], reason: str) -> None:
    captured, _, options = captured_with(program)
    found = []
    for function in (program, captured, captured):
        LOG.clear()
        torch.manual_seed(3)
        x = inputs()[0].requires_grad_()
        result = function(x)
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
        rest = [part.clone() for part in result[1:]] if isinstance(result, tuple) else []
        found.append((first.detach(), rest, x.grad, [*LOG], torch.rand(1)))
    assert same(found[1], found[0])
    assert same(found[2], found[0])
    assert options.breaks[0].kind.name == reason
    refused, _, _ = captured_with(program, fullgraph=True)
    with pytest.raises(Unsupported, match=reason):
        refused(inputs()[0].requires_grad_())


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_default_partitioner"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_random_results_of_a_body_are_those_of_the_forward(dynamic: bool | None, backend: str) -> None:
    def twice_dropped(x: Any) -> Any:
        return torch.nn.functional.dropout(torch.nn.functional.dropout(x, 0.5), 0.5).sin()

    def program(x: Any) -> Any:
        return checkpoint(twice_dropped, x * 2, use_reentrant=False) * torch.rand_like(x)

    found = []
    for function in (program, with_options(program, CaptureOptions(backend=lookup_backend(backend), dynamic=dynamic))):
        torch.manual_seed(3)
        x = torch.linspace(1, 2, 64, requires_grad=True)
        function(x).sum().backward()
        found.append((x.grad, torch.rand(2)))
    assert same(*found)
