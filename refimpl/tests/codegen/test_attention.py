"""Attention as one kernel, and its gradients as two, give what eager and float64 give, on the emulator and on the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl import make_fx
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import compile_to_cubin
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.levels.interpreter import InterpreterLevel
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.printing.kernels import PrintedKernel
from refimpl.tests.codegen.checks import compiled_with_graphs, numbers

aten = torch.ops.aten
TEMPLATES = CodegenOptions(contractions="template")
_x = functools.partial(numbers, grad=True)


def _compiled(function: Callable[..., Any], *, level: Any = None, **options: Any) -> tuple[Any, list[CompiledGraph]]:
    level = level or EmulatorLevel(asserts=True, races=True)
    return compiled_with_graphs(function, **{"strict": True, "level": level, "options": TEMPLATES, **options})


def _qkv(
    queries: int, keys: int, width: int, *, heads: int = 2, key_heads: int = 2, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    return (
        _x(2, heads, queries, width, seed=1, dtype=dtype),
        _x(2, key_heads, keys, width, seed=2, dtype=dtype),
        _x(2, key_heads, keys, width, seed=3, dtype=dtype),
    )


def _with_gradients(function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The result, and gradients of a weighted sum of it."""
    output = function(*inputs)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(output.dtype)
    wanted = [value for value in inputs if value.requires_grad]
    return [output, *torch.autograd.grad(output, wanted, weights)]


def _check(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], **options: Any
) -> list[CompiledGraph]:
    """Eager's metadata, and no further from float64 than twice what eager is, or a few roundings.

    Where all of a result is zero, as gradients of scores are with one key, its terms cancel. What eager's library leaves of them
    is its own matter: they are as large as the other results, and so are roundings of them.
    """
    compiled, graphs = _compiled(function, **options)
    actual, eager = _with_gradients(compiled, inputs), _with_gradients(function, inputs)
    wide = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    exact = _with_gradients(function, wide)
    sizes = [truth.abs().max().item() for truth in exact]
    for ours, theirs, truth, size in zip(actual, eager, exact, sizes, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        least = 16 * torch.finfo(ours.dtype).eps * (size or max(sizes))
        error = (ours.double() - truth).abs().max().item()
        assert error <= max(2 * (theirs.double() - truth).abs().max().item(), least)
    return graphs


def _attention(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


SHAPES = {
    "short": (5, 7, 16),
    "one query": (1, 33, 8),
    "one key": (9, 1, 16),
    "whole blocks": (128, 128, 32),
    "many blocks": (150, 270, 24),
    "narrow heads": (10, 20, 1),
    "odd heads": (17, 40, 37),
    "wide heads": (20, 40, 200),
}


@pytest.mark.fractional
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, *, is_causal: bool) -> None:
    graphs = _check(_attention(is_causal=is_causal), _qkv(*SHAPES[name]))
    forward, backward = graphs
    assert len(forward.kernels) == 1
    assert len(backward.kernels) == 3  # sums of rows, the gradient of queries, those of keys and values


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_dtypes(dtype: torch.dtype, *, is_causal: bool) -> None:
    """The fake kernel of torch 2.11 says that the logsumexp of float64 is float32: there the operator is called."""
    graphs = _check(_attention(is_causal=is_causal), _qkv(70, 90, 40, dtype=dtype), strict=False)
    fake = aten._scaled_dot_product_flash_attention_for_cpu.default(
        *(x.to("meta") for x in _qkv(2, 2, 2, dtype=dtype))
    )[1]
    is_left = dtype == torch.float64 and fake.dtype != dtype
    assert all(bool(graph.fallbacks) == is_left for graph in graphs)


@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_heads_that_share_keys(*, is_causal: bool) -> None:
    _check(_attention(is_causal=is_causal, enable_gqa=True), _qkv(33, 50, 16, heads=6, key_heads=2))


def test_a_scale_of_one_s_own() -> None:
    _check(_attention(scale=0.7), _qkv(20, 30, 16))


@pytest.mark.parametrize("shape", [(20, 30), (1, 30), (20, 1), (2, 1, 20, 30), (1, 2, 1, 30), (2, 2, 20, 30)], ids=str)
def test_masks(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(4)
    is_seen = torch.rand(shape, generator=generator) > 0.3
    added = torch.randn(shape, generator=generator)
    for mask in (is_seen, added):
        _check(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), (*_qkv(20, 30, 16), mask))


def test_rows_without_a_key_are_zero_as_in_eager() -> None:
    mask = torch.ones(20, 30, dtype=torch.bool)
    mask[3] = False
    mask[:, 5:] = False
    inputs = (*_qkv(20, 30, 16), mask)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled, _ = _compiled(function)
    for ours, theirs in zip(_with_gradients(compiled, inputs), _with_gradients(function, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert not compiled(*inputs)[:, :, 3].any()


def test_great_scores_neither_overflow_nor_vanish() -> None:
    q, k, v = (x.detach() for x in _qkv(40, 100, 16))
    for factor in (1e-3, 30.0, 1e4):
        compiled, _ = _compiled(_attention())
        exact = F.scaled_dot_product_attention((q * factor).double(), k.double(), v.double())
        eager = F.scaled_dot_product_attention(q * factor, k, v)
        error = (compiled(q * factor, k, v) - exact).abs().max()
        assert error <= 2 * (eager - exact).abs().max() + 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_where_eager_shows_it(value: float) -> None:
    q, k, v = (x.detach().clone() for x in _qkv(20, 70, 16))
    q[0, 0, 3, 2] = value
    k[1, 0, 50, 1] = value
    v[1, 1, 40, 5] = value
    compiled, _ = _compiled(_attention())
    expected, actual = F.scaled_dot_product_attention(q, k, v), compiled(q, k, v)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_operands_are_read_where_they_are() -> None:
    """Heads side by side in one projection: no copies."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ weight).view(2, 30, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    graphs = _check(function, (_x(2, 30, 8, seed=1), _x(8, 192, seed=2)))
    assert len(graphs[0].kernels) == 2  # the projection, and attention


def test_symbolic_lengths() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k = (value.view(value.shape[0], value.shape[1], 4, 16).transpose(1, 2) for value in (x, y))
        return F.scaled_dot_product_attention(q, k, k.sin(), is_causal=True)

    compiled, graphs = _compiled(function, dynamic=True)
    for batch, queries, keys in ((2, 20, 30), (3, 7, 100), (5, 70, 9)):
        inputs = _x(batch, queries, 64, seed=1), _x(batch, keys, 64, seed=2)
        for ours, theirs in zip(_with_gradients(compiled, inputs), _with_gradients(function, inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 2


def test_the_logsumexp_is_eager_s() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)

    inputs = [x.detach() for x in _qkv(40, 60, 16)]
    (_, ours), (_, theirs) = _compiled(function)[0](*inputs), function(*inputs)
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs)


def test_with_dropout_the_operator_s_own_kernel_is_called() -> None:
    q, k, v = (x.detach() for x in _qkv(10, 10, 16))
    function = make_fx(
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.5)[0], tracing_mode="fake"
    )(q, k, v)
    made = compile_graph(function, (q, k, v), options=TEMPLATES)
    assert made.fallbacks["aten._scaled_dot_product_efficient_attention.default"] == 1


def _of_gpus(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward as graphs hold them on a GPU, with what follows from a mask and whether it is causal."""
    if name == "efficient":

        def forward(q: Any, k: Any, v: Any, mask: Any, is_causal: bool) -> Any:
            return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, is_causal)

        def backward(g: Any, q: Any, k: Any, v: Any, mask: Any, is_causal: bool, out: Any) -> Any:
            return aten._scaled_dot_product_efficient_attention_backward(
                g, q, k, v, mask, out[0], out[1], out[2], out[3], 0.0, [True, True, True, False], is_causal
            )[:3]

        return forward, backward
    if name == "flash":

        def forward(q: Any, k: Any, v: Any, mask: Any, is_causal: bool) -> Any:
            return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)

        def backward(g: Any, q: Any, k: Any, v: Any, mask: Any, is_causal: bool, out: Any) -> Any:
            o, lse, starts, key_starts, most, most_keys, seed, offset, _ = out
            return aten._scaled_dot_product_flash_attention_backward(
                g, q, k, v, o, lse, starts, key_starts, most, most_keys, 0.0, is_causal, seed, offset
            )

        return forward, backward

    def forward(q: Any, k: Any, v: Any, mask: Any, is_causal: bool) -> Any:
        return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, 0.0, is_causal)

    def backward(g: Any, q: Any, k: Any, v: Any, mask: Any, is_causal: bool, out: Any) -> Any:
        o, lse, starts, key_starts, most, most_keys, seed, offset, _ = out
        return aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, o, lse, seed, offset, mask, starts, key_starts, most, most_keys, 0.0, is_causal
        )

    return forward, backward


