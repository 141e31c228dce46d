"""Pooling and other operators on windows, and their gradients, which are sums over windows too."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F

from refimpl.codegen.lowering.window_geometry import Parts
from refimpl.codegen.options import CodegenOptions
from refimpl.errors import UnsupportedByRefimpl
from refimpl.tests.codegen.checks import Compiler, check, check_agreement, check_levels, numbers

NAN, INF = float("nan"), float("inf")
_x = functools.partial(numbers, grad=True)


PLANE, SPACE = (2, 3, 9, 11), (1, 2, 6, 5, 7)

PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[int, ...]]] = {
    "maxima that overlap": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), PLANE),
    "maxima apart": (lambda x: F.max_pool2d(x, (2, 3), (4, 5), return_indices=True), PLANE),
    "maxima, dilated": (lambda x: F.max_pool2d(x, 2, 1, 1, dilation=(2, 3), return_indices=True), PLANE),
    "maxima, rounded up": (lambda x: F.max_pool2d(x, (2, 3), (3, 2), ceil_mode=True, return_indices=True), PLANE),
    "maxima of large windows": (lambda x: F.max_pool2d(x, 7, 3, 3, return_indices=True), PLANE),
    "maxima without a batch": (lambda x: F.max_pool2d(x[0], 3), PLANE),
    "maxima of rows": (lambda x: F.max_pool1d(x[0], 3, 2, 1, return_indices=True), PLANE),
    "maxima in space": (lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True), SPACE),
    "maxima of large windows in space": (lambda x: F.max_pool3d(x, 4, 2, 1, return_indices=True), SPACE),
    "maxima of parts": (lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), PLANE),
    "maxima of even parts": (lambda x: F.adaptive_max_pool2d(x, (3, 11), return_indices=True), PLANE),
    "maxima of more parts than elements": (lambda x: F.adaptive_max_pool2d(x, (12, 2)), PLANE),
    "maxima of parts in space": (lambda x: F.adaptive_max_pool3d(x, (3, 2, 4)), SPACE),
    "means": (lambda x: F.avg_pool2d(x, 3, 2, 1), PLANE),
    "means, rounded up": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), PLANE),
    "means without the padding": (lambda x: F.avg_pool2d(x, (3, 4), 2, (1, 2), count_include_pad=False), PLANE),
    "means without the padding, rounded up": (
        lambda x: F.avg_pool2d(x, (2, 3), (3, 2), (1, 1), ceil_mode=True, count_include_pad=False), PLANE,
    ),
    "means with a divisor": (lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), PLANE),
    "means of large windows": (lambda x: F.avg_pool2d(x, 6, 2, 2), PLANE),
    "means of rows": (lambda x: F.avg_pool1d(x[0], 3, 2, 1), PLANE),
    "means in space": (lambda x: F.avg_pool3d(x, 3, 2, 1), SPACE),
    "norms of windows": (lambda x: F.lp_pool2d(x, 2.0, 2), PLANE),
    "one mean": (lambda x: F.adaptive_avg_pool2d(x, 1), PLANE),
    "means of parts": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), PLANE),
    "means of even parts": (lambda x: F.adaptive_avg_pool2d(x, (3, 1)), PLANE),
    "means of parts of rows": (lambda x: F.adaptive_avg_pool1d(x[0], 4), PLANE),
    "means of parts in space": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)), SPACE),
    "windows unfolded and folded": (
        lambda x: F.fold(F.unfold(x, (2, 3), (1, 2), (1, 0), (2, 3)), (9, 11), (2, 3), (1, 2), (1, 0), (2, 3)), PLANE,
    ),
    "large windows folded": (lambda x: F.fold(F.unfold(x, 6, 1, 2, 3), (9, 11), 6, 1, 2, 3), PLANE),
    "reflected": (lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect"), PLANE),
    "reflected and cut": (lambda x: F.pad(x[0], (3, -2), mode="reflect"), PLANE),
    "reflected in space": (lambda x: F.pad(x, (3, 2, 1, 4, 2, 1), mode="reflect"), SPACE),
    "pooled again": (lambda x: F.avg_pool2d(F.max_pool2d((x * 2).sigmoid().exp(), 3, 2, 1).tanh().exp(), 2), PLANE),
    "pooled and shifted": (lambda x: F.pad(F.max_pool2d(x, 3, 1, 1), (1, 1, 1, 1)) * 2, PLANE),
}  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_windows_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    function, shape = PROGRAMS[name]
    compiler = check(function, _x(*shape, dtype=dtype), tolerance=1e-5 if dtype == torch.float32 else 1e-12)
    assert len(compiler.graphs) == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_levels_agree(name: str) -> None:
    function, shape = PROGRAMS[name]
    compiler = check(function, _x(*shape), tolerance=1e-5)
    check_levels(compiler.recorded, tolerance=1e-6)


@pytest.mark.parametrize("name", ["maxima that overlap", "means of parts", "windows unfolded and folded", "reflected"])
def test_gradients_of_windows_are_deterministic(name: str) -> None:
    function, shape = PROGRAMS[name]
    compiler = Compiler(options=CodegenOptions(deterministic=True))
    check_agreement(function, compiler.compile(function), (_x(*shape),), 1e-5)
    assert "atomic" not in "".join(graph.source for graph in compiler.graphs)


@pytest.mark.parametrize("kernel", [3, 7], ids=["written out", "reduced"])
@pytest.mark.parametrize(
    "values",
    [[NAN, 1, -INF, 2, 2, NAN, INF, 3], [-INF], [0.0, -0.0], [2.0, 2.0, 1.0], [INF, INF, NAN]],
    ids=["all kinds", "lowest", "zeros", "ties", "two infinities"],
)
def test_the_first_of_equal_maxima_or_the_last_nan(values: list[float], kernel: int) -> None:
    x = torch.tensor(values).repeat(64)[:64].roll(3).view(1, 1, 8, 8)
    check(lambda x: F.max_pool2d(x, kernel, 1, kernel // 2, return_indices=True), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("kernel", [3, 7])
def test_windows_of_integers(dtype: torch.dtype, kernel: int) -> None:
    check(lambda x: F.max_pool2d(x, kernel, 2, 1, return_indices=True), _x(1, 2, 9, 8, dtype=dtype))
    if dtype == torch.int64:  # the only one that eager has means of
        check(lambda x: F.avg_pool2d(x, kernel, 2, 1), _x(1, 2, 9, 8, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_round_once(dtype: torch.dtype) -> None:
    x = _x(2, 3, 9, 11, dtype=dtype, grad=False)
    pooled = Compiler().compile(lambda x: (F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 7, 1), F.max_pool2d(x, 3)))(x)
    wide = x.double()
    for actual, expected in zip(
        pooled, (F.avg_pool2d(wide, 3, 2, 1), F.avg_pool2d(wide, 7, 1), F.max_pool2d(wide, 3)), strict=True
    ):
        torch.testing.assert_close(actual, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        return (
            F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, 2, 2, 1, count_include_pad=False), F.max_pool2d(x, 7, 2, 3),
        )  # fmt: skip

    compiler = Compiler()
    compiled = compiler.compile(function, dynamic=True)
    for shape in ((2, 3, 9, 11), (4, 2, 7, 15), (3, 5, 17, 13)):
        check_agreement(function, compiled, (_x(*shape),), 1e-5)
    assert len(compiler.graphs) == 2
    check_agreement(function, compiled, (_x(3, 5, 8, 12),), 1e-5)
    # The fake kernels of torch before 2.13 ask whether a size is a multiple of the stride.
    assert len(compiler.graphs) == 2 or torch.__version__ < "2.13"


def test_parts_of_sizes_known_at_run_time_are_left() -> None:
    with pytest.raises(UnsupportedByRefimpl, match="windows of sizes known at run time"):
        Compiler().compile(lambda x: F.adaptive_max_pool2d(x, (4, 5)), dynamic=True)(_x(*PLANE))


@pytest.mark.parametrize(("size", "windows"), itertools.product([1, 4, 7, 10], [1, 3, 4, 12]))
def test_an_element_is_in_the_windows_that_have_it(size: int, windows: int) -> None:
    """The pairs are the same, listed by elements or by windows."""
    parts = Parts(size, windows)

    def holds(conditions: list[Any]) -> bool:
        operators = {"lt": int.__lt__, "ge": int.__ge__}
        return all(operators[c.function](*(int(side.index) for side in c.arguments)) for c in conditions)

    def pairs(find: Any, begins: int, counts: int) -> set[tuple[int, int]]:
        found = set()
        for begin, k in itertools.product(range(begins), range(counts)):
            place, conditions = find(sympy.Integer(begin), sympy.Integer(k))
            if holds(conditions):
                found.add((begin, int(place)))
        return found

    by_windows = pairs(parts.element, windows, parts.length)
    by_elements = pairs(parts.window, size, parts.sharing)
    assert by_windows == {(window, element) for element, window in by_elements}
    assert {element for _, element in by_windows} == set(range(size))
