"""Task function of `torch-oracle traces`: one case, from its plan to its row. Runs in a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from oracle.program import Program
from oracle.program.build import Instance, instantiate
from oracle.subjects.registry import load, resolve
from suites.opinfo.calls import direct
from suites.opinfo.database import entry
from suites.opinfo.generate import SampleKey, sample_list
from suites.traces import OURS, THEIRS
from suites.traces.comparing import compare_tracers
from suites.traces.records import TraceCase
from suites.traces.second_size import Candidates
from suites.traces.sizes import SecondInput, enlargements, same_structure
from suites.traces.tracing import Tracer

NEIGHBOURS_SHOWN = 4  # number of other samples with the same structure to try before enlarged inputs


def run_case(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Task function: {"case": TraceCase} -> {"row": TraceRow}."""
    progress("load")
    case = TraceCase.from_json(payload["case"])
    program = Program.from_json(case.program)
    row = compare_tracers(
        case,
        make=lambda: instantiate(program),
        ours=_tracer(f"{OURS}[mode={case.mode}]"),
        theirs=_tracer(f"{THEIRS}[mode={case.mode}]"),
        candidates=_candidates_of(case),
        progress=progress,
    )
    return {"row": row.to_json()}


@functools.lru_cache(maxsize=8)
def _tracer(name: str) -> Tracer:
    return cast("Tracer", load(resolve(name)))


def _candidates_of(case: TraceCase) -> Candidates:
    if case.suite == "models":
        return _of_model
    return functools.partial(_of_sample, case)


def _of_model(instance: Instance) -> Iterator[SecondInput]:
    """Candidates for a model. Only the inputs change sizes, never parameters and buffers; inputs are the last arguments."""
    args, kwargs = instance.inputs(0)
    fixed = len(pytree.tree_leaves(args[:-1]))
    return enlargements(args, kwargs, is_resizable=lambda leaf: leaf >= fixed)


def _of_sample(case: TraceCase, instance: Instance) -> Iterator[SecondInput]:
    """Candidates for a sample: other samples of the operator with the same structure, then this one enlarged."""
    args, kwargs = instance.inputs(0)
    if case.direction == "forward":
        yield from _neighbours(case, (args, kwargs))
    yield from enlargements(args, kwargs, is_resizable=lambda leaf: True)


def _neighbours(case: TraceCase, own: Any) -> Iterator[SecondInput]:
    key = SampleKey(op=case.group, dtype=case.dtype, source="sample", device="cpu", requires_grad=False)
    shown = 0
    for index, one in enumerate(sample_list(key).samples):
        call = direct(entry(case.group), one, False)
        if same_structure(own, (call.args, call.kwargs)) and not _binds_something(one.kwargs):
            yield SecondInput(args=call.args, kwargs=call.kwargs, label=f"sample {index}")
            shown += 1
        if shown == NEIGHBOURS_SHOWN:
            return


def _binds_something(kwargs: Mapping[str, Any]) -> bool:
    """Whether a sample has a function or a generator among its arguments, which makes it a program of its own."""
    return any(callable(value) or isinstance(value, torch.Generator) for value in kwargs.values())
