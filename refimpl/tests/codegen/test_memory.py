"""Buffers of compiled graphs share memory where nothing is lost by it, and plans that would lose something are noticed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sympy
import torch
from torch.utils import _pytree as pytree

from refimpl.codegen import memory_plan
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.configurations import configuration
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.emulator import Race
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.loop_ir import Buffer
from refimpl.codegen.memory_plan import BadMemoryPlan, MemoryPlan, Use, may_alias, plan_memory, verify
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot

aten = torch.ops.aten


@dataclass
class _Bytes:
    """What a graph has asked for, and holds, by its own allocations."""

    now: int = 0
    peak: int = 0
    allocations: int = 0

    def watch(self, graph: CompiledGraph) -> None:
        names: Any = graph.call.__globals__
        empty = names["empty"]

        def counted(*arguments: Any, **keywords: Any) -> torch.Tensor:
            made = empty(*arguments, **keywords)
            self.now += made.nbytes
            self.peak = max(self.peak, self.now)
            self.allocations += 1
            weakref.finalize(made, self._freed, made.nbytes)
            return made

        names["empty"] = counted

    def _freed(self, count: int) -> None:
        self.now -= count


def _compiled(
    function: Callable[..., Any], *, reuse: bool = True, dynamic: bool = False
) -> tuple[Any, list[CompiledGraph], _Bytes]:
    graphs: list[CompiledGraph] = []
    count = _Bytes()

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        options = CodegenOptions(reuse_buffers=reuse)
        graphs.append(compile_graph(graph_module, example_inputs, level=EmulatorLevel(races=True), options=options))
        count.watch(graphs[-1])
        return graphs[-1]

    compiled = compile_aot(function, backend=backend, decompositions=codegen_decompositions(), dynamic=dynamic)
    return compiled, graphs, count


def _sorted_layers(x: torch.Tensor) -> torch.Tensor:
    """A kernel after each call, over what the call has returned."""
    for _ in range(3):
        x = (x.sort(1)[0] * 2 - 1).relu()
    return x


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Kernels that cannot be one, and read in another order than they write."""
    for _ in range(4):
        x = (x.softmax(1).t().reshape(x.shape[0], -1) + x).cumsum(0)
    return x


def _long_rows(x: torch.Tensor) -> Any:
    """Several loops over rows of what a kernel has made: the last of them may write over it, the others not."""
    y = x.sort(1)[0].cumsum(0)
    return (y - y.mean(1, keepdim=True)).exp(), torch.nn.functional.layer_norm(y * 2, y.shape[1:]).softmax(1).sum(0)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "calls between kernels": (_sorted_layers, (32, 40)),
    "turned": (_turned, (24, 24)),
    "long rows": (_long_rows, (3, 2500)),
    "reversed": (lambda x: (x.sort(1)[0] * 2).flip(0).sort(1)[0] + 1, (64, 64)),
    "broadcast": (lambda x: x.sort(1)[0] + x.sort(1)[0].sum(1, keepdim=True), (8, 16)),
    "used twice": (lambda x: ((y := x.sort(1)[0]) + 1, y * 2, y.t().contiguous()), (16, 16)),
    "views of what is returned": (lambda x: (y := x.sort(1)[0] + 1, y.t(), y[1:]), (16, 16)),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_without_reuse(name: str, *, dynamic: bool) -> None:
    function, shape = PROGRAMS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for inputs in (x, x[:-1] if dynamic and name != "turned" else x):
        before = inputs.clone()
        compiled, _, _ = _compiled(function, dynamic=dynamic)
        without, _, _ = _compiled(function, reuse=False, dynamic=dynamic)
        for actual, expected in zip(
            pytree.tree_leaves(compiled(inputs)), pytree.tree_leaves(without(inputs)), strict=True
        ):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            assert actual.stride() == expected.stride()
        torch.testing.assert_close(inputs, before, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_memory_that_is_allocated_gets_less(*, dynamic: bool) -> None:
    counts = {}
    for reuse in (True, False):
        compiled, _, counts[reuse] = _compiled(_turned, reuse=reuse, dynamic=dynamic)
        compiled(torch.randn(24, 24))
    assert counts[True].peak <= counts[False].peak
    assert counts[True].allocations < counts[False].allocations


def test_a_kernel_writes_over_the_result_of_the_call_before_it() -> None:
    compiled, (), count = _compiled(_sorted_layers)
    compiled(torch.randn(32, 40))
    assert count.allocations == 0


def test_outputs_are_no_views_of_what_nobody_has() -> None:
    compiled, _, _ = _compiled(lambda x: (x.sort(1)[0] + 1).view(-1) * 2)
    assert not compiled(torch.randn(8, 8))._is_view()


# ------------------------------------------------------------------------------------------------------------ planted errors


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.unfold(0, 2, 1),
        lambda y: y.unfold(0, 2, 1).broadcast_to(2, 4, 2),
        lambda y: y.expand(3, 5).unfold(1, 3, 2),
        lambda y: (y.unfold(0, 2, 1).t().expand(2, 2, 4), y.unfold(0, 3, 1)),
    ],
)
def test_windows_that_are_results_share_memory_as_in_eager(
    view: Callable[[torch.Tensor], Any], *, dynamic: bool
) -> None:
    x = torch.arange(5.0)
    compiled = compile_aot(
        lambda x: view(x * 3), backend=compile_graph, decompositions=codegen_decompositions(), dynamic=dynamic
    )
    for a, b in zip(pytree.tree_leaves(compiled(x)), pytree.tree_leaves(view(x * 3)), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_a_kernel_that_writes_where_others_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "is_read_where_written", lambda *_: True)
    function, _ = PROGRAMS["reversed"]
    compiled, _, _ = _compiled(function)
    with pytest.raises(Race):
        compiled(torch.randn(64, 64))


