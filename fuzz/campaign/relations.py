"""Metamorphic relations in a campaign: on which programs they are tried, and what happens with their results.

A relation (`fuzz.judge.metamorphic`) is tried on a program that was judged alone and agrees, if its number is a multiple of
`every`; the number also decides which relation. A broken relation is handled like any finding: judged again in another task,
reduced (each candidate must break the relation too), and put into a bucket with the relation's name in its kind. Which programs
are drawn does not depend on relations. Does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundProgram, Work, inputs_of_json
from oracle.isolate import Completed, End, Failed
from oracle.sweep import verdict_of_end
from oracle.symptom import symptom_of, with_relation
from oracle.verdict import Status

EVERY = 25
# For subjects with batches: a relation needs two compiles for one program, a batch one for sixteen.
EVERY_OF_BATCHED = 100
NONE_APPLIES = "none applies"
_STAGE = re.compile(r"^relation (?P<name>[\w ]+): (?P<stage>.*)$")


def every(settings: CampaignSettings) -> int:
    """A relation may be tried on each program whose number is a multiple of this."""
    return EVERY_OF_BATCHED if settings.batch_size > 1 else EVERY


def ask_relation(item: Mapping[str, Any], round_number: int, settings: CampaignSettings, state: CampaignState) -> None:
    """Plan a relation for a judged program, if its number says so and it agrees. `item`: the worker's result for the program."""
    is_asked = item["number"] % every(settings) == 0 and settings.subject.kind != "eager"
    if is_asked and item["status"] == Status.PASS.value and item["program"] is not None:
        state.add_work(Work(kind="relate", round=round_number, numbers=(item["number"],), program=item["program"]))


def take_related(work: Work, end: End, state: CampaignState) -> FoundProgram | None:
    """Count a relation that was tried. Returns the finding, if there is one."""
    assert work.program is not None
    if isinstance(end, Completed):
        value: Any = end.value
        state.relations[value["relation"] or NONE_APPLIES] += 1
        if not value["shown"]:
            return None
        return FoundProgram(
            numbers=work.numbers, program=work.program, verdict=value["verdict"], symptom=value["symptom"],
            traceback=value["traceback"], relation=value["relation"], inputs=inputs_of_json(value.get("inputs", ())),
        )  # fmt: skip
    found = None if isinstance(end, Failed) else _STAGE.match(end.stage)
    if isinstance(end, Failed) or found is None:
        state.note_error(f"relation of program {work.numbers[0]}: {end.error if isinstance(end, Failed) else end}")
        return None
    state.relations[found["name"]] += 1
    verdict = verdict_of_end(replace(end, stage=found["stage"]))
    if not verdict.status.is_finding:
        return None
    verdict = replace(verdict, symptom=with_relation(found["name"], verdict.symptom))
    symptom = symptom_of(verdict).to_json()
    return FoundProgram(
        numbers=work.numbers, program=work.program, verdict=verdict.to_json(), symptom=symptom, relation=found["name"]
    )


def relation_lines(state: CampaignState) -> list[str]:
    """Lines of the summary that count the relations tried."""
    if not state.relations:
        return []
    asked = {name: count for name, count in state.relations.most_common() if name != NONE_APPLIES}
    differed = sum(bucket.count + bucket.alike for bucket in state.buckets.values() if bucket.relation)
    text = ", ".join(f"{count} {name}" for name, count in asked.items())
    return [
        f"  relations: {sum(asked.values())} asked ({text}), {differed} broken"
        if asked
        else "  relations: none applied"
    ]