@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
@pytest.mark.parametrize("name", ["efficient", "flash", "cudnn"])
def test_operators_of_gpus(name: str, *, is_causal: bool) -> None:
    """Their fake kernels take tensors on the CPU, and so does what they are lowered to."""
    forward, backward = _of_gpus(name)
    q, k, v = _qkv(40, 40, 16, dtype=torch.bfloat16)
    mask = None if name == "flash" else _x(2, 2, 40, 40, seed=5, dtype=torch.bfloat16).detach()
    weights = _x(2, 2, 40, 16, seed=6, dtype=torch.bfloat16).detach()

    def function(q: Any, k: Any, v: Any, weights: Any) -> Any:
        made = forward(q, k, v, mask, is_causal)
        return [made[0], *backward(weights, q, k, v, mask, is_causal, made)]

    plain = [x.detach() for x in (q, k, v)]
    traced = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*plain, weights)
    made = compile_graph(traced, (*plain, weights), strict=True, options=TEMPLATES)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    bias = mask
    if is_causal:
        bias = (0 if mask is None else mask) + torch.full((40, 40), -float("inf")).triu(1)
    exact = F.scaled_dot_product_attention(*wide, attn_mask=None if bias is None else bias.double())
    expected = [exact, *torch.autograd.grad(exact, wide, weights.double())]
    for ours, truth in zip(made(*plain, weights), expected, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=2e-2, atol=3e-2)


def test_the_interpreter_gives_the_same() -> None:
    inputs = _qkv(20, 40, 16, heads=4)
    function = _attention(is_causal=True, enable_gqa=True)
    emulated, _ = _compiled(function)
    interpreted, _ = _compiled(function, level=InterpreterLevel())
    for a, b in zip(_with_gradients(emulated, inputs), _with_gradients(interpreted, inputs), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def _printed(dtype: torch.dtype, width: int) -> list[PrintedKernel]:
    x = torch.empty(2, 4, 512, width, dtype=dtype, requires_grad=True)
    compiled, graphs = _compiled(_attention(is_causal=True), level=_Nowhere())
    compiled(x, x, x).backward(x.detach())
    return [made for graph in graphs for made in graph.printed if "DBLOCK" in made.default.constants]


class _Nowhere:
    """A level that runs nothing."""

    def launch(self, *_: Any) -> None:
        return


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernels_compile_without_spills(dtype: torch.dtype, capability: int) -> None:
    printed = _printed(dtype, 64)
    assert len(printed) == 3
    for made in printed:
        assert compile_to_cubin(made.kernel, made.default.constants, capability).spills == 0
