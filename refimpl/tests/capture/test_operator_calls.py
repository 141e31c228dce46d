"""Tests of higher-order operators called in captured code: nodes of the operator, with eager's results, gradients and output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import print as printed
from torch._higher_order_ops._invoke_quant import InvokeQuant
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.wrap import (
    dynamo_bypassing_wrapper,
    wrap,
    wrap_with_autocast,
    wrap_with_set_grad_enabled,
)
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import refimpl
from refimpl.capture.public.errors import Unsupported
from refimpl.export import export
from refimpl.tests.capture.compiled_graphs import Graphs, assert_as_eager, assert_same, calls, graphs_of

Tensor = torch.Tensor
mm: Any = torch.ops.aten.mm.default
quantized = InvokeQuant()


def leaf(*sizes: int) -> Tensor:
    return torch.linspace(-1, 1, int(torch.Size(sizes).numel())).view(sizes).requires_grad_()


def wrapped(x: Tensor, y: Tensor) -> Any:
    return wrap(lambda a, b, c=1: (a * y + b, None, 3, [a.sin()], c), x, b=y)


def wrapped_twice(x: Tensor, y: Tensor) -> Any:
    return wrap(lambda a: wrap(lambda b: b.sin() * y, a).cos(), x)


def passing_on(x: Tensor, y: Tensor) -> Any:
    return wrap(lambda a: (a, a.view(-1)), x)


def sized(x: Tensor, y: Tensor) -> Any:
    return wrap(lambda a: a.view(a.shape[0], -1) * a.shape[0], x)


def without_gradients(x: Tensor, y: Tensor) -> Any:
    return wrap_with_set_grad_enabled(False, lambda a: a.sin() * y, x) + x


def with_gradients(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        return wrap_with_set_grad_enabled(True, lambda a: a.sin() * y, x)


def cast(x: Tensor, y: Tensor) -> Any:
    return wrap_with_autocast("cpu", torch.bfloat16, True, None, lambda a: a @ y, x).float() + x


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    def double(*args: Any) -> Any:
        return function(*args)

    return double


def bypassing(x: Tensor, y: Tensor) -> Any:
    return dynamo_bypassing_wrapper(doubled, lambda a: (a * y).sin(), x)


def quantization(x: Tensor, y: Tensor) -> Any:
    return quantized(lambda a, b: ((a * b).sin(),), x, y, scheme="nf4")[0]


def each(x: Tensor, y: Tensor) -> Any:
    return foreach_map(lambda a, b: a + b.sin(), [x.detach(), y.detach()], [y.detach(), x.detach()])


def hinted(x: Tensor, y: Tensor) -> Any:
    return hints_wrapper(lambda a, b: a @ b, (x.detach(), y.detach()), {}, hints={"key": True})


def strict(x: Tensor, y: Tensor) -> Any:
    return strict_mode(lambda a: (a.sin(), a.cos()), (x.detach(),))


def of_integers(x: Tensor, y: Tensor) -> Any:
    a, b = (x.detach() * 9).to(torch.int8), (y.detach() * 9).to(torch.int8)
    return out_dtype(mm, torch.int32, a, b)


CALLS: list[tuple[Callable[..., Any], str, bool]] = [
    (wrapped, "wrap", False),
    (wrapped_twice, "wrap", False),
    (passing_on, "wrap", False),
    (sized, "wrap", False),
    (without_gradients, "wrap_with_set_grad_enabled", False),
    (with_gradients, "wrap_with_set_grad_enabled", False),
    (cast, "wrap_with_autocast", False),
    (bypassing, "dynamo_bypassing_wrapper", False),
    (quantization, "invoke_quant_packed", True),
    (each, "foreach_map", True),
    (hinted, "hints_wrapper", True),
    (strict, "strict_mode", True),
    (of_integers, "out_dtype", True),
]


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("program", "name", "is_kept"), CALLS, ids=[program.__name__ for program, _, _ in CALLS])
def test_a_call_is_a_node_and_gives_results_and_gradients_of_eager(
    program: Callable[..., Any], name: str, is_kept: bool, dynamic: bool
) -> None:
    graphs = assert_as_eager(program, leaf(3, 3), leaf(3, 3), dynamic=dynamic)
    assert len(calls(graphs.captured[0], name)) == 1
    assert len(calls(graphs.forward[0], name)) == int(is_kept)


def test_parameters_are_operands_and_get_gradients() -> None:
    linear, graphs = nn.Linear(3, 3), Graphs()
    found = []
    for function in (refimpl.compile(lambda x: wrap(lambda y: linear(y), x), backend=graphs, fullgraph=True), linear):
        function(leaf(2, 3)).sum().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in linear.parameters()])
        linear.zero_grad()
    assert_same(*found)
    assert len(calls(graphs.captured[0], "wrap")[0].args) == 4


def test_settings_of_an_operator_are_kept() -> None:
    graphs = assert_as_eager(quantization, leaf(3).detach(), leaf(3).detach())
    for module in (graphs.captured[0], graphs.forward[0]):
        assert calls(module, "invoke_quant_packed")[0].kwargs["scheme"] == "nf4"
    graphs = assert_as_eager(hinted, leaf(3, 3), leaf(3, 3))
    assert calls(graphs.forward[0], "hints_wrapper")[0].kwargs["hints"] == {"key": True}


def test_a_function_that_changes_what_is_outside_breaks_the_graph() -> None:
    found: list[int] = []

    def program(x: Tensor) -> Tensor:
        return wrap(lambda y: (found.append(1), y.sin())[1], x)

    with pytest.raises(Unsupported, match="effect_in_branch"):
        refimpl.compile(program, backend="eager", fullgraph=True)(leaf(3))
    found.clear()
    assert_same(refimpl.compile(program, backend="eager")(leaf(3)), program(leaf(3)))
    assert found == [1, 1]


@pytest.mark.parametrize("given", [(leaf(2), [1]), (leaf(2), leaf(2), leaf(2))], ids=["a list", "too many"])
def test_arguments_that_the_operator_refuses_are_refused(given: tuple[Any, ...]) -> None:
    def program(x: Tensor) -> Any:
        return hints_wrapper(lambda a, b: a, (x, *given[1:]), {}, hints={"key": 1})

    with pytest.raises((RuntimeError, TypeError)):
        program(given[0])
    with pytest.raises((RuntimeError, TypeError)):
        refimpl.compile(program, backend="aot_eager", fullgraph=True)(given[0])


# ---------------------------------------------------------------------------------------------------------------- printing


def printing(x: Tensor) -> Any:
    y = x + x
    printed("twice {x} {n}", x=y, n=3)
    z = y * y
    printed("squared {} of {}", z, x.shape[0])
    return y, z + z


@torch.compiler.nested_compile_region
def printing_region(x: Tensor) -> Tensor:
    printed("in a region {}", x)
    return x.sin()


def printing_in_regions(x: Tensor) -> Any:
    printed("before")
    y = printing_region(x)
    printed("between {}", y)
    z: Any = y
    return printing_region(z * 1)


def printing_in_a_branch(x: Tensor) -> Any:
    def taken(y: Tensor) -> Tensor:
        printed("taken {}", y)
        return y.sin()

    def other(y: Tensor) -> Tensor:
        printed("other {}", y)
        return y.cos()

    return torch.cond(x.sum() > 0, taken, other, (x,))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [printing, printing_in_regions, printing_in_a_branch], ids=lambda p: p.__name__)
def test_what_is_printed_is_printed_in_order(program: Callable[..., Any], backend: str, capsys: Any) -> None:
    compiled = refimpl.compile(program, backend=backend, fullgraph=True)
    for x in (torch.ones(2), torch.ones(3) * 2, -torch.ones(3)):
        ours = compiled(x)
        seen = capsys.readouterr().out
        assert_same(ours, program(x))
        assert seen == capsys.readouterr().out


def test_the_backward_prints_nothing_again(capsys: Any) -> None:
    x = leaf(2)
    loss = refimpl.compile(lambda x: printing(x)[1].sum(), backend="aot_eager", fullgraph=True)(x)
    capsys.readouterr()
    loss.backward()
    assert capsys.readouterr().out == ""
    assert_same(x.grad, 16 * x.detach())


@pytest.mark.parametrize("is_strict", [False, True])
def test_an_exported_program_prints(is_strict: bool, capsys: Any) -> None:
    class Printing(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return printing(x)

    x = torch.ones(2)
    exported = export(Printing(), (x,), strict=is_strict)
    for program in (exported, exported.run_decompositions({})):
        capsys.readouterr()
        program.module()(x)
        seen = capsys.readouterr().out
        printing(x)
        assert seen == capsys.readouterr().out


def test_a_region_with_effects_takes_and_returns_their_token() -> None:
    graphs = assert_as_eager(printing_in_regions, torch.ones(2))
    first, second = calls(graphs.forward[0], "invoke_subgraph")
    token: Any = second.args[2]
    assert token.args[0] is not first  # the print between them
    assert len(graphs_of(graphs.forward[0])) == 1
    assert len(calls(graphs.forward[0], "with_effects", is_deep=True)) == 3


# -------------------------------------------------------------------------------------------------------------- checkpoints


def saves_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is mm else CheckpointPolicy.PREFER_RECOMPUTE


def products(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(torch.matmul(torch.matmul(x, y), y)) * y


CONTEXTS: dict[str, tuple[Callable[..., Any] | None, int]] = {  # with the number of products in the backward
    "none": (None, 4 + 2),
    "a policy": (functools.partial(create_selective_checkpoint_contexts, saves_products), 4),
    "a list": (lambda: create_selective_checkpoint_contexts([mm]), 4),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_policy_decides_what_the_backward_computes_again(name: str) -> None:
    contexts, count = CONTEXTS[name]
    given: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}

    def program(x: Tensor, y: Tensor) -> Any:
        return checkpoint(products, torch.sin(x), y, use_reentrant=False, **given)

    graphs = assert_as_eager(program, leaf(3, 3), leaf(3, 3))
    assert len(calls(graphs.captured[0], "tag_activation_checkpoint")) == 1
    assert len(graphs.forward[0].graph.find_nodes(op="call_function", target=mm)) == 2
    assert len(graphs.backward[0].graph.find_nodes(op="call_function", target=mm)) == count


def test_a_reentrant_checkpoint_of_what_requires_grad_is_one_too() -> None:
    graphs = assert_as_eager(lambda x, y: checkpoint(products, x, y, use_reentrant=True) + 1, leaf(3, 3), leaf(3, 3))
    assert calls(graphs.captured[0], "tag_activation_checkpoint")[0].kwargs["use_reentrant"] is True


# ---------------------------------------------------------------------------------------------------------------- attention

BIAS = torch.linspace(-1, 1, 64).view(8, 8)
MASK = create_block_mask(lambda b, h, q, k: q >= k, None, None, 8, 8, device="cpu", BLOCK_SIZE=8)
DOCUMENTS = torch.arange(8) // 3
OF_DOCUMENTS = create_block_mask(
    lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k], None, None, 8, 8, device="cpu", BLOCK_SIZE=8
)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, block_mask=MASK)


def biased(q: Tensor, k: Tensor, v: Tensor) -> Any:
    slopes = v[0, :, 0, 0]
    return flex_attention(
        q, k, v, score_mod=lambda s, b, h, m, n: s * slopes[h] + BIAS[m, n].sin() + (m - n), block_mask=MASK
    )


def of_documents(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, block_mask=OF_DOCUMENTS, return_lse=True, scale=0.5)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k[:, :1], v[:, :1], block_mask=MASK, enable_gqa=True)


@pytest.mark.parametrize("program", [causal, biased, of_documents, grouped], ids=lambda program: program.__name__)
def test_attention_is_one_node_with_graphs_of_its_functions(program: Callable[..., Any]) -> None:
    q, k, v = (torch.sin(torch.arange(64.0) * (i + 1)).view(1, 2, 8, 4) for i in range(3))
    graphs = assert_as_eager(program, q, k, v)
    for module in (graphs.captured[0], graphs.forward[0]):
        (call,) = calls(module, "flex_attention")
        assert len([node for node in call.all_input_nodes if node.op == "get_attr"]) >= 2


def test_attention_itself_may_be_compiled() -> None:
    compiled = refimpl.compile(flex_attention, backend="aot_eager", fullgraph=True)
    q, k, v = (torch.sin(torch.arange(64.0) * (i + 1)).view(1, 2, 8, 4) for i in range(3))
    assert_same(compiled(q, k, v, block_mask=MASK), causal(q, k, v))
    assert_same(compiled(q, k, v, block_mask=OF_DOCUMENTS), flex_attention(q, k, v, block_mask=OF_DOCUMENTS))


def test_an_operator_may_return_no_tensors():
    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        parts = (0, *torch.tensor([2]).cumsum(0)[:-1].neg().unbind())
        return x + len(parts), len(x[:0].unbind())

    x = torch.randn(3)
    total, count = refimpl.compile(program, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(total, x + 1)
    assert count == 0
