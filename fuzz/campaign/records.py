"""A campaign's findings as records, for the results database. Does not import torch."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundBucket
from fuzz.campaign.summary import repeat_command
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.records import Measurements, PlannedCase, Record, RecordSink
from oracle.verdict import Compared, Status, Verdict

SUITE = "fuzz"


def write_records(
    sink: RecordSink,
    settings: CampaignSettings,
    state: CampaignState,
    *,
    environment: Mapping[str, Any],
    corpus: Path | None,
    is_interrupted: bool,
) -> str:
    """Write a run with one record for each bucket, and one for the programs that agreed. Returns its id."""
    run_id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
    rows = [_bucket_row(bucket, settings, corpus) for bucket in state.buckets.values()]
    rows.append(_campaign_row(settings, state))
    sink.begin_run(run_id=run_id, environment=environment, arguments={"fuzz": settings.to_json()})
    sink.plan(run_id, [case for case, _, _ in rows])
    sink.finish_planning(run_id)
    sink.append(
        Record.of(case, run_id=run_id, verdict=verdict, repro=repro, seed=settings.seed, measurements=Measurements())
        for case, verdict, repro in rows
    )
    sink.end_run(run_id, state="interrupted" if is_interrupted else "complete")
    return run_id


def _bucket_row(
    bucket: FoundBucket, settings: CampaignSettings, corpus: Path | None
) -> tuple[PlannedCase, Verdict, str]:
    program = FuzzProgram.from_json(bucket.program)
    verdict = bucket.parsed_verdict()
    if bucket.known:
        verdict = replace(verdict, status=Status.KNOWN, issue=bucket.known, observed=verdict.status.value)
    case = PlannedCase(
        case_id=f"{SUITE}/{bucket.key}@{settings.subject.name}",
        suite=SUITE,
        group=bucket.kind[:60] or bucket.status,
        name=bucket.key,
        subject=settings.subject.name,
        direction="backward" if any(call.backward for call in program.calls) else "forward",
        tags=tuple(word for word in (bucket.rung, bucket.opinion) if word),
        program=to_program(program, name=bucket.key).to_json(),
    )
    return case, verdict, repeat_command(bucket, settings, corpus=corpus)


def _campaign_row(settings: CampaignSettings, state: CampaignState) -> tuple[PlannedCase, Verdict, str]:
    """One row for the programs that agreed, so that a campaign without findings is not an empty run."""
    name = f"seed-{settings.seed}-{settings.focus}"
    agreed = state.statuses[Status.PASS.value]
    text = ", ".join(f"{count} {status}" for status, count in state.statuses.most_common())
    case = PlannedCase(
        case_id=f"{SUITE}/{name}@{settings.subject.name}",
        suite=SUITE,
        group="campaign",
        name=name,
        subject=settings.subject.name,
    )
    status = Status.PASS if agreed else Status.PASS_DUE_TO_SKIP
    verdict = Verdict(status=status, symptom=f"{state.programs} programs: {text}", compared=Compared(others=agreed))
    return case, verdict, ""