def test_a_kernel_that_reads_again_what_it_has_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x.sort(1)[0]
        z = y - y.mean(1, keepdim=True)
        for _ in range(6):
            z = z.sin().exp()  # more than is computed again for each user
        return z, (y * y * z.sum(1, keepdim=True)).sum(1)

    x = torch.randn(3, 2500, generator=torch.Generator().manual_seed(0))
    expected = function(x)
    compiled, _, _ = _compiled(function)
    torch.testing.assert_close(compiled(x), expected)
    monkeypatch.setattr(memory_plan, "is_read_before", lambda *_: True)
    compiled, _, _ = _compiled(function)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(compiled(x), expected)


def _buffer(name: str, *shape: Any, dtype: torch.dtype = torch.float32, gap: int = 1) -> Buffer:
    sizes = tuple(map(sympy.sympify, shape))
    strides = tuple(sympy.Mul(gap, *sizes[dim + 1 :]) for dim in range(len(sizes)))
    return Buffer(name, sizes, strides, dtype, torch.device("cpu"))


def _use(reads: str, made: str, over: str = "", **others: Any) -> Use:
    return Use(
        reads=frozenset(reads), made=tuple(made), overwrites={name: tuple(over) for name in made} if over else {}, **others
    )  # fmt: skip


_CHAIN = (_use("i", "a"), _use("a", "b"), _use("b", "c"), _use("ac", "d"))
_BUFFERS = {name: _buffer(name, 4, 8) for name in "iabcd"}
_FIXED, _NEEDED = frozenset("i"), frozenset("d")


@pytest.mark.parametrize(
    ("donors", "why"),
    [
        ({"b": "i"}, "not free"),
        ({"b": "a"}, "still read"),
        ({"c": "a"}, "is read by entry 3 and has lost its memory"),
        ({"d": "a"}, "still read"),
        ({"c": "d"}, "not free"),
    ],
)
def test_a_plan_that_loses_a_value_is_refused(donors: dict[str, str], why: str) -> None:
    with pytest.raises(BadMemoryPlan, match=why):
        verify(MemoryPlan(donors, {}), _CHAIN, _BUFFERS, _FIXED, _NEEDED)


def test_memory_is_given_away_once() -> None:
    uses = (_use("i", "a"), _use("a", "b"), _use("b", "c"), _use("b", "d"), _use("cd", "e"))
    buffers = {name: _buffer(name, 4, 8) for name in "iabcde"}
    found = plan_memory(uses, buffers, _FIXED, frozenset("e"), reuse=True)
    assert found.donors == {"c": "a", "e": "b"}
    with pytest.raises(BadMemoryPlan, match="has lost it"):
        verify(MemoryPlan({"c": "a", "d": "a"}, {}), uses, buffers, _FIXED, frozenset("e"))


