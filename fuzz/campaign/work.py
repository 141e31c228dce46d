"""Selects the next pieces of work, and makes tasks for the pool of them. Does not import torch."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from fuzz.campaign.relations import every
from fuzz.campaign.rounds import factors_of
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, Work
from oracle.isolate import Task
from oracle.verdict import Status

# A worker ends itself at a program's limit; this limit is for one that cannot.
_RANGE_SLACK_S = 300.0
_DRAW_SECONDS_PER_PROGRAM = 5.0
_REDUCTION_SLACK_S = 60.0
_PROGRAMS_OF_A_RUN = 240  # in one run of the pool, for each worker; findings are confirmed and reduced between two runs
_REDUCTIONS_PER_SYMPTOM = 3  # in one run of the pool, since many programs may show the same bug
JUDGE_RELATED = "fuzz.judge.relation:judge_related"
_PROGRAMS_OF_A_RELATION = 4  # two programs, each in eager and on the subject
REPEATS = 3  # a finding runs up to so many times in another task, until it shows again
SCALAR_CODE: Mapping[str, Any] = {"torch._inductor.config.cpp.simdlen": 1}  # loops without vector instructions


def selected_work(settings: CampaignSettings, state: CampaignState, *, only_findings: bool) -> list[tuple[int, Work]]:
    """The work of the next run of the pool, most urgent first. `only_findings`: no new programs."""
    reductions: list[tuple[int, Work]] = []
    per_symptom: Counter[tuple[str, str]] = Counter()
    most = 2 * settings.workers + 2
    ranges, others, sorts, relations = [], [], [], []
    for number, work in state.work.items():
        match work.kind:
            case "reduce":
                assert work.found is not None
                key = work.found.symptom_key
                if len(reductions) < most and per_symptom[key] < _REDUCTIONS_PER_SYMPTOM:
                    per_symptom[key] += 1
                    reductions.append((number, work))
            case "range":
                ranges.append((number, work))
            case "relate":
                relations.append((number, work))
            case "sort":
                sorts.append((number, work))
            case _:
                others.append((number, work))
    if only_findings:
        return [*reductions, *others]
    least = 2 * settings.processes
    return [
        *reductions,
        *others,
        *relations,
        *sorts,
        *_first(ranges, _PROGRAMS_OF_A_RUN * settings.workers, least=least),
    ]


def _first(ranges: Sequence[tuple[int, Work]], programs: int, *, least: int) -> Sequence[tuple[int, Work]]:
    """The first ranges that hold about `programs` programs, and at least `least` ranges."""
    held = list(itertools.accumulate(len(work.numbers) for _, work in ranges))
    return ranges[: max(least, bisect.bisect_right(held, programs))]


def task_of(key: int, work: Work, settings: CampaignSettings, state: CampaignState) -> Task:
    """The task for a piece of work; its key is the number of the work."""
    subject = settings.subject.to_json()
    payload: dict[str, Any] = {"subject": subject}
    match work.kind:
        case "range" | "sort" | "draw":
            payload |= _range_payload(work, settings, state)
            function = "fuzz.campaign.worker:judge_range" if work.kind == "range" else "fuzz.campaign.worker:draw_range"
            seconds = settings.case_timeout_s if work.kind == "range" else _DRAW_SECONDS_PER_PROGRAM
            timeout = seconds * len(work.numbers) + _RANGE_SLACK_S
        case "confirm":
            assert work.found is not None
            # A program that ran out of time is run once, with the time of all repeats together.
            times = 1 if work.found.symptom["status"] == Status.TIMEOUT.value else REPEATS
            payload |= {"program": dict(work.found.program), "times": times}
            function, timeout = "fuzz.campaign.worker:judge_again", settings.case_timeout_s * REPEATS
            if work.found.relation:
                payload |= {"relation": work.found.relation}
                function, timeout = JUDGE_RELATED, _PROGRAMS_OF_A_RELATION * timeout
        case "relate":
            payload |= {"program": work.program, "turn": work.numbers[0] // every(settings), "times": 1}
            function, timeout = JUDGE_RELATED, _PROGRAMS_OF_A_RELATION * settings.case_timeout_s
        case "reduce":
            assert work.found is not None
            payload |= {
                "program": dict(work.found.program),
                "symptom": dict(work.found.symptom),
                "budget_s": settings.reduction_s,
                "relation": work.found.relation,
            }
            function = "fuzz.reduce.task:reduce_finding"
            timeout = 2 * settings.reduction_s + settings.case_timeout_s + _REDUCTION_SLACK_S
        case other:
            assert_never(other)  # pyright: ignore[reportArgumentType]
    return Task(
        key=str(key),
        function=function,
        payload=payload,
        group=f"{work.kind} {key}",
        timeout_s=timeout,
        memory_bytes=settings.memory_bytes,
        environment=tuple(sorted(settings.subject.env.items())),
    )


def _range_payload(work: Work, settings: CampaignSettings, state: CampaignState) -> dict[str, Any]:
    return {
        "settings": settings.grammar_settings(),
        "steering": factors_of(state, work.round),
        "seed": settings.seed,
        "numbers": list(work.numbers),
        "batch_size": work.batch_size,
        "limit_s": settings.case_timeout_s,
        "shown": [number for number in work.numbers if number in state.awaiting_draw],
        "configs": {str(number): dict(SCALAR_CODE) for number in work.numbers if settings.is_scalar(number)},
    }
