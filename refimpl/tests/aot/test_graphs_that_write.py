"""Graphs that write: into their inputs (keep_inference_input_mutations), or as the program does (disable_functionalization)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from refimpl.aot.export.function import _aot_export_function
from refimpl.aot.options import aot_settings
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_function, aot_module, aot_module_simplified
from refimpl.tests.aot.kept_graphs import Compiler, is_functional, leaf_of_numbers, outputs_of
from refimpl.tests.corpus import Program, fractional, programs_of
from refimpl.tests.corpus.compare import assert_same_or_more, observe
from refimpl.tests.graphs import placeholders_of, targets_of

Tensor = torch.Tensor
aten = torch.ops.aten

WAYS: dict[str, dict[str, Any]] = {
    "kept": {"keep_inference_input_mutations": True},
    "recorded": {"keep_inference_input_mutations": True, "disable_functionalization": True},
    "recorded-outside": {"disable_functionalization": True},
    "min_cut": {
        "keep_inference_input_mutations": True,
        "disable_functionalization": True,
        "partition_fn": min_cut_rematerialization_partition,
    },
}
TOPICS = ("mutation", "storage", "geometry", "views")
WRITING = [one for one in programs_of("aot") if one.topic in TOPICS and not one.refused]


@pytest.mark.parametrize(
    ("program", "way", "requires_grad"),
    fractional(
        [
            pytest.param(program, way, requires_grad, id=f"{program}-{way}-{requires_grad}")
            for program in WRITING
            for way in WAYS
            for requires_grad in program.with_gradients
        ],
        step=3,
    ),
)
def test_a_graph_that_writes_agrees_with_eager(program: Program, way: str, requires_grad: bool) -> None:
    compiled = aot_function(program.build(), lambda graph_module, _: graph_module, **WAYS[way])
    for writes in (False, True):
        expected, actual = (
            observe(function, lambda: program.make(requires_grad), writes=writes)
            for function in (program.build(), compiled)
        )
        assert_same_or_more(expected, actual, what="written: " if writes else "")


# ------------------------------------------------------------------------------------------------ keep_inference_input_mutations


def under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * w


def detached(x: Tensor, w: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x * w


def through_data(x: Tensor, w: Tensor) -> Tensor:
    x.data.mul_(2)
    return x * w


@pytest.mark.parametrize("function", [under_no_grad, detached, through_data])
def test_a_training_graph_does_the_writes_that_autograd_need_not_see(function: Callable[..., Tensor]) -> None:
    compiler = Compiler()
    compiled = compiler.function(function, keep_inference_input_mutations=True)
    ours, theirs = ((leaf_of_numbers(3), leaf_of_numbers(3)) for _ in range(2))
    result, expected = compiled(*ours), function(*theirs)
    assert [(t.tolist(), t._version) for t in (result, *ours)] == [
        (t.tolist(), t._version) for t in (expected, *theirs)
    ]
    for loss in (result, expected):
        loss.sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)
    graph = compiler.graph("fw")
    write = graph.graph.find_nodes(op="call_function", target=aten.copy_.default)
    assert [node.args[0] for node in write] == placeholders_of(graph)[:1]
    assert outputs_of(graph)[0].target is aten.mul.Tensor


def test_a_buffer_is_updated_in_the_training_graph_and_its_old_value_is_saved() -> None:
    def function(x: Tensor, buffer: Tensor) -> Tensor:
        result = x * buffer.clone()
        buffer.add_(1)
        return result

    compiler = Compiler()
    x, buffer = leaf_of_numbers(2), torch.tensor([3.0, 5.0])
    compiler.function(function, keep_inference_input_mutations=True)(x, buffer).sum().backward()
    assert (buffer.tolist(), buffer._version) == ([4.0, 6.0], 1)
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 5.0]
    assert targets_of(compiler.graph("fw")).count(aten.copy_.default) == 1


def test_statistics_of_a_batch_normalization_are_written_in_the_graph_and_their_versions_stay() -> None:
    found = []
    compiler = Compiler()
    for compiles in (True, False):
        torch.manual_seed(0)
        module = torch.nn.BatchNorm1d(3)
        call = aot_module(module, compiler.kind("fw"), compiler.kind("bw"), keep_inference_input_mutations=True)
        call = call if compiles else module
        x = torch.randn(4, 3, requires_grad=True)
        y = call(x).exp()
        y.sum().backward()
        tensors = [y, x.grad, *module.buffers(), *[p.grad for p in module.parameters()]]
        found.append([t.tolist() for t in tensors if t is not None] + [b._version for b in module.buffers()])
    assert found[0] == found[1]
    assert targets_of(compiler.graph("fw")).count(aten.copy_.default) == 3


def test_a_result_that_is_a_written_input_is_returned_as_the_input() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        x.copy_(y)
        return [x, y + 1]

    compiler = Compiler()
    x, y = torch.zeros(2), torch.ones(2)
    result = compiler.function(function, keep_inference_input_mutations=True)(x, y)
    assert result[0] is x
    returned = outputs_of(compiler.graph("inference"))
    assert [node.target for node in returned] == [aten.copy_.default, aten.add.Tensor]


class Part(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        part = x[0]
        part.mul_(2)
        return (x + x,)


def test_the_copy_into_an_input_has_the_line_of_the_write() -> None:
    tracer = torch.fx.Tracer()
    tracer.record_stack_traces = True
    graph = tracer.trace(Part())
    module = torch.fx.GraphModule(tracer.root, graph)
    compiler = Compiler()
    aot_module_simplified(module, [torch.ones(2, 2)], compiler.kind("fw"), keep_inference_input_mutations=True)
    (write,) = compiler.graph("fw").graph.find_nodes(op="call_function", target=aten.copy_.default)
    assert "part.mul_(2)" in write.meta["stack_trace"]


def _visible(x: Tensor) -> Tensor:
    x.mul_(2)
    return x * 3


def _expanded(x: Tensor) -> Tensor:
    x.detach()[:1].mul_(2)
    return x * 3


def _detaches(x: Tensor) -> Tensor:
    x.detach_()
    x.mul_(2)
    return x * 3


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (_visible, lambda: leaf_of_numbers(2) * 1),
        (_expanded, lambda: torch.ones(1).expand(3)),
        (_detaches, lambda: leaf_of_numbers(2) * 1),
    ],
)
def test_other_writes_stay_with_the_caller(function: Callable[..., Tensor], make: Callable[[], Tensor]) -> None:
    compiler = Compiler()
    compiled = compiler.function(function, keep_inference_input_mutations=True)
    ours, theirs = make(), make()
    result, expected = compiled(ours), function(theirs)
    seen = [(t.tolist(), t.requires_grad, t._version) for t in (result, ours)]
    assert seen == [(t.tolist(), t.requires_grad, t._version) for t in (expected, theirs)]
    (graph,) = [graph for _, graph in compiler.graphs]
    assert is_functional(graph)


def test_states_of_generators_are_found_beside_writes() -> None:
    def function(x: Tensor, calls: Tensor) -> Tensor:
        calls.add_(1)
        return x * torch.rand(3)

    for requires_grad in (False, True):
        torch.manual_seed(1)
        expected = [torch.rand(3), torch.rand(3)]
        torch.manual_seed(1)
        calls, x = torch.zeros(()), torch.ones(3, requires_grad=requires_grad)
        compiled = aot_function(function, lambda gm, _: gm, keep_inference_input_mutations=True)
        with aot_settings(functionalize_rng_ops=True):
            results = [compiled(x, calls) for _ in range(2)]
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
        assert calls == 2


def test_an_exported_joint_graph_writes_to_its_buffers() -> None:
    def function(x: Tensor, buffer: Tensor) -> Tensor:
        buffer.add_(1)
        return buffer * x

    x, buffer = leaf_of_numbers(2), torch.zeros(2)
    joint, _, _, _ = _aot_export_function(function, (x, buffer), keep_input_mutations=True)
    results, gradients = joint([x.detach(), buffer], [torch.tensor([1.0, 10.0])])
    assert [t.tolist() for t in (*results, buffer)] == [[1.0, 2.0], [1.0, 1.0]]
    assert gradients[0].tolist() == [1.0, 10.0]
    assert gradients[1] is None


# --------------------------------------------------------------------------------------------------- disable_functionalization


class Counted(torch.autograd.Function):
    """Writes to its second argument and to an intermediate, and in the backward to what it has saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, calls: Tensor) -> Tensor:
        torch._foreach_add_([calls], [1.0])
        factor = calls + 1
        torch._foreach_mul_([factor], [3.0])
        ctx.save_for_backward(factor)
        return factor * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (factor,) = ctx.saved_tensors
        torch._foreach_mul_([factor], [4.0])
        return gradient * factor, None


