"""Attention that a program writes in pieces becomes kernels without scores in memory, and gives what the pieces give; what only
looks like it is left alone, and gives the same too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl import make_fx
from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.levels.cubin import compile_to_cubin
from refimpl.codegen.levels.interpreter import InterpreterLevel
from refimpl.codegen.lowering.regions import find_regions
from refimpl.pipeline import compile_aot
from refimpl.tests.codegen.region_checks import Backend, compiled_with, numbers, qkv, results_of

Function = Callable[..., torch.Tensor]


def _mask(*shape: int) -> torch.Tensor:
    made = torch.rand(shape, generator=torch.Generator().manual_seed(4)) > 0.3
    made[..., 0] = True
    return made


def _agree(
    function: Function, inputs: Sequence[torch.Tensor], *, wanted: int = 0, dynamic: bool = False, **options: Any
) -> Backend:
    """Eager's metadata, and no further from float64 than twice what eager is, or a few roundings."""
    compiled, backend = compiled_with(function, dynamic=dynamic, **options)
    actual, eager = results_of(compiled, inputs, wanted), results_of(function, inputs, wanted)
    exact = results_of(function, [x.double() if x.is_floating_point() else x for x in inputs], wanted)
    for ours, theirs, truth in zip(actual, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours.isnan(), theirs.isnan())
        least = 16 * torch.finfo(ours.dtype).eps * truth.nan_to_num().abs().max().item()
        error = (ours.double() - truth).nan_to_num().abs().max().item()
        assert error <= max(2 * (theirs.double() - truth).nan_to_num().abs().max().item(), least)
    return backend


# ---- ways to write it


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def _scaled_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.dropout(((q * 0.25) @ k.mT).softmax(3), 0.5, train=False) @ v


def _scaled_by_a_tensor(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2))
    return torch.matmul(F.softmax(scores / torch.full([], 4.0, dtype=scores.dtype), dim=-1), v)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT * 0.25
    is_seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.where(is_seen, scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


def _filled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * 0.25).masked_fill(~mask, float("-inf")).softmax(-1) @ v


def _added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention as models of transformers write it: a softmax in float32, whose result is converted back."""
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)
    scores = q @ k.transpose(2, 3) * 0.25 + bias
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return (weights @ v).transpose(1, 2).contiguous()


def _scaled_after(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A bias before the scale, and a cap."""
    scores = torch.tanh((q @ k.mT + mask.to(q.dtype)) / 4.0) * 3.0
    return scores.softmax(-1) @ v


def _batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    bias = torch.arange(k.shape[1], dtype=q.dtype) * -0.1
    scores = torch.baddbmm(bias.expand(q.shape[0], 1, -1), q, k.mT, beta=0.5, alpha=0.3)
    return torch.bmm(scores.softmax(-1), v)


def _shared_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x[:, :1, None].expand(-1, -1, 3, -1, -1).flatten(1, 2) for x in (k, v))
    return (q @ k.mT * 0.25).softmax(-1) @ v


def _einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def _matrices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x[0, 0] for x in (q, k, v))
    return (q @ k.T).softmax(-1) @ v


def _in_one_projection(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x = torch.cat([x.transpose(1, 2).flatten(2)[:, :24] for x in (q, k, v)], -1)
    q, k, v = (part.view(2, 24, 3, 16).transpose(1, 2) for part in x.split(48, -1))
    return ((q @ k.mT) * 0.25).softmax(-1) @ v


WITHOUT_MASKS = (_plain, _scaled_queries, _scaled_by_a_tensor, _causal, _batched, _shared_keys, _einsum, _matrices)
WITH_MASKS = (_filled, _added, _scaled_after)


@pytest.mark.parametrize("function", [*WITHOUT_MASKS, _in_one_projection], ids=lambda f: f.__name__)
def test_ways_to_write_it(function: Function) -> None:
    assert _agree(function, qkv()).regions == [{"forward": 1}]
    assert _agree(function, qkv(), wanted=3).regions == [{"forward": 1}, {"gradients": 1}]


@pytest.mark.fractional
@pytest.mark.parametrize("shape", [(24, 40), (2, 1, 1, 40), (2, 1, 24, 40), (1, 3, 24, 1), (2, 3, 24, 40)], ids=str)
@pytest.mark.parametrize("function", WITH_MASKS, ids=lambda f: f.__name__)
def test_masks(function: Function, shape: tuple[int, ...]) -> None:
    inputs = [*qkv(), _mask(*shape)]
    assert _agree(function, inputs).regions == [{"forward": 1}]
    assert _agree(function, inputs, wanted=3).regions == [{"forward": 1}, {"gradients": 1}]


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("function", [_plain, _causal, _added], ids=lambda f: f.__name__)
def test_dtypes(function: Function, dtype: torch.dtype) -> None:
    inputs = [*qkv(dtype=dtype), *([_mask(2, 1, 24, 40)] if function is _added else [])]
    backend = _agree(function, inputs, wanted=3)
    assert backend.regions == [{"forward": 1}, {"gradients": 1}]


def test_a_softmax_that_is_narrower_than_its_product_is_left() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1, dtype=torch.float32).to(v.dtype) @ v

    compiled, backend = compiled_with(function)
    inputs = qkv(dtype=torch.float64)
    torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-6, atol=1e-6)
    assert backend.regions == [{"left: a softmax of torch.float32 for a product of torch.float64": 1}]


