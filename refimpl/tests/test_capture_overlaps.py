"""Writes to memory that a call reads as well: an error in captured programs where eager mode raises one, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.decompositions import codegen_decompositions
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


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_captured_programs_raise_what_eager_raises(program: Callable[[Any], Any], dynamic: bool | None) -> None:
    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=dynamic))
    assert outcome(captured) == outcome(program)


def test_a_decomposition_does_not_hide_it() -> None:
    compiled = compile_aot(assigns_itself, decompositions=codegen_decompositions())
    assert outcome(compiled) == outcome(assigns_itself) != "no error"
