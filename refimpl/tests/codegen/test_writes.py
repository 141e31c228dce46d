"""Writes at places that are read from memory: what accumulates, what replaces, and of several values for one place the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.codegen.levels.by_device import LevelByDevice
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.options import CodegenOptions
from refimpl.errors import UnsupportedByRefimpl
from refimpl.tests.codegen.checks import Compiler, check, check_agreement, check_levels, numbers

aten = torch.ops.aten


def _at(below: int, *shape: int) -> torch.Tensor:
    """Places with duplicates, the last element of a size of 5 and more among them."""
    places = torch.arange(torch.Size(shape).numel()).mul(7).remainder(max(below - 2, 1))
    places[-1:] = below - 1
    return places.view(shape)


ROWS = torch.tensor([0, 2, 0, -1])

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {  # of (5, 6) and (4, 6)
    "index_put": lambda x, v: x.index_put((ROWS,), v) * 2,
    "index_put, accumulated": lambda x, v: x.index_put((ROWS,), v, accumulate=True) * 2,
    "index_put of one value": lambda x, v: x.index_put((ROWS,), v[0, 0]),
    "index_put of a row": lambda x, v: x.index_put((ROWS[:, None], _at(6, 3)), v[0, :3]),
    "index_put by a mask": lambda x, v: (x.index_put((x > 0,), v[0, 0]), x.index_put((x[:, 0] > 0,), v[1, 1], accumulate=True)),
    "index_put by a row and a column": lambda x, v: x.index_put((ROWS, _at(6, 4)), v[:, 0], accumulate=True),
    "index_put at one place": lambda x, v: x.index_put((torch.tensor(1),), v[2]),
    "an assignment to columns": lambda x, v: aten.index_put(x, (None, _at(6, 2)), v[:1, :2]),
    "indices apart": lambda x, v: aten.index_put(x.view(5, 3, 2), (ROWS, None, torch.tensor([1, 0, 1, 1])), v[:, :3]),
    "indices of two dimensions": lambda x, v: aten.index_put(x.view(5, 3, 2), (None, ROWS.view(2, 2) % 3), v.view(4, 3, 2)[0, 0]),
    "put": lambda x, v: (x.put(_at(30, 8), v.view(-1)[:8]), x.put(-1 - _at(30, 8), v.view(-1)[:8], accumulate=True)),
    "scatter": lambda x, v: (x.scatter(0, _at(5, 4, 6), v), x.scatter(1, _at(6, 3, 5), v[:3, :5])),
    "scatter of a number": lambda x, v: x.scatter(1, _at(6, 3, 5), 2.5),
    "scatter_add": lambda x, v: (x.scatter_add(0, _at(5, 4, 6), v), x.scatter_add(-1, _at(6, 2, 4), v[:2, :4])),
    "scatter_reduce, sum": lambda x, v: (
        x.scatter_reduce(0, _at(5, 4, 6), v, "sum"), x.scatter_reduce(0, _at(5, 4, 6), v, "sum", include_self=False)
    ),
    "scatter_reduce, mean": lambda x, v: (
        x.scatter_reduce(0, _at(5, 4, 6), v, "mean"), x.scatter_reduce(1, _at(6, 4, 6), v, "mean", include_self=False)
    ),
    "scatter_reduce, amax": lambda x, v: (
        x.scatter_reduce(0, _at(5, 4, 6), v, "amax"), x.scatter_reduce(1, _at(6, 4, 6), v, "amin", include_self=False)
    ),
    "index_reduce": lambda x, v: x.index_reduce(0, _at(5, 4), v, "amax"),
    "zeros written": lambda x, v: x.scatter(0, _at(5, 4, 6), v * 0) + x.index_put((ROWS,), torch.zeros(4, 6, dtype=x.dtype)),
    "index_add": lambda x, v: (x.index_add(0, _at(5, 4), v, alpha=2), x.index_add(1, _at(6, 2), v[:1, :2].expand(5, 2))),
    "index_copy": lambda x, v: (x.index_copy(0, _at(5, 4), v), x.index_copy(1, _at(6, 2), v.view(-1)[:10].view(5, 2))),
    "index_fill": lambda x, v: (x.index_fill(0, ROWS, 3.0), x.index_fill(1, ROWS, v[0, 0].detach())),
    "diagonals": lambda x, v: (
        x.diagonal_scatter(v[0, :5]), x.diagonal_scatter(v[1, :4], -1),
        x.view(5, 3, 2).diagonal_scatter(v.reshape(-1)[:10].view(5, 2), 1, 2, 1)
        + x.view(5, 3, 2).diagonal_scatter(v.reshape(-1)[:10].view(5, 2), -1, 1, 2),
    ),
    "gradient of gather": lambda x, v: x.gather(1, _at(6, 5, 4)) * v.view(-1)[:20].view(5, 4),
    "gradient of indices": lambda x, v: x[ROWS] * v + x[ROWS, _at(6, 4)][:, None],
    "gradient of embedding": lambda x, v: F.embedding(_at(5, 4), x, padding_idx=0) * v,
    "counted gradient of embedding": lambda x, v: F.embedding(_at(5, 4), x, scale_grad_by_freq=True) * v,
    "replication and its gradient": lambda x, v: F.pad(x[None], (2, 1), mode="replicate"),
    "what is written is written again": lambda x, v: x.scatter_add(0, _at(5, 4, 6), v).scatter(1, _at(6, 3, 5), v[:3, :5]).sum(0),
    "written and reduced": lambda x, v: x.softmax(1).index_add(0, _at(5, 4), v.softmax(1)).softmax(0),
}  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_writes_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    x, values = numbers(5, 6, dtype=dtype, grad=True), numbers(4, 6, seed=1, dtype=dtype, grad=True)
    check(PROGRAMS[name], x, values, tolerance=tolerance, strict=False)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "gradient" not in name])
def test_no_operator_is_left(name: str) -> None:
    check(PROGRAMS[name], numbers(5, 6), numbers(4, 6, seed=1), tolerance=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_levels_agree(name: str) -> None:
    compiler = Compiler(strict=False)
    compiler.compile(PROGRAMS[name])(numbers(5, 6), numbers(4, 6, seed=1))
    check_levels(compiler.recorded, tolerance=1e-6)


@pytest.mark.fractional
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_of_every_dtype(dtype: torch.dtype, reduce: str, *, include_self: bool) -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, _at(5, 7, 6), values, reduce, include_self=include_self)

    tolerance = 2e-2 if dtype.is_floating_point else 0.0
    check(function, numbers(5, 6, dtype=dtype), numbers(7, 6, seed=1, dtype=dtype), tolerance=tolerance, strict=False)


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_extremes_of_special_floats(dtype: torch.dtype, reduce: str, *, include_self: bool) -> None:
    values = torch.tensor([1.5, -2.5, float("inf"), -float("inf"), float("nan"), 0.0, -1e-7, 6e4, -6e4], dtype=dtype)
    every = torch.cartesian_prod(values, values)

    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        places = torch.arange(len(source)).view(-1, 1).expand(-1, 2) // 2
        return x.scatter_reduce(0, places, source, reduce, include_self=include_self)

    check(function, every[: len(every) // 2 + 1].flip(0).contiguous(), every)


def test_truth_values() -> None:
    flags, values = numbers(5, 6) > 0, numbers(4, 6, seed=1) > 0.5
    check(lambda x, v: (x.index_put((ROWS,), v), x.index_put((ROWS,), v, accumulate=True)), flags, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_round_once(dtype: torch.dtype) -> None:
    """256 ones and a small number each time: atomics in half types would lose them all."""
    x, values = torch.zeros(1, dtype=dtype), torch.full((512,), 1.0 + 2**-7, dtype=dtype)
    compiled = Compiler().compile(lambda x, v: x.index_add(0, torch.zeros(512, dtype=torch.int64), v))
    torch.testing.assert_close(compiled(x, values), values.double().sum()[None].to(dtype), rtol=0, atol=0)


def test_of_several_values_for_one_place_the_last_stays() -> None:
    """More points than programs of one block."""
    places = torch.arange(5000) % 3
    x, values = torch.zeros(3), torch.arange(5000.0)
    for function in (
        lambda x, v: x.index_put((places,), v),
        lambda x, v: x.scatter(0, places, v),
        lambda x, v: x.index_copy(0, places, v),
    ):
        compiled = Compiler().compile(function)
        assert compiled(x, values).tolist() == [4998.0, 4999.0, 4997.0]


def test_what_is_read_may_be_one_element_everywhere() -> None:
    """The gradient of a sum."""
    x, values = numbers(5, 6, grad=True), numbers(8, seed=1, grad=True)
    for accumulate in (True, False):
        compiled = Compiler().compile(lambda x, v, accumulate=accumulate: x.put(_at(30, 8), v, accumulate=accumulate))
        actual = torch.autograd.grad(compiled(x, values).sum(), (x, values))
        expected = torch.autograd.grad(x.put(_at(30, 8), values, accumulate=accumulate).sum(), (x, values))
        assert all(map(torch.equal, actual, expected))


def test_what_only_the_next_write_reads_is_not_copied() -> None:
    places = _at(5, 4)

    def chain(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, places, v).index_add(0, places, v * 2).scatter(0, places[:, None], 7.0)

    def branches(x: torch.Tensor, v: torch.Tensor) -> Any:
        first = x.index_add(0, places, v)
        return first, first.index_add(0, places, v * 2), first.scatter(0, places[:, None], 7.0)

    x, values = numbers(5, 6), numbers(4, 6, seed=1)
    compiler = check(chain, x, values, tolerance=1e-6)
    assert len(compiler.graphs[0].kernels) == 3  # a copy, the sums, the numbers
    check(branches, x, values, tolerance=1e-6)


def test_kernels_that_write_into_one_buffer_are_kept_apart() -> None:
    """Though they read the same places, and so do those that read the result."""
    rows = torch.tensor([1, 0, 3, 1, 2])
    check(lambda x: x.index_add(0, rows, x), numbers(5, 6), tolerance=1e-6)
    check(lambda x: x.index_add(0, rows, x) * x, numbers(5, 6), tolerance=1e-6)
    check(lambda x: x.index_fill(0, rows, 2.0).index_add(0, rows, x) * x, numbers(5, 6), tolerance=1e-6)


def test_nothing_is_written_out_of_bounds_where_assertions_are_off() -> None:
    """Assertions are off on a GPU."""
    for rows in ([5], [-1], [7]):
        for function in (
            lambda x, at: x.index_add(0, at, x[:1]),
            lambda x, at: x.t().index_add(0, at, x.t()[:1]),
            lambda x, at: x.scatter(0, at[:, None], 2.0),
            lambda x, at: x.scatter(1, at[:, None], x),
        ):
            x, places = numbers(5, 5), torch.tensor(rows)
            compiled = Compiler(level=EmulatorLevel(races=True)).compile(function)
            actual = compiled(x, places)
            assert torch.equal(actual, x) or torch.equal(actual, x.t())


def test_a_diagonal_of_another_length_is_eager_s_error() -> None:
    compiled = Compiler(strict=False).compile(lambda x, v: x.diagonal_scatter(v))
    with pytest.raises(RuntimeError, match="src"):
        compiled(numbers(5, 6), numbers(1))


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
@pytest.mark.parametrize("shape", [(3, 6), (4, 5), (4, 1), (4,)], ids=str)
def test_rows_that_do_not_fit_are_eager_s_error(name: str, shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return getattr(x, name)(0, _at(5, 4), source)

    source = numbers(*shape)
    with pytest.raises((RuntimeError, IndexError)):
        function(numbers(5, 6), source)
    with pytest.raises((RuntimeError, IndexError)):  # of index_copy, fake kernels raise the other one
        Compiler(strict=False).compile(function)(numbers(5, 6), source)


def test_inputs_are_left_alone() -> None:
    x, values = numbers(5, 6), numbers(4, 6, seed=1)
    before = x.clone()
    for name in ("index_put", "index_put, accumulated", "scatter of a number", "scatter_add"):
        Compiler().compile(PROGRAMS[name])(x, values)
        assert torch.equal(x, before)


def test_nothing_to_write() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    check(
        lambda x, v: (
            x.index_put((none,), v), x.index_put((none,), v, accumulate=True), x.index_add(0, none, v),
            x.index_copy(0, none, v), x.scatter(0, none[:, None], v), x.scatter_add(0, none[:, None], v),
        ),
        numbers(5, 6), torch.zeros(0, 6),
    )  # fmt: skip


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor, values: torch.Tensor, rows: torch.Tensor) -> Any:
        wide = rows[:, None].expand(values.shape)
        return (
            x.index_add(0, rows, values), x.index_put((rows,), values), x.scatter(0, wide, values),
            x.scatter_add(0, wide, values).relu(), F.embedding(rows, x),
        )  # fmt: skip

    compiler = Compiler()
    compiled = compiler.compile(function, dynamic=True)
    for size, count, width in ((5, 4, 6), (9, 7, 3), (4, 40, 11)):
        arguments = numbers(size, width, grad=True), numbers(count, width, seed=1, grad=True), _at(size, count)
        check_agreement(function, compiled, arguments, 1e-4)
    assert len(compiler.graphs) == 2


OUT_OF_BOUNDS: dict[str, Callable[..., Any]] = {
    "index_put": lambda x, at: x.index_put((at,), x[:1]),
    "index_put, accumulated": lambda x, at: x.index_put((at,), x[:1], accumulate=True),
    "index_put of one value": lambda x, at: x.index_put((at,), x[0, 0]),
    "index_add": lambda x, at: x.index_add(0, at, x[:1]),
    "index_add of int32": lambda x, at: x.index_add(0, at.int(), x[:1]),
    "index_add in the middle": lambda x, at: x[None].index_add(1, at, x[None, :1]),
    "index_add times a number": lambda x, at: x.index_add(0, at, x[:1], alpha=2),
    "index_copy": lambda x, at: x.index_copy(0, at, x[:1]),
    "scatter": lambda x, at: x.scatter(0, at[:, None], x),
    "scatter of a number": lambda x, at: x.scatter(0, at[:, None], 1.0),
    "scatter_add": lambda x, at: x.scatter_add(0, at[:, None], x),
    "scatter_reduce": lambda x, at: x.scatter_reduce(0, at[:, None], x, "mean"),
    "gather": lambda x, at: x.gather(0, at[:, None]),
}


@pytest.mark.fractional
@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
@pytest.mark.parametrize("place", [5, -6])
def test_places_out_of_bounds_are_eager_s_error(name: str, place: int) -> None:
    """Nothing is written around the tensor."""
    function, at = OUT_OF_BOUNDS[name], torch.tensor([place])
    memory = numbers(9, 6)
    rows, before = memory[2:7], memory.clone()
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(rows, at)
    compiled = Compiler(level=LevelByDevice()).compile(function)
    with pytest.raises((IndexError, RuntimeError), match="index out of bounds") as actual:
        compiled(rows, at)
    assert actual.type is expected.type
    assert torch.equal(memory, before)


def test_deterministic_compilations_add_no_floats_atomically() -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, _at(5, 4), values)

    x, values = numbers(5, 6), numbers(4, 6, seed=1)
    compiler = Compiler(options=CodegenOptions(deterministic=True))
    with pytest.raises(UnsupportedByRefimpl, match="added up atomically, where results must be deterministic"):
        compiler.compile(function)(x, values)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(UnsupportedByRefimpl, match="added up atomically"):
            Compiler().compile(function)(x, values)
    finally:
        torch.use_deterministic_algorithms(False)
    whole = numbers(5, 6, dtype=torch.int64), numbers(4, 6, seed=1, dtype=torch.int64)
    compiled = Compiler(options=CodegenOptions(deterministic=True)).compile(function)
    assert torch.equal(compiled(*whole), function(*whole))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.diagonal_scatter(x[0] * 3),
        lambda x: x.select_scatter(x[0] * 3, 0, 1),
        lambda x: x.slice_scatter(x[:1] * 3, 0, 1, 2),
    ],
    ids=["diagonal_scatter", "select_scatter", "slice_scatter"],
)
def test_what_lies_around_what_is_written_is_copied_for_as_strided(
    write: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.arange(20.0).as_strided((2, 2), (5, 2), 6)
    check(lambda x: write(x).view(2, 2).as_strided((3, 4), (4, 1), 1) * 2, x, strict=False)
