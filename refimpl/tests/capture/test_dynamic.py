"""Tests of sizes and integers that are symbols: what was another number before, what is marked, what is computed of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental import _config as fx_config

import refimpl
from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.errors import BadParameter
from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, same


def mixed(x: Any, n: int) -> Any:
    y = x * n
    if x.shape[0] > 5:
        y = y + x.shape[0]
    return y.reshape(-1).sum(), x.shape, x.size(0) * 2 + n, y.numel(), y[:n], f"{x.dim()}"


def views(x: Any) -> Any:
    rows, columns = x.shape
    return x.view(columns, rows), x.stride(), x[: rows // 2], x.transpose(0, 1).reshape(rows * columns), rows == columns


def numbers(x: Any, n: int) -> Any:
    found = [n + 1, n - 1, n * 2, n / 2, n // 2, n % 2, -n, n**2, 2 * n, 7 - n, n & 3]
    found += [n > 3, n == 4, n != 4, n <= 2, not n, abs(n), int(n), float(n), max(n, 3), min(3, n), bool(n)]
    return x + n, found, isinstance(n, int), type(n), {n: 1}, (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)[n % 10]


def loops(x: Any) -> Any:
    total = x.new_zeros(x.shape[1])
    for row in x:
        total = total + row
    for index in range(x.shape[1]):
        total = total * index
    return total, len(x), list(range(len(x))), x.shape == (3, 4), x.shape[0] in (3, 4), [*x.shape]


def made(x: Any, n: int) -> Any:
    return (
        torch.zeros(n, x.shape[0]),
        torch.full((n,), n),
        x.expand(n, *x.shape),
        torch.arange(n),
        x.sum() + n,
        x.new_ones(n),
    )


def divides(x: Any, n: int) -> Any:
    try:
        return x + 10 // n
    except ZeroDivisionError as error:
        return x, str(error)


PROGRAMS: list[tuple[Callable[..., Any], bool]] = [
    (mixed, True), (views, False), (numbers, True), (loops, False), (made, True), (divides, True),
]  # fmt: skip
SIZES = (3, 4, 5, 6, 1, 9, 0, 2, 3)


@pytest.mark.fractional
@IN_EVERY_MODE
@pytest.mark.parametrize(("program", "takes_number"), PROGRAMS, ids=[program.__name__ for program, _ in PROGRAMS])
def test_every_size_gives_what_eager_gives(program: Callable[..., Any], takes_number: bool, mode: str) -> None:
    tensors = [torch.arange(size * 4.0).reshape(size, 4) for size in SIZES]
    calls = [(x, len(x) + (program is not divides)) if takes_number else (x,) for x in tensors]
    assert_same_as_eager(program, mode, calls, recompile_limit=20)


def scaled(x: Any, n: int) -> Any:
    return x * n + x.shape[0]


def test_what_varies_is_a_symbol_from_the_second_time_on() -> None:
    captured, recorder, _ = captured_with(scaled)
    for size in (3, 5, 7, 11, 4):
        assert same(captured(torch.ones(size), size), scaled(torch.ones(size), size))
    assert len(recorder.graphs) == 2
    placeholders = [node.target for node in recorder.graphs[1].graph.nodes if node.op == "placeholder"]
    assert placeholders == ["L_x_", "L_n_", "L_x_size_0_"]
    captured(torch.ones(3, 4), 2)  # another rank
    assert len(recorder.graphs) == 3


def test_settings_and_marks_say_what_is_a_symbol() -> None:
    with config.patch(assume_static_by_default=False):
        calls = [(torch.ones(size), size) for size in (3, 5, 7)]
        assert_same_as_eager(scaled, calls=calls, is_whole=True, graphs=1)
    with config.patch(automatic_dynamic_shapes=False):
        calls = [(torch.ones(size), 2) for size in (3, 5, 7)]
        assert_same_as_eager(scaled, calls=calls, is_whole=True, graphs=3)
    captured, recorder, _ = captured_with(scaled)
    for size in (3, 5, 7):
        x = torch.ones(size)
        torch._dynamo.mark_dynamic(x, 0)
        assert same(captured(x, 2), scaled(torch.ones(size), 2))
    assert len(recorder.graphs) == 1


def test_a_parameter_has_numbers() -> None:
    captured, recorder, _ = captured_with(scaled)
    for size in (3, 5, 7):
        weight = torch.nn.Parameter(torch.ones(size))
        assert same(captured(weight, 2), scaled(weight, 2))
    assert len(recorder.graphs) == 3


def flagged(x: Any) -> Any:
    y = torch.nn.functional.dropout(x, 0.0, training=x.shape[0] > 2)
    return y.sum(-1, keepdim=x.shape[0] > 4), y.argsort(0, descending=x.shape[0] == 3)


def test_a_comparison_of_sizes_is_a_flag_of_an_operator() -> None:
    for sizes, graphs in (((3, 5, 7), 2), ((5, 7, 4, 2), 4)):
        assert_same_as_eager(flagged, calls=[(torch.ones(size, 2),) for size in sizes], is_whole=True, graphs=graphs)


def strided(x: Any) -> Any:
    return x.contiguous() + 1, x.is_contiguous(), x.reshape(-1)


def test_other_strides_of_symbols_are_noticed() -> None:
    captured, _, _ = captured_with(strided, recompile_limit=20)
    for rows, columns in ((3, 4), (5, 6), (4, 5), (2, 3)):
        for x in (torch.ones(rows, columns), torch.ones(columns, rows).T, torch.ones(rows, columns * 2)[:, ::2]):
            assert same(captured(x), strided(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_backend_that_traces_does_so_for_all_sizes(backend: str) -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    captured = compile(lambda x, n: ((x @ weight) * n + x.shape[0]).sum(), backend=backend)
    for size in (3, 4, 5, 6, 9):
        x = torch.arange(size * 4.0).reshape(size, 4)
        result = captured(x, size)
        assert torch.equal(result, ((x @ weight) * size + size).sum())
        (gradient,) = torch.autograd.grad(result, weight)
        assert torch.allclose(gradient, (x.T @ torch.ones(size, 4)) * size)


def seen(x: Any) -> Any:
    return x.shape[0] + 1, x.stride()


def test_a_view_without_elements_has_its_own_strides() -> None:
    x = torch.ones(1, requires_grad=True)[1::2]
    captured, _, _ = captured_with(seen)
    assert captured(x) == seen(x)


def joined(data: Any, leaf: Any) -> Any:
    first = torch.cat([data, leaf], 0).select(0, 0)
    return first.neg_()


def repeated(data: Any, leaf: Any) -> Any:
    return data.repeat(2)[: leaf.shape[0]] + leaf


def tailed(data: Any, leaf: Any) -> Any:
    """The backward multiplies by what may be calculated of the data once more, and reads their size."""
    return torch.cat([data, data.exp() * (leaf + 1)])


@pytest.mark.parametrize("program", [joined, repeated, tailed])
@pytest.mark.parametrize(
    "change", [lambda data: data.resize_(0), lambda data: data.zero_(), lambda data: data.resize_(9)]
)
def test_what_only_sizes_were_read_of_may_change_before_the_backward(program: Any, change: Any) -> None:
    """Autograd keeps the sizes alone, so does the backward."""
    compiled = compile(program, backend="aot_eager")
    for size in (1, 2, 3, 2):
        gradients: list[torch.Tensor] = []
        for run in (program, compiled):
            data, leaf = torch.arange(1.0, size + 1), torch.ones(1 if program is joined else size, requires_grad=True)
            result = run(data, leaf)
            change(data)
            if program is not tailed:
                with torch.no_grad():
                    leaf.zero_()
            gradients += torch.autograd.grad(result.sum(), leaf)
        assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_an_empty_image_after_others_is_captured_anew(backend: str) -> None:
    """A condition on the layout of images divides by their sizes."""

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pixel_shuffle(x, 2)

    compiled = refimpl.optimize(backend, dynamic=True)(shuffled)
    for sizes in ((2, 4, 1, 2), (0, 4, 1, 0), (3, 4, 1, 3), (1, 4, 0, 2)):
        x = torch.arange(math.prod(sizes)).view(sizes).to(memory_format=torch.channels_last)
        result, expected = compiled(x), shuffled(x)
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()


def test_a_number_that_was_a_flag_first_is_a_symbol_when_it_changes() -> None:
    """0, 1 and -1 are constants, and count as seen."""
    captured, recorder, _ = captured_with(lambda x, n: x + n)
    for n in (0, 5, 6, 7):
        assert captured(torch.zeros(2), n).tolist() == [n, n]
    assert len(recorder.graphs) == 2


@pytest.mark.parametrize(
    ("sources", "graphs"),
    [("L['x']", 1), ("L['y'], L['x']:0", 1), (r"L\['.*'\]", 1), ("L['x']:1", 3), ("L['y']", 3), ("", 3)],
)
def test_sources_are_named_dynamic(sources: str, graphs: int) -> None:
    captured, recorder, _ = captured_with(lambda x: x * x.shape[0])
    with config.patch(dynamic_sources=sources, automatic_dynamic_shapes=False):
        for size in (4, 5, 6):
            assert captured(torch.ones(size, 2)).tolist() == [[size] * 2] * size
    assert len(recorder.graphs) == graphs


def test_integers_are_named_dynamic() -> None:
    captured, recorder, _ = captured_with(lambda x, n: x + n)
    with config.patch(dynamic_sources="L['n']", specialize_int=True):
        for n in (3, 4, 5):
            assert captured(torch.zeros(2), n).tolist() == [n, n]
    assert len(recorder.graphs) == 1


def test_a_name_of_dynamic_sources_that_is_no_regular_expression_is_refused() -> None:
    with (
        config.patch(dynamic_sources="L['x']((, L['y']"),
        pytest.raises(BadParameter, match="in a list of sources: missing"),
    ):
        compile(lambda x: x + 1, backend="eager")(torch.ones(2))


def test_a_list_of_elements_has_as_many_as_the_tensor_when_its_size_varies() -> None:
    """The sizes are guarded, and the elements are not."""
    with config.patch(capture_scalar_outputs=True):
        whole, _, _ = captured_with(lambda x: [x.tolist() * 2, x.shape[0]])
        for size in (2, 3, 4, 3):
            x = torch.arange(size * size).reshape(size, size) + 3
            assert whole(x) == [x.tolist() * 2, size]


@pytest.mark.parametrize(
    "index", [lambda: torch.tensor(2), lambda: torch.as_tensor([-1]), lambda: torch.tensor(1).add_(1)]
)
def test_a_list_is_indexed_by_a_tensor_that_the_program_gives_as_a_number(index: Callable[[], Any]) -> None:
    def program(x: Any) -> Any:
        return [x, x + 1, x + 2][index()]

    x = torch.ones(2)
    assert refimpl.compile(program, backend="eager", fullgraph=True)(x).equal(program(x))


def test_equal_sizes_share_a_symbol_unless_a_setting_of_torch_says_they_do_not() -> None:
    calls = [(torch.ones(3, 3),), (torch.ones(4, 4),), (torch.ones(4, 5),)]

    def graphs() -> int:
        refimpl.reset()
        whole, recorder, _ = captured_with(lambda x: x * 2)
        for args in calls:
            assert whole(*args).equal(args[0] * 2)
        return len(recorder.graphs)

    assert graphs() == 3
    settings: Any = fx_config
    with settings.patch(use_duck_shape=False):
        assert graphs() == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_power_of_a_negative_number_keeps_its_brackets(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (-0.5) ** x + x * (-2) ** x.shape[0]

    compiled = refimpl.compile(program, backend=backend, dynamic=True)
    for size in (2, 3, 4):
        x = torch.arange(float(size))
        assert torch.equal(compiled(x), program(x))


def test_a_trace_of_a_power_of_a_negative_number_keeps_its_brackets() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (-2) ** x.shape[0]

    graph = refimpl.make_fx(program, tracing_mode="symbolic")(torch.ones(3))
    for size in (3, 4):
        assert torch.equal(graph(torch.ones(size)), program(torch.ones(size)))
