"""Programs as Triton kernels on the emulator give what eager gives, forward and backward, in as few kernels as they should."""

from __future__ import annotations

import doctest
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from refimpl.backends.triton import triton
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Kernel, LevelUnavailable
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.by_device import LevelByDevice
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot
from refimpl.tests.codegen.checks import Compiler, check, check_agreement, compiled_with_graphs, numbers


def _check(
    function: Callable[..., Any],
    *arguments: torch.Tensor,
    tolerance: float = 1e-5,
    strict: bool = True,
    dynamic: bool = False,
) -> list[CompiledGraph]:
    compiled, graphs = _compiled(function, strict=strict, dynamic=dynamic)
    check_agreement(function, compiled, arguments, tolerance)
    return graphs


_compiled = functools.partial(compiled_with_graphs, strict=True)
_x = functools.partial(numbers, grad=True)


def _norm_chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x), (weight.shape[0],), weight).softmax(-1)


def test_a_chain_of_norm_and_softmax_is_one_kernel() -> None:
    graphs = _check(_norm_chain, _x(5, 48), _x(48, seed=1))
    forward, backward = graphs
    assert len(forward.kernels) == 1
    assert len(backward.kernels) <= 2
    assert not forward.fallbacks


def test_a_long_row_is_read_in_blocks() -> None:
    graphs = _check(_norm_chain, _x(3, 3001), _x(3001, seed=1), tolerance=1e-4)
    (source,) = [kernel.source for kernel in graphs[0].kernels]
    assert source.count("for rstart in range(0, 3001, RBLOCK)") == 5  # mean, variance, maximum, sum, then the result
    assert source.count("tl.sum(") == 3


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "cat, flip, slice": (lambda x: torch.cat([x, x * 2], 1).t().contiguous().flip(0)[:, 1:].sum(0), (5, 48)),
    "maximum and where it is": (lambda x: (*x.max(1), x.argmin(), x.argmax(0)), (5, 48)),
    "variance along columns": (lambda x: (x.var(0), x.std((0, 1))), (5, 48)),
    "pad and reshape": (lambda x: F.pad(x, (1, 2), value=3.0).view(-1) * 2, (5, 48)),
    "reshape and permute": (lambda x: x.reshape(-1, 6, 8).permute(2, 0, 1).sum(1), (5, 48)),
    "softmax of what is expanded": (lambda x: x.expand(10, 5, 48).reshape(5, -1).softmax(-1), (5, 48)),
    "sums of two sizes": (lambda x: (x.sum(), x.mean(0, keepdim=True) + x), (5, 48)),
    "whole sum and back": (lambda x: x - x.mean() + x.amax(), (7, 13)),
    "columns to rows": (lambda x: x.softmax(0).sum(1), (37, 9)),
    "any, all, prod": (lambda x: ((x > 0).any(1), (x > -9).all(0), x[:, :3].prod(1)), (5, 8)),
    "nothing to add": (lambda x: (x[:, :0].sum(1), x[:0] * 2, x[:0].sum(0)), (4, 6)),
    "one value": (lambda x: (x.sum() * 2).view(1, 1) + x[:1, :1], (1, 1)),
    "roll": (lambda x: torch.roll(x, 3, 1) * x, (4, 10)),
    "group norm": (lambda x: F.group_norm(x.view(2, 4, 32), 2), (8, 32)),
    "running sums": (lambda x: (x.cumsum(1).relu() - x.sum(1, keepdim=True), x.cumsum(0).cumprod(1)[:, :4]), (5, 37)),
    "product of all": (lambda x: x.view(5, 5, 5).prod(), (25, 5)),  # its gradient divides places counted from the end
    "rows from the end": (lambda x: x.flatten().flip(0).view(4, 15)[:, 1:] * 2, (6, 10)),
    "diagonal": (lambda x: x.diagonal(1).relu() + x[0, 1:6], (6, 6)),
    "unfold": (lambda x: x.unfold(1, 4, 2).sum(-1), (3, 12)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x.view(1, 4, 3, 4), 2), (6, 8)),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float16])
