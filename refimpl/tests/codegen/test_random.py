"""Random numbers computed in kernels: the distributions of eager's, one and the same for one seed, in whatever kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import compile_to_cubin
from refimpl.codegen.levels.interpreter import InterpreterLevel
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.schedule import MAX_DRAWS
from refimpl.tests.codegen.checks import compiled_with_graphs

COUNT = 20_000
# A seed is fixed, so that a test that passes goes on passing; a right distribution fails one seed in a thousand.
LEAST_P = 1e-3


def _compiled(
    function: Callable[..., Any], *, random: Any = "philox", **options: Any
) -> tuple[Any, list[CompiledGraph]]:
    return compiled_with_graphs(function, **{"strict": True, "options": CodegenOptions(random=random), **options})


def _drawn(function: Callable[..., Any], *arguments: Any, seed: int = 0, **options: Any) -> Any:
    compiled, _ = _compiled(function, **options)
    torch.manual_seed(seed)
    return compiled(*arguments)


def _p(result: Any) -> float:
    return float(result.pvalue)


def _empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(COUNT, dtype=dtype)


CONTINUOUS: dict[str, tuple[Callable[[], torch.Tensor], Any]] = {
    "rand": (lambda: torch.rand(COUNT), stats.uniform()),
    "rand_like": (lambda: torch.rand_like(_empty()), stats.uniform()),
    "rand in float64": (lambda: torch.rand(COUNT, dtype=torch.float64), stats.uniform()),
    "uniform": (lambda: _empty().uniform_(-2, 3), stats.uniform(-2, 5)),
    "randn": (lambda: torch.randn(COUNT), stats.norm()),
    "randn_like in float64": (lambda: torch.randn_like(_empty(torch.float64)), stats.norm()),
    "randn in bfloat16, seen in its rounding": (
        lambda: (torch.randn(COUNT, dtype=torch.bfloat16).float() + torch.randn(COUNT)), stats.norm(0, math.sqrt(2)),
    ),
    "normal": (lambda: torch.normal(1.0, 2.0, (COUNT,)), stats.norm(1, 2)),
    "normal in place": (lambda: _empty().normal_(-1, 0.5), stats.norm(-1, 0.5)),
    "normal around tensors": (lambda: torch.normal(torch.full((COUNT,), 3.0), 2.0), stats.norm(3, 2)),
    "normal as wide as tensors": (lambda: torch.normal(-3.0, torch.full((COUNT,), 0.5)), stats.norm(-3, 0.5)),
    "normal of two tensors": (lambda: torch.normal(torch.ones(COUNT), torch.full((COUNT,), 4.0)), stats.norm(1, 4)),
    "log_normal": (lambda: _empty().log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5))),
    "exponential": (lambda: _empty().exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy": (lambda: _empty(torch.float64).cauchy_(1.0, 2.0), stats.cauchy(1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_have_the_distribution(name: str) -> None:
    function, distribution = CONTINUOUS[name]
    values = _drawn(function).double().numpy()
    assert _p(stats.kstest(values, distribution.cdf)) > LEAST_P


DISCRETE: dict[str, tuple[Callable[[], torch.Tensor], Any]] = {
    "bernoulli": (lambda: _empty().bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli of integers": (lambda: _empty(torch.int32).bernoulli_(0.8), stats.bernoulli(0.8)),
    "bernoulli of tensors": (lambda: torch.bernoulli(torch.full((COUNT,), 0.25)), stats.bernoulli(0.25)),
    "bernoulli of half types": (lambda: torch.bernoulli(torch.full((COUNT,), 0.125).half()), stats.bernoulli(0.125)),
    "bernoulli by tensors": (lambda: _empty().bernoulli_(torch.full((COUNT,), 0.6)), stats.bernoulli(0.6)),
    "randint": (lambda: torch.randint(7, (COUNT,)), stats.randint(0, 7)),
    "randint from below 0": (lambda: torch.randint(-5, 12, (COUNT,), dtype=torch.int8), stats.randint(-5, 12)),
    "randint_like as floats": (lambda: torch.randint_like(_empty(), 2, 30), stats.randint(2, 30)),
    "float16 has 2048 steps": (
        lambda: (torch.rand(COUNT, dtype=torch.float16).float() * 2048) % 16,
        stats.randint(0, 16),
    ),
    "bfloat16 has 256": (lambda: (torch.rand(COUNT, dtype=torch.bfloat16).float() * 256) % 16, stats.randint(0, 16)),
    "float32 has 2**24": (lambda: (torch.rand(COUNT) * 2**24) % 16, stats.randint(0, 16)),
    "float64 has 2**53": (lambda: (torch.rand(COUNT, dtype=torch.float64) * 2**53) % 16, stats.randint(0, 16)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_choices_have_the_distribution(name: str) -> None:
    function, distribution = DISCRETE[name]
    values, counts = _drawn(function).double().unique(return_counts=True)
    expected = distribution.pmf(values.numpy()) * COUNT
    assert math.isclose(expected.sum(), COUNT, rel_tol=1e-9)  # every value there should be, and no other
    assert _p(stats.chisquare(counts.numpy(), expected)) > LEAST_P


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_uniform_numbers_are_below_one_and_of_the_dtype(dtype: torch.dtype) -> None:
    steps = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53}[dtype]
    values = _drawn(lambda: torch.rand(COUNT, dtype=dtype))
    assert values.dtype == dtype
    wide = values.double()
    assert wide.min() >= 0
    assert wide.max() < 1
    assert torch.equal(wide * steps, (wide * steps).floor())
    if steps > 2**20:
        assert values.unique().numel() > 0.99 * COUNT
    ranged = _drawn(lambda: torch.empty(COUNT, dtype=dtype).uniform_(3, 3.0625))
    assert ranged.max() < 3.0625
    assert ranged.min() >= 3


def test_the_seed_decides() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.rand_like(x), F.dropout(x, 0.5)

    compiled, _ = _compiled(function)
    x = torch.ones(64)
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    again = compiled(x)
    torch.manual_seed(2)
    other = compiled(x)
    with torch.random.fork_rng():
        inside = compiled(x)
    outside = compiled(x)
    for position in range(2):
        assert torch.equal(first[position], again[position])
        assert torch.equal(inside[position], outside[position])
        assert not torch.equal(first[position], second[position])
        assert not torch.equal(first[position], other[position])


def test_operators_of_one_graph_are_independent() -> None:
    def function() -> Any:
        return (
            F.dropout(torch.ones(COUNT), 0.5),
            F.dropout(torch.ones(COUNT), 0.5),
            torch.randn(COUNT),
            torch.randn(COUNT),
        )

    first, second, z, w = _drawn(function)
    table = torch.histogramdd(torch.stack([first, second], 1), bins=[2, 2]).hist
    assert _p(stats.chi2_contingency(table.numpy(), correction=False)) > LEAST_P
    assert _p(stats.pearsonr(z.numpy(), w.numpy())) > LEAST_P
    assert _p(stats.pearsonr(z[1:].numpy(), z[:-1].numpy())) > LEAST_P


def test_numbers_follow_from_the_place_alone() -> None:
    """They do not depend on blocks, fusion, layout, dimensions, or how often a value is computed."""

    def plain() -> Any:
        return torch.rand(6, 700)

    def fused() -> Any:
        x = torch.rand(6, 700)
        padded = F.pad(x, (1, 1), value=-1.0)
        return x, x.sum(1), x.t().contiguous(), padded, (x - x.mean(1, keepdim=True)).softmax(1), x[1:, ::3] + 0

    expected = _drawn(plain)
    x, total, columns, padded, rows, part = _drawn(fused)
    assert torch.equal(x, expected)
    torch.testing.assert_close(total, expected.sum(1))
    assert torch.equal(columns, expected.t())
    assert torch.equal(padded, F.pad(expected, (1, 1), value=-1.0))
    torch.testing.assert_close(rows, (expected - expected.mean(1, keepdim=True)).softmax(1))
    assert torch.equal(part, expected[1:, ::3])
    permuted = torch.empty(700, 6).t()
    assert torch.equal(_drawn(torch.rand_like, permuted), expected)
    assert torch.equal(_drawn(lambda: torch.rand(4200)).view(6, 700), expected)


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_the_backward_has_the_mask_of_the_forward(p: float) -> None:
    compiled, graphs = _compiled(lambda x: F.dropout(F.dropout(x * 2, p).sin(), p))
    x = torch.linspace(0.1, 1, 500, requires_grad=True)
    torch.manual_seed(0)
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad == 0, y == 0)
    share = (y != 0).double().mean().item()
    assert abs(share - (1 - p) ** 2) < (0.1 if 0 < p < 1 else 1e-12)
    assert not any("_words" in kernel.source for kernel in graphs[1].kernels)  # it was saved
    scale = 0.0 if p == 1 else 1 / (1 - p)
    expected = torch.where(y != 0, scale * (2 * x * scale).sin(), 0.0)
    torch.testing.assert_close(y, expected.detach())


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_native_dropout(p: float) -> None:
    """What dropout is on a GPU."""
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
    y, mask = _drawn(lambda x: torch.native_dropout(x, p, True), x)
    assert mask.dtype == torch.bool
    assert abs(mask.double().mean().item() - (1 - p)) < 0.01 * (0 < p < 1) + 1e-12
    torch.testing.assert_close(y, x * mask * (0.0 if p == 1 else 1 / (1 - p)))


def test_symbolic_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        return (
            torch.rand(x.shape[0], x.shape[1] + 1),
            torch.randint(0, x.shape[1] + 1, (x.shape[0],)),
            F.dropout(x, 0.5),
        )

    compiled, graphs = _compiled(function, dynamic=True)
    for rows, columns in ((3, 700), (9, 50)):
        torch.manual_seed(0)
        u, places, y = compiled(torch.ones(rows, columns))
        assert u.shape == (rows, columns + 1)
        assert torch.equal(u, _drawn(lambda rows=rows, columns=columns: torch.rand(rows, columns + 1)))
        assert places.max() <= columns
        assert 0.4 < (y != 0).double().mean() < 0.6
    assert len(graphs) == 1


def _many() -> Any:
    return (
        torch.rand(50), torch.randn(50), torch.rand(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64),
        torch.randint(-3, 10, (50,)), torch.rand(50, dtype=torch.float16), torch.rand(50, dtype=torch.bfloat16),
        torch.bernoulli(torch.full((50,), 0.5)), torch.empty(50).exponential_(),
    )  # fmt: skip


def test_the_interpreter_draws_the_same() -> None:
    for a, b in zip(_drawn(_many), _drawn(_many, level=InterpreterLevel()), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int) -> None:
    compiled, graphs = _compiled(_many)
    compiled()
    for kernel in graphs[0].kernels:
        constants = {parameter.name: 64 for parameter in kernel.constants}
        made = compile_to_cubin(kernel, constants, capability)
        assert made.spills == 0


def test_a_kernel_draws_few_numbers() -> None:
    """What has nothing in common but the seed is not put together: registers would not do."""
    compiled, graphs = _compiled(lambda x: [F.dropout(x + at, 0.5) * x for at in range(6)])
    compiled(torch.ones(64))
    drawn = [len(set(re.findall(r"_integer\(.*?\)$", kernel.source, re.M))) for kernel in graphs[0].kernels]
    assert sum(drawn) >= 6
    assert max(drawn) <= MAX_DRAWS


def test_what_eager_refuses_is_refused() -> None:
    with pytest.raises(RuntimeError, match="probability"):
        _drawn(torch.bernoulli, torch.tensor([0.5, 1.5]))
    with pytest.raises(RuntimeError, match="deviation"):
        _drawn(torch.normal, torch.zeros(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(RuntimeError, match=r"p=1\.5"):
        _drawn(lambda x: torch.bernoulli(x, 1.5), torch.zeros(2), strict=False)


def test_numbers_are_eager_s_unless_asked_for() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.5), torch.rand(3), torch.randperm(4)

    x = torch.ones(8)
    torch.manual_seed(3)
    expected = function(x)
    for a, b in zip(expected, _drawn(function, x, seed=3, random="eager", strict=False), strict=True):
        assert torch.equal(a, b)


def test_a_generator_of_the_program_s_own_stays_eager_s() -> None:
    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()
    expected = torch.rand(5, generator=generator)
    generator.set_state(state)
    actual = _drawn(lambda: torch.rand(5, generator=generator), strict=False)
    assert torch.equal(actual, expected)
