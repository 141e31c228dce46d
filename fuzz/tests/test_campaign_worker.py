"""The worker's tasks: a batch says of each program what judging it alone says, and what only the batch shows is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fuzz.program.structure import FuzzProgram
from oracle.isolate import Completed, Pool, Task
from oracle.subjects.registry import resolve
from oracle.symptom import Symptom


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=1, preload=("torch", "oracle.case", "fuzz.campaign.worker")) as made:
        yield made


def call(pool: Pool, function: str, subject: str, **payload: Any) -> dict[str, Any]:
    spec = resolve(f"compile:fuzz.tests.planted:{subject}").to_json()
    defaults = {
        "settings": {"focus": "ops", "max_statements": 2},
        "steering": {},
        "seed": 0,
        "limit_s": 60,
        "configs": {},
    }
    task = Task(
        key=function, function=f"fuzz.campaign.worker:{function}", payload={**defaults, "subject": spec, **payload}, group="",
        timeout_s=120, memory_bytes=4 * 2**30,
    )  # fmt: skip
    (result,) = pool.run([task])
    assert isinstance(result.end, Completed), result.end
    return result.end.value


def judged(pool: Pool, subject: str, *, count: int = 40, batch_size: int = 1, **payload: Any) -> dict[str, Any]:
    return call(pool, "judge_range", subject, numbers=list(range(count)), batch_size=batch_size, **payload)


def statuses(value: dict[str, Any]) -> dict[int, str]:
    return {item["number"]: item["status"] for item in value["programs"]}


def test_a_batch_says_of_each_program_what_judging_it_alone_says(pool: Pool) -> None:
    alone = judged(pool, "wrong_for_rank_two")
    together = judged(pool, "wrong_for_rank_two", batch_size=8)
    assert statuses(together) == statuses(alone)
    assert "fail_accuracy" in statuses(alone).values()
    found = [sorted(f["numbers"] for f in value["findings"]) for value in (alone, together)]
    assert found[0] == found[1]


def test_batches_of_what_agrees_are_few(pool: Pool) -> None:
    alone, together = judged(pool, "honest"), judged(pool, "honest", batch_size=8)
    assert statuses(together) == statuses(alone)
    assert alone["judgements"] == 40
    assert together["judgements"] <= 20
    assert {item["number"]: item["features"] for item in together["programs"]} == {
        item["number"]: item["features"] for item in alone["programs"]
    }


def test_what_only_a_batch_shows_is_a_finding_of_those_it_needs(pool: Pool) -> None:
    together = judged(pool, "wrong_in_company", batch_size=16)
    joint = [found for found in together["findings"] if len(found["numbers"]) > 1]
    assert joint
    found = min(joint, key=lambda f: len(f["numbers"]))
    assert 6 <= len(found["numbers"]) < 16
    again = call(pool, "judge_again", "wrong_in_company", program=found["program"], times=1)
    assert again["shown"]
    assert Symptom.from_json(again["symptom"]) == Symptom.from_json(found["symptom"])
    assert len(FuzzProgram.from_json(found["program"]).arguments) >= 6


def test_programs_have_the_configuration_of_their_number(pool: Pool) -> None:
    held = {"3": {"torch._inductor.config.cpp.simdlen": 1}}
    value = call(pool, "draw_range", "honest", numbers=[2, 3], configs=held)
    configs = {item["number"]: FuzzProgram.from_json(item["program"]).config for item in value["programs"]}
    assert "torch._inductor.config.cpp.simdlen" not in configs[2]
    assert configs[3]["torch._inductor.config.cpp.simdlen"] == 1