SHAPES = {
    "short": (8, 9, 16),
    "whole blocks": (128, 128, 32),
    "many blocks": (150, 270, 24),
    "narrow heads": (10, 20, 1),
    "odd heads": (17, 40, 37),
    "wide heads": (20, 40, 200),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    backend = _agree(_causal, qkv(*SHAPES[name]), wanted=3)
    assert backend.regions == [{"forward": 1}, {"gradients": 1}]
    forward, backward = backend.graphs
    assert len(forward.printed) == 1
    assert len(backward.printed) == 3  # sums of rows, the gradient of queries, those of keys and values


@pytest.mark.parametrize("wanted", [1, 2])
def test_gradients_of_some_inputs(wanted: int) -> None:
    assert _agree(_plain, qkv(), wanted=wanted).regions == [{"forward": 1}, {"gradients": 1}]


def test_values_of_another_width() -> None:
    q, k, _ = qkv()
    assert _agree(_plain, [q, k, numbers(2, 3, 40, 24, seed=3)], wanted=3).regions == [{"forward": 1}, {"gradients": 1}]


def test_symbolic_sizes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k = (value.view(value.shape[0], value.shape[1], 4, 16).transpose(1, 2) for value in (x, y))
        return (q @ k.mT * 0.25).softmax(-1) @ k.sin()

    compiled, backend = compiled_with(function, dynamic=True)
    for batch, queries, keys in ((2, 20, 30), (3, 9, 100), (5, 70, 12)):
        inputs = numbers(batch, queries, 64, seed=1), numbers(batch, keys, 64, seed=2)
        for ours, theirs in zip(results_of(compiled, inputs, 2), results_of(function, inputs, 2), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert sorted(map(str, backend.regions)) == ["{'forward': 1}", "{'gradients': 1}"]


# ---- special values


def test_rows_without_a_key_are_no_numbers_as_in_eager() -> None:
    mask = _mask(24, 40)
    mask[3] = False
    mask[:, 30:] = False
    for function in (_filled, _added):
        backend = _agree(function, [*qkv(), mask], wanted=3)
        assert backend.regions == [{"forward": 1}, {"gradients": 1}]
    compiled, _ = compiled_with(_filled)
    assert compiled(*qkv(), mask)[:, :, 3].isnan().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_where_eager_shows_it(value: float) -> None:
    q, k, v = qkv()
    q[0, 0, 3, 2] = value
    k[1, 0, 25, 1] = value
    v[1, 1, 39, 5] = value
    _agree(_plain, [q, k, v], wanted=3)


def test_great_scores_neither_overflow_nor_vanish() -> None:
    q, k, v = qkv(40, 100)
    for factor in (1e-3, 30.0, 1e4):
        _agree(_plain, [q * factor, k, v], wanted=3)


# ---- what is left alone


def _other_dim(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-2) @ v


def _transposed_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).mT.softmax(-1).mT @ v


def _rows_elsewhere(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scores of the rows are read in another order."""
    return (q @ k.mT).flip(2).softmax(-1) @ v


def _reordered_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT).transpose(0, 1).reshape(2, 3, *q.shape[2:3], -1)).softmax(-1) @ v


def _mask_of_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    return scores.masked_fill(scores < scores.mean(-1, keepdim=True), float("-inf")).softmax(-1) @ v


def _scaled_weights_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT).softmax(-1) * factor) @ v


@pytest.mark.parametrize("shape", [(24, 1), (40,), (2, 3, 24, 40)], ids=str)
def test_weights_have_one_factor(shape: tuple[int, ...]) -> None:
    factor = numbers(*shape, seed=5)
    assert _agree(_scaled_weights_of, [*qkv(), factor], wanted=3).regions == [{"forward": 1}, {"gradients": 1}]
    assert not any("forward" in regions for regions in _agree(_scaled_weights_of, [*qkv(), factor], wanted=4).regions)


def test_an_infinite_factor_does_not_reach_beyond_the_keys() -> None:
    q, k, v = qkv()
    factor = torch.ones(24, 1)
    factor[3] = math.inf
    assert _agree(_scaled_weights_of, [q, k, v.abs(), factor]).regions == [{"forward": 1}]
    assert _scaled_weights_of(q, k, v.abs(), factor)[:, :, 3].isinf().all()


def _scaled_before_a_conversion(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, factor: torch.Tensor, scale: float = 1.0
) -> torch.Tensor:
    return ((q @ k.mT).softmax(-1, dtype=torch.float32) * (factor.float() * scale)).to(v.dtype) @ v


def test_a_factor_is_no_larger_than_what_its_product_is_converted_to() -> None:
    """Where exponentials times the factor would overflow, weights times the factor do not."""
    q, k, v = qkv(dtype=torch.float16)
    factor, reason = torch.full((24, 1), 1e5), "left: weights whose product with a factor may be beyond"
    regions = _agree(_scaled_before_a_conversion, [q / 64, k, v, factor]).regions
    assert [text.startswith(reason) for text in regions[0]] == [True]
    assert _scaled_before_a_conversion(q / 64, k, v, factor).isfinite().all()
    compiled, backend = compiled_with(_scaled_before_a_conversion)
    for scale in (2.0, 1e5):
        inputs = (q / 64, k, v, _mask(24, 40), scale)
        torch.testing.assert_close(
            compiled(*inputs), _scaled_before_a_conversion(*inputs), rtol=1e-2, atol=1e-2 * scale
        )
    assert [[text == "forward" for text in regions] for regions in backend.regions] == [[True], [False]]


def _total_as_a_factor(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    total = exponentials.sum(-1, keepdim=True)
    return (exponentials / total * total) @ v


def _two_factors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT).softmax(-1) * v.sum() * v.mean()) @ v


def _square_of_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT).softmax(-1)
    return (weights * weights) @ v


def _weights_that_are_used_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights.sum(-1, keepdim=True) * weights.amax()


def _scaled_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT).softmax(-1) * 2.0) @ v


def _keys_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT + k[..., :24, :] @ k.mT).softmax(-1) @ v


LEFT = (
    _other_dim,
    _transposed_scores,
    _rows_elsewhere,
    _reordered_heads,
    _mask_of_scores,
    _weights_that_are_used_twice,
    _scaled_weights,
    _total_as_a_factor,
    _two_factors,
    _square_of_weights,
    _keys_twice,
)


@pytest.mark.fractional
@pytest.mark.parametrize("wanted", [0, 3])
@pytest.mark.parametrize("function", LEFT, ids=lambda f: f.__name__)
def test_what_is_left_alone(function: Function, wanted: int) -> None:
    backend = _agree(function, qkv(), wanted=wanted)
    assert not any("forward" in regions for regions in backend.regions)


def test_scores_per_row_may_be_scaled_by_a_tensor() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT * scale).softmax(-1) @ v

    for shape in ((24, 1), (3, 1, 1), (40,), (2, 3, 24, 40)):
        backend = _agree(function, [*qkv(), numbers(*shape, seed=5)], wanted=3)
        assert backend.regions == [{"forward": 1}, {"gradients": 1}]
        _agree(function, [*qkv(), numbers(*shape, seed=5)], wanted=4)  # the gradient of the scale is made of scores


def _written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A softmax of the program's own."""
    scores = q @ k.mT
    greatest = scores.amax(-1, keepdim=True)
    exponentials = (scores - greatest).exp()
    total = exponentials.sum(-1, keepdim=True)
    return (exponentials / total) @ v, greatest, total


def test_what_stays_of_a_softmax_may_be_returned() -> None:
    q, k, v = qkv()
    q[0, 0, 3, 2] = float("nan")
    q[0, 1, 3] = float("inf")
    compiled, backend = compiled_with(_written_out)
    for ours, theirs in zip(compiled(q, k, v), _written_out(q, k, v), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert backend.regions == [{"forward": 1}]


def test_values_that_depend_on_the_scores_are_no_operand() -> None:
    def circle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT
        greatest = scores.amax(-1, keepdim=True)
        exponentials = (scores - greatest).exp()
        return (exponentials / exponentials.sum(-1, keepdim=True)) @ (v * greatest.mean())

    reason = "left: no point of the graph where all of it can be computed"
    assert _agree(circle, qkv()).regions == [{reason: 1}]


def test_weights_as_integers_are_left_alone() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q * 60 @ k.mT).softmax(-1).to(torch.int32).to(v.dtype) @ v

    compiled, backend = compiled_with(function)
    expected = function(*qkv())
    assert expected.any()
    torch.testing.assert_close(compiled(*qkv()), expected)
    assert backend.regions == [{"left: weights that are computed with": 1}]


def test_random_numbers_are_drawn_in_the_graph_s_order() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT
        greatest = scores.amax(-1, keepdim=True)
        exponentials = (scores - greatest).exp()
        first = torch.bernoulli(greatest.sigmoid())
        second = torch.rand_like(v)
        weights = exponentials / exponentials.sum(-1, keepdim=True)
        return (weights @ v) * first + second.mean()

    compiled, backend = compiled_with(function)
    found = []
    for one in (compiled, function):
        torch.manual_seed(0)
        found.append(one(*qkv()))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    assert backend.regions == [{"forward": 1}]


def test_copies_in_another_order_are_part_of_it() -> None:
    """Models have such copies around attention: heads are put side by side again, and gradients are taken apart."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(2, 24, 3, 16).transpose(1, 2) for part in (x @ weight).split(48, -1))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, 24, 48)

    backend = _agree(function, [numbers(2, 24, 20, seed=1), numbers(20, 144, seed=2) / 4], wanted=2)
    forward, backward = backend.graphs
    assert len(forward.printed) == 2
    assert len(backward.printed) == 6  # three, the gradient of the parts together, and two products with it
    assert len(_agree(_added, [*qkv(), _mask(24, 40)]).graphs[0].printed) == 1


def test_a_returned_weight_is_computed() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    compiled, backend = compiled_with(function)
    for ours, theirs in zip(compiled(*qkv()), function(*qkv()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert backend.regions == [{"left: scores or weights are used elsewhere": 1}]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((4, 40, 16), "few rows or columns"), ((24, 40, 300), "matrices 300 wide")],
    ids=["few rows", "wide heads"],
)
def test_reasons(shape: tuple[int, int, int], reason: str) -> None:
    backend = _agree(_plain, qkv(*shape), wanted=3)
    assert (
        backend.regions[0] == {f"left: {reason}": 1}
        or "left: scores or weights are used elsewhere" in backend.regions[0]
    )
    assert _agree(_plain, qkv(*shape)).regions == [{f"left: {reason}": 1}]


def test_options() -> None:
    assert _agree(_plain, qkv(), wanted=3, fuse_attention=False).regions == [{}, {}]
    reason = "left: products are calls, by option"
    assert _agree(_plain, qkv(), contractions="extern").regions == [{reason: 1}]


def test_a_part_that_depends_on_a_result_is_no_region_of_its_own() -> None:
    """Two layers are two regions, in the order of what they compute."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _plain(_plain(q, k, v), k, v)

    backend = _agree(function, qkv(), wanted=3)
    assert backend.regions == [{"forward": 2}, {"gradients": 2}]


def test_regions_of_a_graph_without_attention() -> None:
    graph = make_fx(lambda x: (x @ x).softmax(-1).sin())(torch.randn(9, 9)).graph
    assert find_regions(graph).found == ()


# ---- what is saved, and the other levels


@pytest.mark.parametrize("dims", [[0], [], None], ids=["one", "none", "all"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=["scalar", "row"])
def test_sums_without_rows_are_no_attention(shape: tuple[int, ...], dims: list[int] | None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.sum.dim_IntList((x * x).exp(), dims, True)

    compiled, backend = compiled_with(function)
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(x), function(x))
    assert backend.regions == [{}]


def test_no_scores_are_saved() -> None:
    seen: list[tuple[int, ...]] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        outputs: Any = graph_module.graph.output_node().args[0]
        seen.extend(tuple(item.meta["val"].shape) for item in outputs if isinstance(item, torch.fx.Node))
        assert not any("recompute" in node.meta for node in graph_module.graph.nodes)
        return graph_module

    compiled = compile_aot(
        _causal, backend=backend, partition=partition_for_kernels, decompositions=codegen_decompositions()
    )
    results_of(compiled, qkv(), 3)
    assert not any(math.prod(shape) >= 2 * 3 * 24 * 40 for shape in seen)
    assert (2, 3, 24, 1) in seen  # what stays of the softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_interpreter(dtype: torch.dtype) -> None:
    inputs = [*qkv(20, 33, dtype=dtype), _mask(2, 1, 20, 33)]
    backend = _agree(_added, inputs, wanted=3, level=InterpreterLevel())
    assert backend.regions == [{"forward": 1}, {"gradients": 1}]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_cubins(dtype: torch.dtype, capability: int) -> None:
    backend = _agree(_causal, qkv(130, 150, 64, dtype=dtype), wanted=3)
    for graph in backend.graphs:
        for printed in graph.printed:
            assert compile_to_cubin(printed.kernel, printed.default.constants, capability).spills <= 1024