def test_long_running_sums_are_made_in_parts(dtype: torch.dtype) -> None:
    """One sum has a whole number of parts, one has not. Products are made at once, since parts could overflow."""
    x = (torch.arange(2 * 8192).remainder(13) - 6).to(dtype).view(2, 8192)
    compiler = check(lambda x: (x.cumsum(1) * 2, x[:, :5001].cumsum(-1), x.view(-1, 2).cumsum(0)), x)
    assert sum(kernel.source.count("tl.cumsum(") for graph in compiler.graphs for kernel in graph.kernels) >= 4
    (graph,) = check(lambda x: x.sign().cumprod(1), x, strict=False).graphs
    assert list(graph.fallbacks) == ["aten.cumprod.default"]


@pytest.mark.fractional
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "with gradients"])
def test_programs(name: str, *, grad: bool) -> None:
    function, shape = PROGRAMS[name]
    _check(function, _x(*shape, grad=grad), strict=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_operator_rounds_to_its_dtype(dtype: torch.dtype) -> None:
    """Otherwise a value would not be equal to the same value rounded, as it is in eager."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        product = x * y
        return product + x, (product * 3 == (x * y) * 3), product / y, (x + 1e-3) - x

    x, y = _x(64, dtype=dtype, grad=False), _x(64, seed=1, dtype=dtype, grad=False)
    compiled, _ = _compiled(function)
    for a, b in zip(function(x, y), compiled(x, y), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0)


def test_integers_and_truth_values() -> None:
    def function(x: torch.Tensor, flags: torch.Tensor) -> Any:
        return (
            x.sum(), x // 3, x % 5, torch.div(x, 4, rounding_mode="trunc"), x / 2, (x > 2) & flags, ~flags, x.bitwise_not(),
            x.float().mean(), torch.where(flags, x, -x), x.clamp(-3, 3), (x * flags).amax(1), flags.sum(0), x.to(torch.uint8),
        )  # fmt: skip

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, (4, 6), generator=generator)
    _check(function, x, torch.rand(4, 6, generator=generator) > 0.5, strict=False)


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.5, 1.0])
def test_the_greatest_and_the_least_truth_value_and_the_first_place_of_it(chance: float) -> None:
    for shape in ((5, 7), (3, 5000), (1, 1)):
        flags = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < chance
        _check(lambda flags: (*flags.max(-1), *flags.min(0), *flags.max(0, keepdim=True), *(~flags).min(1)), flags)


def test_special_values() -> None:
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 3e38, -1.5])

    def function(x: torch.Tensor) -> Any:
        rows = torch.stack([x, x.flip(0), torch.zeros_like(x)])
        return (
            -x, x.abs(), x.sign(), x.maximum(x.flip(0)), x.relu(), rows.amax(1), rows.amin(1), rows.argmax(1), rows.max(1),
            rows[:, 1:].argmin(1), x.isnan(), x.isinf(), torch.floor_divide(x, 0.7), x.remainder(-0.3), x.fmod(2.0), 1 / x,
            x.clamp(-1, 1), x.round(), x.trunc(), torch.copysign(torch.ones_like(x), x),
        )  # fmt: skip

    compiled, _ = _compiled(function, strict=False)
    for a, b in zip(pytree.tree_leaves(function(values)), pytree.tree_leaves(compiled(values)), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
        if a.is_floating_point():
            assert torch.equal(b.signbit()[~a.isnan()], a.signbit()[~a.isnan()])


def test_places_that_are_read_from_tensors() -> None:
    def function(x: torch.Tensor, places: torch.Tensor) -> Any:
        return (
            x[places],
            x.gather(1, places.abs().expand(5, 3)),
            F.embedding(places.abs(), x),
            x[:, places],
            x.index_select(1, places.abs()),
        )

    _check(function, _x(5, 6, grad=False), torch.tensor([0, -1, 2]))


@pytest.mark.parametrize("place", [5, -6])
def test_places_out_of_bounds_are_an_error(place: int) -> None:
    """This holds even if the memory has an element there: the tensor is 5 rows of a larger one."""
    compiled, _ = _compiled(lambda x, places: x[places] + 1)
    rows = _x(9, 6, grad=False)[2:7]
    with pytest.raises(IndexError, match="index out of bounds"):
        compiled(rows, torch.tensor([0, place]))


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = _norm_chain(x, weight)
        halves = x.reshape(x.shape[0], 2, -1).amax(1)
        return torch.cat([y, x], 1).t().contiguous(), y.sum(0), x.view(-1)[1:], F.pad(x, (1, 2)), halves, x.flip(0)

    compiled, graphs = _compiled(function, dynamic=True)
    for rows, columns in ((5, 48), (7, 48), (3, 64), (2, 1200)):
        check_agreement(function, compiled, (_x(rows, columns), _x(columns, seed=1)), 1e-4)
    assert len(graphs) == 2


def test_a_size_that_guards_say_is_one_is_written_in_terms_of_an_unknown_one() -> None:
    """The backward is given a tensor of s0 // 4 channels, which are one, and not s0; its result has 4 * (s0 // 4) rows."""
    _check(lambda x: F.fold(x, (4, 4), 2), _x(4, 9), dynamic=True)


def test_tensors_are_laid_out_as_the_graph_says() -> None:
    """Inputs and saved results in other memory formats, and gradients with strides of their own."""

    def function(x: torch.Tensor) -> Any:
        return x.sigmoid() * x, x.mean((2, 3))

    x = _x(2, 3, 4, 5, grad=False).contiguous(memory_format=torch.channels_last).requires_grad_()
    _check(function, x)
    _check(function, _x(4, 3, 2, 5, grad=False).transpose(0, 2).requires_grad_())

    columns = torch.arange(6.0).reshape(1, 3, 2).transpose(1, 2)
    _check(lambda x: F.avg_pool1d(x, 2, ceil_mode=True), columns, strict=False)

    compiled, _ = _compiled(torch.sigmoid)
    leaf = _x(3, 4)
    compiled(leaf).backward(torch.ones(4, 3).t() * torch.arange(3.0)[:, None])
    expected = torch.autograd.grad(leaf.sigmoid(), leaf, torch.ones(4, 3).t() * torch.arange(3.0)[:, None])
    torch.testing.assert_close(leaf.grad, expected[0])


def test_what_has_no_rule_is_called_and_counted() -> None:
    graphs = _check(lambda x, y: (x * y).relu().sort(1)[0] + 1, _x(4, 5), _x(4, 5, seed=1), strict=False)
    assert graphs[0].fallbacks["aten.sort.default"] == 1
    assert sum(graphs[0].lowered.values()) >= 2


def test_in_strict_mode_it_is_an_error_that_names_it() -> None:
    compiled, _ = _compiled(lambda x: x.sort(1)[0])
    with pytest.raises(UnsupportedByRefimpl, match=r"aten\.sort\.default in a kernel: no rule"):
        compiled(_x(3, 4, grad=False))


def test_and_the_line_of_the_program_where_it_was_recorded() -> None:
    def sorts(x: torch.Tensor) -> torch.Tensor:
        return x.sort(1)[0]

    compiled = compile_aot(sorts, backend=Compiler(), decompositions=codegen_decompositions(), record_stack_traces=True)
    with pytest.raises(
        UnsupportedByRefimpl, match=rf"called at: File .*{Path(__file__).name}.* in sorts: return x.sort"
    ):
        compiled(_x(3, 4, grad=False))


def test_the_same_program_prints_the_same_kernels() -> None:
    """Whatever was compiled before: kernels are kept by their text."""
    sources = []
    for _ in range(2):
        graphs = _check(_norm_chain, _x(5, 48), _x(48, seed=1))
        sources.append([kernel.source for graph in graphs for kernel in graph.kernels])
    assert sources[0] == sources[1]
    assert sources[0]


def test_numbers_are_those_of_the_dtype() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 256 + 3, x.new_ones(3) * 300, y + (-0.0), torch.where(y == 0, -0.0, y), torch.ldexp(y.half(), x)

    compiled, _ = _compiled(function)
    x, y = torch.tensor([1, 2, -7], dtype=torch.int8), torch.tensor([-0.0, 0.0, 1.5])
    for a, b in zip(function(x, y), compiled(x, y), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0)
        assert torch.equal(b.signbit(), a.signbit())


ROUNDED: dict[str, Callable[..., Any]] = {
    "constants": lambda x, i, s: (torch.full((3,), 2.7, dtype=x.dtype).float(), x.new_full((3,), 2.999).long()),
    "sums": lambda x, i, s: (x + 2.7, 2.7 - x, x - s, x + i, torch.add(x, i, alpha=0.7), torch.rsub(x, 2.7, alpha=0.7)),
    "products": lambda x, i, s: (x * 2.7, x / 2.7, 2.7 / x, x * s, s * x, x / s, s / x, x * i, i / x, x * i[:1]),
    "remainders": lambda x, i, s: (
        x % 2.7,
        2.7 % x,
        torch.fmod(x, 2.7),
        i % x,
        torch.div(x, 2.7, rounding_mode="floor"),
    ),
    "powers": lambda x, i, s: (x**2.7, torch.pow(2.7, x), torch.atan2(x, i)),
    "comparisons": lambda x, i, s: (x == 2.7, x <= 2.7, x >= -2.7, i.to(x.dtype) == i, x > s),
    "where": lambda x, i, s: (torch.where(x > 1, 2.7, x), x.clamp(max=2.7), torch.addcmul(x, i, x, value=0.7)),
    "activations": lambda x, i, s: (
        F.hardshrink(x, 2.7),
        torch.ops.aten.hardshrink_backward(x, x, 2.7),
        torch.hypot(x, s),
    ),
}
"""Functions of a tensor of a half dtype, a tensor of integers, and a 0-dim float32 tensor."""


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ROUNDED)
def test_operands_of_half_types_are_rounded_as_in_eager(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.tensor([2.7, -2.7, 2.7]), 4 * _x(61, grad=False)]).to(dtype)
    given = x, 2049 + torch.arange(64, dtype=torch.int32), torch.tensor(2.7)
    compiled, _ = _compiled(ROUNDED[name], strict=False)
    for a, b in zip(ROUNDED[name](*given), compiled(*given), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [lambda x: True - x, lambda x: x & 3, lambda x: torch.isin(x, True), lambda x: torch.fmod(x > 0, True)],
    ids=["a truth value less a tensor", "bits of floats", "isin", "fmod of truth values"],
)
def test_what_eager_refuses_of_numbers_is_refused(function: Callable[..., Any]) -> None:
    x = _x(3, grad=False)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        function(x)
    with pytest.raises(type(expected.value)):
        _compiled(function, strict=False)[0](x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_remainder_of_a_number_has_the_dtype_of_a_tensor_without_dimensions(dtype: torch.dtype) -> None:
    x = torch.tensor(0.3, dtype=dtype)
    compiled, _ = _compiled(lambda x: 2.7 % x, strict=False)
    torch.testing.assert_close(compiled(x), 2.7 % x, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_takes_the_backend(*, dynamic: bool) -> None:
    compiled = torch.compile(_norm_chain, backend=triton, dynamic=dynamic)
    for rows in (5, 7):
        check_agreement(_norm_chain, compiled, (_x(rows, 48), _x(48, seed=1)), 1e-5)


def test_torch_compile_s_symbolic_sizes_are_compiled_once() -> None:
    graphs: list[CompiledGraph] = []

    def compiler(graph_module: torch.fx.GraphModule, example_inputs: Any, **_: Any) -> CompiledGraph:
        graphs.append(compile_graph(graph_module, example_inputs, strict=True))
        return graphs[-1]

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x + x.shape[0]) * x.shape[1]

    compiled = torch.compile(program, backend=functools.partial(triton, compiler=compiler), dynamic=True)
    for rows in (5, 7, 11):
        check_agreement(program, compiled, (_x(rows, 48),), 1e-5)
    assert len(graphs) == 2  # forward and backward


def test_the_guide_s_example_gives_what_it_says() -> None:
    guide = Path(__file__).resolve().parents[3] / "docs" / "codegen.md"
    result = doctest.testfile(str(guide), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_a_gpu(name: str) -> None:
    function, shape = PROGRAMS[name]
    x = _x(*shape, grad=False).cuda().requires_grad_()
    _check(function, x, strict=False, tolerance=1e-4)


def test_a_device_without_a_level_is_named() -> None:
    with pytest.raises(LevelUnavailable, match="tensors on meta"):
        LevelByDevice().launch(Kernel("kernel", "", ()), (1,), (torch.empty(2, device="meta"),), {})
