"""Tests of flex_attention's operator in traces: its functions are graphs, and its backward is one operator too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from refimpl import compile_aot, make_fx
from refimpl.aot_entry_points import aot_function

Tensor = torch.Tensor
hop: Any = torch.ops.higher_order
BLOCKS: tuple[Any, ...] = create_block_mask(
    lambda b, h, q, k: q >= k, None, None, 8, 8, device="cpu", BLOCK_SIZE=8
).as_tuple()
TENSORS = [i for i, block in enumerate(BLOCKS) if isinstance(block, Tensor)]


def arguments() -> list[Tensor]:
    inputs = [torch.sin(torch.arange(64.0) * (i + 1)).view(1, 2, 8, 4) for i in range(3)]
    return [*inputs, torch.linspace(-1, 1, 64).view(8, 8), *(BLOCKS[i] for i in TENSORS)]


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *blocks: Tensor) -> Tensor:
    """Passes the mask's tensors as arguments, since the operator takes no constants among fake tensors."""
    given = dict(zip(TENSORS, blocks, strict=True))
    mask = tuple(given.get(i, block) for i, block in enumerate(BLOCKS))

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        return s * 2 + bias[q, k] + (q - k)

    return hop.flex_attention(query, key, value, score, mask, 0.5, {}, (bias,))[0]


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_functions_of_scores_and_masks_are_graphs(mode: str) -> None:
    graph = make_fx(attend, tracing_mode=mode)(*arguments())
    (node,) = graph.graph.find_nodes(op="call_function", target=hop.flex_attention)
    names = {str(used.target) for used in node.all_input_nodes if used.op == "get_attr"}
    assert names == {"sdpa_score0", "sdpa_mask0"}
    torch.testing.assert_close(graph(*arguments()), attend(*arguments()))


def test_the_backward_is_an_operator_and_gives_eagers_gradients() -> None:
    kept: list[torch.fx.GraphModule] = []
    compiled = aot_function(attend, lambda graph, _: (kept.append(graph), graph)[1])
    found = []
    for function in (compiled, attend):
        given = arguments()
        wanted = [tensor.requires_grad_() for tensor in given[:3]]
        out = function(*given)
        found.append(torch.autograd.grad((out * torch.arange(1.0, 65.0).view(out.shape)).sum(), wanted))
    torch.testing.assert_close(*found)
    targets = [node.target for graph in kept for node in graph.graph.nodes]
    assert targets.count(hop.flex_attention) == targets.count(hop.flex_attention_backward) == 1


def attend_in_python(query: Tensor, slope: Tensor) -> Tensor:
    """The function of torch.nn.attention, whose functions close over tensors; the mask is made by the program."""
    size = query.shape[2]
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, size, size, device="cpu", BLOCK_SIZE=8)
    return flex_attention(
        query, query * 2, query + 1, score_mod=lambda s, b, h, q, k: s + slope[h] * (q - k), block_mask=mask
    )


def attend_in_a_branch(query: Tensor, slope: Tensor) -> Tensor:
    def attended(q: Tensor) -> Tensor:
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s * slope[h])

    return torch.cond(query.sum() > 1e3, lambda q: q * 2, attended, (query,))


@pytest.mark.parametrize("program", [attend_in_python, attend_in_a_branch])
@pytest.mark.parametrize("road", ["real", "fake", "compile_aot"])
def test_the_function_of_torch_is_traced_as_its_operator(program: Any, road: str) -> None:
    query, slope = arguments()[0], torch.linspace(-1, 1, 2)
    traced = compile_aot(program) if road == "compile_aot" else make_fx(program, tracing_mode=road)(query, slope)
    torch.testing.assert_close(traced(query * 2, slope), program(query * 2, slope))
