"""Task function of `torch-oracle metadata`: one program, from its plan to its row. Runs in a worker."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from oracle.hygiene import seed_everything
from oracle.program import Program
from oracle.program.build import ProgramLoadError, instantiate
from suites.traces.metadata import CallResult, run_check
from suites.traces.metadata_records import AGREES, DIFFERS, NOT_COMPARABLE, MetadataRow
from suites.traces.records import MISSING, TraceCase
from suites.traces.tracing import one_line

_known: dict[str, dict[Hashable, CallResult]] = {"static": {}, "symbolic": {}}


def run_case(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Task function: {"case": TraceCase}, its mode the kind of sizes -> {"row": MetadataRow}."""
    progress("load")
    return {"row": check_case(TraceCase.from_json(payload["case"])).to_json()}


def check_case(case: TraceCase) -> MetadataRow:
    """The row of a case. Aten calls that this process has checked before are not checked again."""
    try:
        instance = instantiate(Program.from_json(case.program))
    except ProgramLoadError as error:
        return MetadataRow.of(case, status=MISSING, symptom=one_line(error))
    args, kwargs = instance.inputs(0)
    seed_everything(instance.program.seed)
    try:
        state = run_check(instance.target, args, kwargs, shapes=case.mode, known=_known[case.mode])
    except Exception as error:  # eager raises: there is nothing to compare
        return MetadataRow.of(case, status=NOT_COMPARABLE, symptom=one_line(error))
    return MetadataRow.of(
        case,
        status=DIFFERS if state.differences else AGREES,
        calls=state.calls,
        compared=state.compared,
        skipped={f"{op}: {why}": count for (op, why), count in state.skipped.items()},
        differences=tuple(state.differences),
    )