def counted(x: Tensor, calls: Tensor) -> Tensor:
    return Counted.apply(x, calls).sin_().clone()


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_graphs_keep_the_programs_own_writes(partition: Callable[..., Any]) -> None:
    compiler = Compiler()
    compiled = compiler.function(
        counted, partition_fn=partition, keep_inference_input_mutations=True, disable_functionalization=True
    )
    ours, theirs = ((leaf_of_numbers(3), torch.zeros(3)) for _ in range(2))
    result, expected = compiled(*ours), counted(*theirs)
    result.sum().backward()
    expected.sum().backward()
    assert torch.equal(result, expected)
    torch.testing.assert_close(ours[0].grad, theirs[0].grad, rtol=0, atol=0)
    assert ours[1].tolist() == theirs[1].tolist() == [1.0] * 3
    writes = [aten._foreach_add_.ScalarList, aten._foreach_mul_.ScalarList, aten.sin_.default]
    assert [target for target in targets_of(compiler.graph("fw")) if target in writes] == writes
    assert targets_of(compiler.graph("bw")).count(aten._foreach_mul_.ScalarList) == 1


def test_an_inference_graph_keeps_the_programs_own_writes() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return (x * y).relu_()

    compiler = Compiler()
    options: dict[str, Any] = {"keep_inference_input_mutations": True, "disable_functionalization": True}
    x = torch.ones(2)
    assert compiler.function(function, **options)(x, torch.tensor([-1.0, 1.0])).tolist() == [0.0, 2.0]
    assert x.tolist() == [2.0, 2.0]
    graph = compiler.graph("inference")
    assert targets_of(graph) == [aten.add_.Tensor, aten.mul.Tensor, aten.relu_.default]
    assert len(outputs_of(graph)) == 1


