"""Compares two tracers on one program, in a worker: results, operators, guards, a second size.

The tracers are parameters, so that tests can pass tracers that are wrong on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from oracle.program.build import Instance
from oracle.verdict import Status, Verdict
from suites.traces.graphs import compare_ops, node_count, op_counts, whole_slices
from suites.traces.records import (
    BOTH_REFUSE,
    DIFFERS,
    EQUAL,
    MISSING,
    NOT_COMPARABLE,
    Difference,
    TraceCase,
    TraceRow,
)
from suites.traces.second_size import Candidates, SecondSize, run_second_size
from suites.traces.tracing import (
    NO_MEASURE,
    AlreadyTraced,
    Refused,
    Traced,
    TraceOnce,
    Tracer,
    judged,
    malformed,
    trace_or_refusal,
)


def compare_tracers(
    case: TraceCase,
    *,
    make: Callable[[], Instance],
    ours: Tracer,
    theirs: Tracer,
    candidates: Candidates,
    progress: Callable[[str], None] = lambda stage: None,
) -> TraceRow:
    """The row of a case. `make` makes instances of its program; `candidates` proposes other inputs for an instance."""
    started = time.perf_counter()
    progress("ours")
    subject = TraceOnce(ours)
    verdict = judged(make, subject)
    if verdict.status is Status.MODEL_FAIL_TO_LOAD:
        return TraceRow.of(case, status=MISSING, verdict=verdict.status.value, symptom=verdict.symptom)
    progress("theirs")
    instance = make()
    args, kwargs = instance.inputs(0)
    reference = trace_or_refusal(theirs, instance.target, args, kwargs)
    is_wrong = isinstance(subject.outcome, Traced) and verdict.status is not Status.PASS
    its_status = None
    if is_wrong and isinstance(reference, Traced):
        its_status = judged(make, AlreadyTraced(theirs.spec, reference)).status
    row = _row(case, verdict, subject.outcome, reference, its_status)
    if case.mode == "symbolic" and isinstance(subject.outcome, Traced) and row.status != NOT_COMPARABLE:
        progress("second size")
        second = run_second_size(make(), ours=subject.outcome, theirs=reference, spec=ours.spec, candidates=candidates)
        row = _with_second_size(row, second)
    return replace(row, seconds=round(time.perf_counter() - started, 3))


def _row(
    case: TraceCase,
    verdict: Verdict,
    mine: Traced | Refused | None,
    its: Traced | Refused,
    its_status: Status | None,
) -> TraceRow:
    """The row without a second size. `its_status` is the judge's status for torch's graph, if it was judged."""
    row = TraceRow.of(case, status=EQUAL, verdict=verdict.status.value, symptom=verdict.symptom[:500])
    if isinstance(its, Traced):
        row = replace(row, nodes_torch=node_count(its.module), guards_torch=len(its.guards()))
    else:
        row = replace(row, error_torch=its.error)
    if mine is None or verdict.status is Status.EAGER_FAIL_TO_RUN:
        return replace(row, status=NOT_COMPARABLE)
    if isinstance(mine, Refused):
        row = replace(row, error_ours=mine.error)
        if isinstance(its, Refused):
            return replace(row, status=BOTH_REFUSE)
        return _with(row, Difference(aspect="refusal", detail=mine.error))
    row = replace(
        row,
        aten_calls=op_counts(mine.module).total(),
        nodes_ours=node_count(mine.module),
        guards_ours=len(mine.guards()),
    )
    if verdict.status in NO_MEASURE:
        row = replace(row, status=NOT_COMPARABLE)
    elif verdict.status is not Status.PASS:
        detail = f"{verdict.status.value}: {verdict.symptom[:300]}"
        row = _with(row, Difference(aspect="values", detail=detail, torch_too=verdict.status is its_status))
    complaint = malformed(mine.module)
    if not complaint and case.mode == "symbolic" and getattr(mine.module, "shape_env", None) is None:
        complaint = "the graph module has no shape_env"
    if complaint:
        row = _with(row, Difference(aspect="malformed", detail=complaint))
    if isinstance(its, Refused):
        return _with(row, Difference(aspect="torch_refuses", detail=its.error))
    ops = compare_ops(mine.module, its.module)
    if not ops.is_none:
        row = _with(row, Difference(aspect="ops", detail=ops.describe()))
    return replace(
        row,
        only_ours=ops.only_ours,
        only_torch=ops.only_theirs,
        whole_slices_ours=whole_slices(mine.module),
        whole_slices_torch=whole_slices(its.module),
    )


def _with(row: TraceRow, difference: Difference) -> TraceRow:
    return replace(row, status=DIFFERS, differences=(*row.differences, difference))


def _with_second_size(row: TraceRow, second: SecondSize) -> TraceRow:
    row = replace(
        row,
        second=second.word,
        second_input=second.label,
        second_tried=second.tried,
        guards_differ=second.guards,
    )
    for difference in second.differences:
        row = _with(row, difference)
    return row