def test_what_may_be_one_memory_with_something_else_is_kept() -> None:
    call = Use(reads=frozenset("a"), given=("v",), overwrites={}, is_aliasing=True)
    uses = (_use("i", "a"), call, _use("v", "b"), _use("b", "c"), _use("c", "d"))
    buffers = {name: _buffer(name, 4, 8) for name in "iavbcd"}
    assert plan_memory(uses, buffers, _FIXED, _NEEDED, reuse=True).donors == {"d": "b"}
    with pytest.raises(BadMemoryPlan, match="not free"):
        verify(MemoryPlan({"b": "v"}, {}), uses, buffers, _FIXED, _NEEDED)


@pytest.mark.parametrize(
    ("mine", "other", "is_shared"),
    [
        (_buffer("c", 4, 8), _buffer("a", 32), True),
        (_buffer("c", 4, 8), _buffer("a", 4, 9), False),
        (_buffer("c", 4, 8), _buffer("a", 4, 8, dtype=torch.int32), False),
        (_buffer("c", sympy.Symbol("s"), 2), _buffer("a", 2, sympy.Symbol("s")), True),
        (_buffer("c", sympy.Symbol("s")), _buffer("a", sympy.Symbol("z")), False),
        (_buffer("c", 4, 2, gap=2), _buffer("a", 8), False),
    ],
)
def test_amounts_are_compared_by_proof(mine: Buffer, other: Buffer, *, is_shared: bool) -> None:
    uses = (_use("i", "a"), _use("a", "b"), _use("b", "c"), _use("c", "d"))
    buffers = {**_BUFFERS, "b": _buffer("b", 7), "d": _buffer("d", 7), "a": other, "c": mine}
    donors = plan_memory(uses, buffers, _FIXED, frozenset("d"), reuse=True).donors
    assert donors.get("c") == ("a" if is_shared else None)


@pytest.mark.parametrize(("peak", "is_kept"), [(1000, True), (1, False)])
def test_memory_is_kept_for_later_only_below_the_peak(peak: int, *, is_kept: bool) -> None:
    """a would wait while b is there, which is as large."""
    uses = (
        _use("i", "h"),
        _use("h", "a"),
        _use("a", "x"),
        _use("x", "b"),
        _use("b", "y"),
        _use("y", "c"),
        _use("c", "d"),
    )
    buffers = {name: _buffer(name, 1) for name in "ixyd"} | {"h": _buffer("h", peak)}
    buffers |= {"a": _buffer("a", 100), "b": _buffer("b", 101), "c": _buffer("c", 100)}
    donors = plan_memory(uses, buffers, _FIXED, _NEEDED, reuse=True).donors
    assert donors.get("c") == ("a" if is_kept else None)


def test_what_other_points_read_too_is_not_written_over() -> None:
    """Each element of `rows` is read by all points of a row: by threads of which one may be late."""

    def function(x: torch.Tensor) -> Any:
        rows = x.sum(1).sort(0)[0]
        return (x * rows[:, None]).sum(1), rows + 1

    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    compiled, graphs, _ = _compiled(function)
    torch.testing.assert_close(compiled(x), function(x))
    (graph,) = graphs
    both = graph.printed[-1]
    assert len(both.written) == 2  # one kernel makes the two
    read = [name for name in both.arguments if isinstance(name, str) and name not in both.written]
    assert len(read) == 2
    assert not any(f" = {name}\n" in graph.source for name in read)


def test_threads_that_share_a_point_do_not_write_over_what_they_read() -> None:
    assert memory_plan.has_a_point_for_each_thread(configuration(2, XBLOCK=8, RBLOCK=8))
    assert not memory_plan.has_a_point_for_each_thread(configuration(4, XBLOCK=8, RBLOCK=8))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (aten.mm.default, False),
        (aten.sort.default, False),
        (aten._unsafe_view.default, True),
        (aten.view.default, True),
        (aten.dropout.default, True),
        (aten.copy_.default, True),
        (torch.empty_strided, False),
        (torch.sin, True),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_which_results_may_share_memory_with_arguments(target: Any, *, expected: bool) -> None:
    assert may_alias(target) == expected