def test_an_input_whose_write_autograd_sees_is_cloned() -> None:
    """The graph writes to the clone; the caller's tensor gets its value and its history from there."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return x.sin()

    compiler = Compiler()
    compiled = compiler.function(function, keep_inference_input_mutations=True, disable_functionalization=True)
    found = []
    for call in (compiled, function):
        leaf, w = leaf_of_numbers(3), torch.tensor([2.0, 3.0, 4.0])
        x = leaf * 1
        (call(x, w) + x).sum().backward()
        found.append([t.tolist() for t in (x, leaf.grad) if t is not None])
    assert found[0] == found[1]
    assert targets_of(compiler.graph("fw"))[:2] == [aten.clone.default, aten.mul_.Tensor]


def _shared(x: Tensor) -> Tensor:
    whole = x * 1
    return compiled_of(_write_part)(whole, whole[0])


def _write_part(whole: Tensor, part: Tensor) -> Tensor:
    part.mul_(2)
    return whole.sin()


def compiled_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return aot_function(function, lambda gm, _: gm, disable_functionalization=True)


def test_inputs_that_share_memory_are_functionalized_all_the_same() -> None:
    x, y = leaf_of_numbers(2, 2), leaf_of_numbers(2, 2)
    _shared(x).sum().backward()
    whole = y * 1
    _write_part(whole, whole[0]).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


def test_dropout_of_a_checkpoint_is_drawn_once() -> None:
    def function(x: Tensor, calls: Tensor) -> Any:
        calls.add_(1)
        block = lambda x: torch.nn.functional.dropout(x.sin(), 0.5)  # noqa: E731
        return checkpoint(block, x, use_reentrant=False)

    x = leaf_of_numbers(64)
    options: dict[str, Any] = {"keep_inference_input_mutations": True, "disable_functionalization": True}
    result = aot_function(function, lambda gm, _: gm, **options)(x, torch.zeros(()))
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad == 0, result.detach() == 0)


# ------------------------------------------------------------------------------------------------------- the backward graph


def test_the_backward_returns_a_gradient_or_none_for_every_input() -> None:
    def function(n: int, x: Tensor, data: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * data * n, w.exp()

    compiler = Compiler()
    x, w = leaf_of_numbers(2), leaf_of_numbers(2)
    result, other = compiler.function(function)(2, x, torch.ones(2), w)
    (result.sum() + other.sum()).backward()
    returned = outputs_of(compiler.graph("bw"))
    assert [value is None for value in returned] == [True, False, True, False]
    assert x.grad is not None
    assert w.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    assert torch.equal(w.grad, w.detach().exp())


def test_a_part_of_the_backward_returns_as_many_values() -> None:
    def function(data: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * data, w.exp() * data

    compiler = Compiler()
    x, w = leaf_of_numbers(2), leaf_of_numbers(2)
    result, _ = compiler.function(function)(torch.full((2,), 3.0), x, w)
    result.sum().backward()
    assert [value is None for value in outputs_of(compiler.graph("bw"))] == [True, False, True]
    assert x.grad is not None
    assert (x.grad.tolist(), w.grad) == ([3.0, 3.0], None)
