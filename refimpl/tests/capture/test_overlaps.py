"""Writes to memory that a call reads as well, or in which elements share places: errors and values are eager mode's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.capture.public.errors import Unsupported
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.functionalize.errors import CannotFunctionalize
from refimpl.pipeline import compile_aot

PLACES = (0, 1, 2, 3)


def assigns_itself(m: Any) -> None:
    m[torch.tensor(range(6))] = m


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "shifted sum": lambda m: m[:4].add_(m[2:]),
    "sum with itself": lambda m: m.add_(m),
    "sum with a view of itself": lambda m: m.add_(m.view(6)),
    "sum with its transpose": lambda m: m[:4].view(2, 2).add_(m[:4].view(2, 2).t()),
    "sum with what is beside it": lambda m: m[:3].add_(m[3:]),
    "sum of what lies in between": lambda m: m[::2].add_(m[1::2]),
    "sum with a row of itself": lambda m: m.view(2, 3).add_(m.view(2, 3)[0]),
    "shifted copy": lambda m: m[:4].copy_(m[2:]),
    "copy of itself": lambda m: m[:1].expand(3).copy_(m[:1].expand(3)),
    "comparison": lambda m: m[:4].eq_(m[2:]),
    "out=": lambda m: torch.add(m[2:], 1, out=m[:4]),
    "sum into an expanded tensor": lambda m: m[:1].expand(3).add_(1),
    "activation of an expanded tensor": lambda m: torch.nn.functional.mish(m[:1].expand(3), inplace=True),
    "zeros in an expanded tensor": lambda m: m[:1].expand(3).zero_(),
    "assignment of itself": assigns_itself,
    "accumulation beside": lambda m: m[:3].index_put_((torch.tensor(PLACES[:3]),), m[3:], accumulate=True),
    "scatter": lambda m: m[:4].scatter_(0, torch.tensor(PLACES), m[2:]),
    "scatter of itself": lambda m: m[:4].scatter_(0, torch.tensor(PLACES), m[:4]),
    "scatter of a number": lambda m: m[:4].scatter_(0, torch.tensor(PLACES), 1.0),
    "index_add": lambda m: m[:4].index_add_(0, torch.tensor(PLACES), m[2:]),
    "index_select": lambda m: torch.index_select(m[2:], 0, torch.tensor(PLACES), out=m[:4]),
    "cat": lambda m: torch.cat([m[2:4], m[4:]], out=m[:4]),
    "ldexp": lambda m: m[:4].ldexp_(m[2:]),
}


def outcome(function: Callable[[Any], Any]) -> str:
    try:
        function(torch.arange(6.0))
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.fractional
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_captured_programs_raise_what_eager_raises(program: Callable[[Any], Any], dynamic: bool | None) -> None:
    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=dynamic))
    assert outcome(captured) == outcome(program)


def test_a_decomposition_does_not_hide_it() -> None:
    compiled = compile_aot(assigns_itself, decompositions=codegen_decompositions())
    assert outcome(compiled) == outcome(assigns_itself) != "no error"


def of_one_place(m: Any) -> Any:
    return m[:1].expand(3)


def windows(m: Any) -> Any:
    return m.as_strided((5, 2), (1, 1))


ONE = torch.tensor([1])
UPDATES: dict[str, Callable[[Any], Any]] = {
    "index_fill": lambda m: of_one_place(m).index_fill_(0, ONE, 3.0),
    "masked_fill": lambda m: of_one_place(m).masked_fill_(torch.tensor([False, True, False]), 3.0),
    "index_put": lambda m: of_one_place(m).index_put_((ONE,), torch.tensor([3.0])),
    "sum in windows": lambda m: windows(m).add_(2),
    "sum in windows by unfold": lambda m: m.unfold(0, 3, 1).add_(2),
    "sum in windows, out=": lambda m: torch.add(windows(m), 1, out=windows(m)),
    "product of lists": lambda m: torch._foreach_mul_([windows(m)], 2.0),
    "operator": lambda m: operator.imul(windows(m).t(), 2),
}
NO_UPDATES: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda m: of_one_place(m).zero_(),
    "diagonal of an expanded tensor": lambda m: m[:3].expand(3, 3).fill_diagonal_(4.0),
    "filled windows": lambda m: windows(m).fill_(3.0),
    "copy to windows": lambda m: windows(m).copy_(torch.arange(10.0).view(5, 2)),
    "element of windows": lambda m: windows(m)[1].add_(1),
    "element of an expanded tensor": lambda m: of_one_place(m)[1].mul_(7),
    "sum written to windows": lambda m: torch.add(torch.ones(5, 2), torch.arange(10.0).view(5, 2), out=windows(m)),
    "transposed": lambda m: m.view(2, 3).t().index_fill_(0, ONE, 3.0),
    "rows with gaps": lambda m: m.view(2, 3)[:, 1:].t().mul_(3),
    "interleaved": lambda m: m.as_strided((2, 2), (3, 2)).add_(1),
    "of one element": lambda m: m[:1].expand(1).index_fill_(0, torch.tensor([0]), 3.0),
}


def written(function: Callable[[Any], Any], size: int = 6) -> list[float]:
    memory = torch.arange(1.0, size + 1)
    function(memory)
    return memory.tolist()


@pytest.mark.fractional
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", (UPDATES | NO_UPDATES).values(), ids=UPDATES | NO_UPDATES)
def test_elements_that_share_places_are_written_as_in_eager_mode(
    program: Callable[[Any], Any], dynamic: bool | None
) -> None:
    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=dynamic))
    assert written(captured) == written(program)


@pytest.mark.parametrize("program", NO_UPDATES.values(), ids=NO_UPDATES)
def test_what_has_a_functional_form_stays_in_one_graph(program: Callable[[Any], Any]) -> None:
    captured = with_options(program, CaptureOptions(backend=aot_eager, fullgraph=True))
    assert written(captured) == written(program)


@pytest.mark.parametrize("decompositions", [None, codegen_decompositions()], ids=["whole", "decomposed"])
@pytest.mark.parametrize("program", UPDATES.values(), ids=UPDATES)
def test_updates_of_shared_places_are_refused_by_name(program: Callable[[Any], Any], decompositions: Any) -> None:
    with pytest.raises(Unsupported, match="RC0026"):
        written(with_options(program, CaptureOptions(backend=aot_eager, fullgraph=True)))
    with pytest.raises(CannotFunctionalize, match="overlapping elements"):
        written(compile_aot(program, decompositions=decompositions or {}))


def norm(m: Any, mean: int, variance: int, *, weight: int = 12, bias: int = 15, training: bool = True) -> Any:
    """Batch norm of the first six elements as two rows of three channels. Its operands are three elements from these on."""
    operands = [m[begin : begin + 3] for begin in (mean, variance, weight, bias)]
    return torch.nn.functional.batch_norm(m[:6].view(2, 3), *operands, training=training)


def squares(m: Any) -> Any:
    return m[:16].view(4, 4)


def block(m: Any, start: int) -> Any:
    return m[start : start + 4].view(2, 2)


READ_AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "bias is the variance": lambda m: norm(m, 6, 9, bias=9),
    "weight meets the mean": lambda m: norm(m, 6, 9, weight=4),
    "mean is the variance": lambda m: norm(m, 6, 6),
    "product with itself": lambda m: m[:3].addmv_(m[3:12].view(3, 3), m[:3]),
    "product into a factor": lambda m: torch.bmm(m[:8].view(2, 2, 2), m[8:16].view(2, 2, 2), out=m[:8].view(2, 2, 2)),
    "sum into a row": lambda m: torch.sum(squares(m), 0, out=squares(m)[0]),
    "copy to the right": lambda m: squares(m)[:, 1:].copy_(squares(m)[:, :-1]),
    "assignment to the right": lambda m: operator.setitem(squares(m), (slice(None), slice(1, 4)), squares(m)[:, :3]),
    "sum to the right": lambda m: squares(m)[:, 1:].add_(squares(m)[:, :-1]),
    "quotient by an element": lambda m: squares(m)[:, 1:].div_(m[2]),
}
READ_BEFORE: dict[str, Callable[[Any], Any]] = {
    "norm of its own memory": lambda m: norm(m, 6, 9),
    "norm in evaluation": lambda m: norm(m, 6, 9, bias=9, training=False),
    "copy to the left": lambda m: squares(m)[:, :-1].copy_(squares(m)[:, 1:]),
    "product to the left": lambda m: squares(m)[:, :-1].mul_(squares(m)[:, 1:]),
    "product with what lies in between": lambda m: m[::2].mul_(m[1::2]),
    "product of halves": lambda m: squares(m)[:, :2].mul_(squares(m)[:, 2:]),
    "filled with an element": lambda m: squares(m)[:, 1:].fill_(m[2]),
    "square": lambda m: m.mul_(m),
    "bounded by itself": lambda m: torch.clamp(m, m, 2 * m, out=m),
    "product added to what is there": lambda m: torch.addmm(block(m, 0), block(m, 4), block(m, 8), out=block(m, 0)),
    "running sum in place": lambda m: torch.cumsum(m, 0, out=m),
    "product beside it": lambda m: torch.mm(m[:4].view(2, 2), m[:4].view(2, 2), out=m[4:8].view(2, 2)),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", (READ_AFTERWARDS | READ_BEFORE).values(), ids=READ_AFTERWARDS | READ_BEFORE)
def test_what_is_read_after_a_write_is_what_was_written(program: Callable[[Any], Any], dynamic: bool | None) -> None:
    def changed(function: Callable[[Any], Any]) -> tuple[torch.Tensor, Any]:
        memory = torch.arange(1.0, 19.0).square() / 16
        return memory, function(memory)

    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=dynamic))
    torch.testing.assert_close(changed(captured), changed(program))


@pytest.mark.parametrize("decompositions", [None, codegen_decompositions()], ids=["whole", "decomposed"])
@pytest.mark.parametrize("program", READ_AFTERWARDS.values(), ids=READ_AFTERWARDS)
def test_reads_after_writes_are_refused_by_name(program: Callable[[Any], Any], decompositions: Any) -> None:
    with pytest.raises(Unsupported, match="RC0027"):
        written(with_options(program, CaptureOptions(backend=aot_eager, fullgraph=True)), 18)
    with pytest.raises(CannotFunctionalize, match="that it also reads as another argument"):
        written(compile_aot(program, decompositions=decompositions or {}), 18)


@pytest.mark.parametrize("program", READ_BEFORE.values(), ids=READ_BEFORE)
def test_reads_before_writes_stay_in_one_graph(program: Callable[[Any], Any]) -> None:
    captured = with_options(program, CaptureOptions(backend=aot_eager, fullgraph=True))
    assert written(captured, 18) == written(program, 18)


def test_arguments_that_come_to_share_memory_are_another_graph() -> None:
    def program(x: Any, mean: Any, variance: Any, bias: Any) -> Any:
        return torch.nn.functional.batch_norm(x, mean, variance, None, bias, training=True)

    captured = with_options(program, CaptureOptions(backend=aot_eager))
    for bias in (9, 12, 8, 9):
        memory, expected = torch.arange(16.0), torch.arange(16.0)
        results = [
            function(m[:6].view(2, 3), m[6:9], m[9:12], m[bias : bias + 3])
            for function, m in ((captured, memory), (program, expected))
        ]
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(memory, expected)


def test_a_size_that_comes_out_as_nothing_or_one_shares_no_places() -> None:
    def program(m: torch.Tensor, count: int) -> torch.Tensor:
        rows = m.new_zeros(4).as_strided((4, m.shape[0] - count), (1, 1))
        return rows.masked_fill_(rows < 1, 2.0)

    captured = with_options(program, CaptureOptions(backend=aot_eager, fullgraph=True, dynamic=True))
    for size in (5, 6):
        memory = torch.arange(float(size))
        assert captured(memory, 5).tolist() == program(memory, 5).tolist()


def test_a_stride_that_becomes_too_small_is_another_graph() -> None:
    def program(m: Any, width: Any) -> None:
        m.as_strided((3, width.shape[0]), (3, 1)).add_(1)

    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=True))
    for width in map(torch.ones, (2, 3, 4, 5, 2)):
        memory, expected = torch.arange(12.0), torch.arange(12.0)
        captured(memory, width)
        program(expected, width)
        assert memory.tolist() == expected.tolist()
