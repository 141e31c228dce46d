"""Checkpointed regions in graphs of torch.compile: computed again in backward, with the random numbers of forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends.triton import triton

Tensor = torch.Tensor
PARTITIONS = (default_partition, min_cut_rematerialization_partition)


def _checkpoint(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(body, *args, use_reentrant=False, **kwargs)


def _masked(x: Tensor) -> Tensor:
    return F.dropout(x.sin(), 0.5) * x


def _twice(x: Tensor) -> Tensor:
    return _checkpoint(_masked, _checkpoint(_masked, x))


def _nested(x: Tensor) -> Tensor:
    return _checkpoint(lambda y: _checkpoint(_masked, y.exp()) + F.dropout(y, 0.3), x)


def _with_keyword(x: Tensor) -> Tensor:
    return _checkpoint(lambda a, scale: a.sin() * scale, x, scale=x.cos())


def _products(x: Tensor) -> Tensor:
    return (x @ x).sin() @ x


def _saving_products(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_product = operator is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(x: Tensor) -> Tensor:
    contexts = functools.partial(create_selective_checkpoint_contexts, _saving_products)
    return _checkpoint(_products, x, context_fn=contexts)


def _plain(x: Tensor) -> Tensor:
    return _checkpoint(_products, x)


def _normalised(x: Tensor) -> Tensor:
    mean, var = torch.zeros(4), torch.ones(4)
    return _checkpoint(lambda y: F.batch_norm(y, mean, var, training=True).sin(), x) + mean


def _compiled(function: Callable[..., Any], partition: Any) -> tuple[Callable[..., Any], list[torch.fx.GraphModule]]:
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph_module)
        return graph_module.forward

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(graph_module, example_inputs, fw_compiler=compiler, partition_fn=partition)

    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True), graphs


def _outcome(function: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.rand(4, 4, requires_grad=True)
    result = function(x)
    result.square().sum().backward()
    assert x.grad is not None
    return result, x.grad


@pytest.mark.fractional
@pytest.mark.parametrize("partition", PARTITIONS, ids=["default", "min_cut"])
@pytest.mark.parametrize(
    "function", [_masked, _twice, _nested, _with_keyword, _selective, _plain, _normalised], ids=lambda f: f.__name__
)
def test_values_and_gradients_are_those_of_eager(function: Callable[..., Any], partition: Any) -> None:
    compiled, _ = _compiled(function, partition)
    for mine, expected in zip(_outcome(compiled), _outcome(function), strict=True):
        torch.testing.assert_close(mine, expected)


def test_the_triton_backend_draws_once() -> None:
    for mine, expected in zip(_outcome(torch.compile(_twice, backend=triton)), _outcome(_twice), strict=True):
        torch.testing.assert_close(mine, expected)


def _calls(graph_module: torch.fx.GraphModule, target: Any) -> int:
    return len(graph_module.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize(("function", "again"), [(_plain, 1), (_selective, 0)], ids=["plain", "selective"])
def test_what_the_policy_says_is_computed_again(function: Callable[..., Any], again: int) -> None:
    """The backward of two products has four; `sin` is computed again by either, its product only by the plain one."""
    compiled, graphs = _compiled(function, default_partition)
    _outcome(compiled)
    forward, backward = graphs
    assert _calls(forward, torch.ops.aten.mm.default) == 2
    assert _calls(backward, torch.ops.aten.sin.default) == 1
    assert _calls(backward, torch.ops.aten.mm.default) == 4 + again
