"""Judges one program of a campaign again, from its file or from its seed and number. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.campaign.corpus import read_json
from fuzz.campaign.coverage import Vocabulary
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.rounds import LAG, close_rounds
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import RoundState, Work, new_state
from fuzz.campaign.work import JUDGE_RELATED, REPEATS, task_of
from fuzz.judge.refusal import refusal_of
from fuzz.program.structure import FuzzProgram
from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Task, TaskPool
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import verdict_of_end
from oracle.verdict import Verdict

_INPUTS_S = 120.0


def program_of_file(path: Path) -> tuple[FuzzProgram, str]:
    """The program in a finding's file, or in a file with only a program; and the broken relation, or "".

    Raises UsageError for anything else.
    """
    data = read_json(path)
    inner = data.get("program")
    program = FuzzProgram.from_json(inner if isinstance(inner, Mapping) else data)
    return program, str(data.get("relation", ""))


def program_of_number(settings: CampaignSettings, number: int, pool: TaskPool, vocabulary: Vocabulary) -> FuzzProgram:
    """Program `number` of a campaign. Rounds that influenced its own are drawn again first, but not judged.

    Raises UsageError for a number that the grammar fails on.
    """
    state = new_state(settings)
    state.vocabulary = vocabulary
    taker = ResultTaker(settings, state, Listener())
    target = number // settings.round_size
    for round_number in range(max(0, target - LAG + 1)):
        start = round_number * settings.round_size
        state.rounds[round_number] = RoundState()
        for at in range(start, start + settings.round_size, settings.chunk):
            last = min(at + settings.chunk, start + settings.round_size)
            state.add_work(Work(kind="draw", round=round_number, numbers=tuple(range(at, last))))
        for result in pool.run([task_of(key, work, settings, state) for key, work in state.work.items()]):
            taker.take(result)
        close_rounds(settings, state)
    (result,) = pool.run([task_of(0, Work(kind="draw", round=target, numbers=(number,)), settings, state)])
    if not isinstance(result.end, Completed):
        raise UsageError(
            seen=f"drawing program {number} of seed {settings.seed}: {result.end}",
            expected="a program",
            do="report it: the grammar must not fail",
        )
    programs: Any = result.end.value["programs"]
    if not programs:
        raise UsageError(
            seen=f"program {number} of seed {settings.seed} is not drawn: {result.end.value['errors']}",
            expected="a program",
            do="report it: the grammar must not fail",
        )
    return FuzzProgram.from_json(programs[0]["program"])


def inputs_of(program: FuzzProgram, pool: TaskPool) -> list[list[str]]:
    """For each call the Python lines that make its inputs and call the program; [] if they cannot be written."""
    task = Task(
        key="inputs",
        function="fuzz.campaign.worker:show_inputs",
        payload={"program": program.to_json()},
        group="",
        timeout_s=_INPUTS_S,
        memory_bytes=4 * 2**30,
    )
    (result,) = pool.run([task])
    value: Any = result.end.value if isinstance(result.end, Completed) else {"inputs": []}
    return value["inputs"]


def judge_alone(
    program: FuzzProgram,
    subject: SubjectSpec,
    pool: TaskPool,
    settings: CampaignSettings,
    *,
    relation: str = "",
    turn: int | None = None,
) -> tuple[Verdict, str]:
    """Judge one program in a worker, up to a few times until there is a finding. Returns the verdict, and a refusal or "".

    With `relation` that relation is judged; with `turn` the one that a campaign tries in that turn.
    """
    payload = {"subject": subject.to_json(), "program": program.to_json(), "times": REPEATS, "relation": relation}
    is_related = bool(relation) or turn is not None
    task = Task(
        key="replay",
        function=JUDGE_RELATED if is_related else "fuzz.campaign.worker:judge_again",
        payload={**payload, "turn": turn},
        group="",
        timeout_s=settings.case_timeout_s * REPEATS * (4 if is_related else 1),
        memory_bytes=settings.memory_bytes,
        environment=tuple(sorted(subject.env.items())),
    )
    (result,) = pool.run([task])
    match result.end:
        case Completed(value=value):
            data: Any = value
            verdict = Verdict.from_json(data["verdict"])
            return verdict, refusal_of(verdict, subject, traceback=data["traceback"])
        case _ as end:
            verdict = verdict_of_end(end)
            if verdict.symptom.startswith("internal error"):
                raise InternalError(f"judging the program failed: {end}")
            return verdict, ""
