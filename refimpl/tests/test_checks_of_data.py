"""What a program checks of numbers read from data is checked in its graphs, in all rooms. Eager is the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import refimpl
import refimpl.export
from refimpl.capture.config import config
from refimpl.tests.corpus.checks import PROGRAMS, CheckedProgram, in_the_backward


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _exported(program: CheckedProgram, *, strict: bool, decomposed: bool = False) -> Any:
    exported = refimpl.export.export(_Module(program.function), (torch.tensor(program.fits),), strict=strict)
    return (exported.run_decompositions() if decomposed else exported).module()


_WAYS: dict[str, Callable[[CheckedProgram], Any]] = {
    "captured": lambda program: refimpl.compile(program.function, backend="aot_eager", fullgraph=True),
    "aot": lambda program: refimpl.compile_aot(program.function),
    "aot, dynamic": lambda program: refimpl.compile_aot(program.function, dynamic=True, partition="min_cut"),
    "exported": lambda program: _exported(program, strict=False),
    "exported, strict": lambda program: _exported(program, strict=True),
    "exported, decomposed": lambda program: _exported(program, strict=False, decomposed=True),
}
_CAPTURED = ("captured", "exported, strict")
# What a way refuses: the program's name -> a part of the message.
_REFUSED = {"exported, strict": {"size_that_depends_on_data": "a number that only the captured graph has"}}


@pytest.mark.fractional
@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_values_that_violate_a_check_raise(program: CheckedProgram, way: str) -> None:
    refimpl.reset()
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        refusal = _REFUSED.get(way, {}).get(str(program))
        if way in _CAPTURED and not program.captured:
            refusal = "data-dependent"
        if refusal is not None:
            with pytest.raises(Exception, match=refusal):
                _WAYS[way](program)(torch.tensor(program.fits))
            return
        compiled = _WAYS[way](program)
        assert torch.equal(compiled(torch.tensor(program.fits)), program.function(torch.tensor(program.fits)))
        for values in program.fails:
            with pytest.raises(RuntimeError):
                program.function(torch.tensor(values))
            with pytest.raises(RuntimeError, match=r"Runtime assertion failed|Expected cond to be True"):
                compiled(torch.tensor(values))


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_a_check_in_the_backward_runs_there(partition: Any) -> None:
    compiled = refimpl.compile_aot(in_the_backward, partition=partition)
    fits = torch.tensor([5.0, 1.0], requires_grad=True)
    compiled(fits).sum().backward()
    assert fits.grad is not None
    assert fits.grad.tolist() == [2, 2]
    result = compiled(torch.tensor([1.0, 1.0], requires_grad=True))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        result.sum().backward()
