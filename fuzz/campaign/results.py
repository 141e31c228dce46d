"""Adds the results of tasks to a campaign's state: counts programs, passes findings on, investigates dead workers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuzz.campaign.relations import ask_relation, take_related
from fuzz.campaign.settings import SINGLES_EVERY, CampaignSettings
from fuzz.campaign.state import (
    NOT_DRAWN,
    NOT_JUDGED,
    CampaignState,
    FoundBucket,
    FoundProgram,
    RoundState,
    Work,
    inputs_of_json,
)
from fuzz.judge.refusal import REFUSED, refusal_of
from fuzz.program.structure import FuzzProgram
from fuzz.triage.bucket import bucket_key, operators_of
from oracle.isolate import Completed, Died, Failed, OutOfMemory, TaskResult, TimedOut
from oracle.sweep import verdict_of_end
from oracle.symptom import Symptom, matches, symptom_of, with_relation, without_relation
from oracle.verdict import Status, Verdict

_STAGE = re.compile(r"^programs (?P<numbers>[\d ]+): (?P<stage>.*)$")
_TRIES = 3  # for a range whose worker dies before it has named its current program
_KEPT_NUMBERS = 20  # program numbers kept for one bucket
_MOST_FLAKY = 200
_FATAL = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGBUS,
    signal.SIGILL,
)  # signals that native code dies of
# One run suffices to show these. A timeout may be due to a busy machine, so its second run counts.
_KILLED = (Status.CRASH.value, Status.OOM.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks for events of a campaign."""

    on_bucket: Callable[[FoundBucket], None] = lambda bucket: None  # a new bucket, or a better program for one
    on_interesting: Callable[[int, Mapping[str, Any], list[str]], None] = lambda number, program, features: None
    known: Callable[[FoundBucket], str] = lambda bucket: ""  # id of the known issue, or ""


class ResultTaker:
    """Adds the results of tasks to a state, one after the other."""

    def __init__(self, settings: CampaignSettings, state: CampaignState, listener: Listener) -> None:
        self._settings = settings
        self._state = state
        self._listener = listener

    def take(self, result: TaskResult) -> None:
        work = self._state.work.pop(int(result.task.key))
        if (
            isinstance(result.end, Died) and result.end.signal == signal.SIGALRM
        ):  # its own limit, see fuzz.campaign.worker
            end = TimedOut(
                seconds=self._settings.case_timeout_s,
                stage=result.end.stage,
                traceback=result.end.traceback,
                stderr=result.end.stderr,
            )
            result = replace(result, end=end)
        match work.kind:
            case "range":
                self._take_range(work, result)
            case "sort":
                self._take_sorted(work, result)
            case "draw":
                self._take_drawn(work, result)
            case "relate":
                related = take_related(work, result.end, self._state)
                if related is not None:
                    self._found(related)
            case "confirm":
                self._take_confirmation(work, result)
            case _:
                self._take_reduction(work, result)

    # ---------------------------------------------------------------------------------------------------------- ranges

    def _take_range(self, work: Work, result: TaskResult) -> None:
        state = self._state
        match result.end:
            case Completed(value=value):
                self._take_judged(work, value)
            case Failed(error=error):
                state.note_error(f"programs {_span(work.numbers)}: {error}")
                state.statuses[NOT_JUDGED] += len(work.numbers)
                state.add_work(replace(work, kind="draw"))
            case _:
                self._take_death(work, result.end)

    def _take_judged(self, work: Work, value: Mapping[str, Any]) -> None:
        state = self._state
        left = set(value["left"])
        self._take_features(work, value)
        findings = [FoundProgram.from_json(found) for found in value["findings"]]
        reasons = {found.numbers: reason for found in findings if (reason := self._refusal(found))}
        state.refused.update(reasons.values())
        for item in value["programs"]:
            if item["number"] in left:
                continue
            state.statuses[REFUSED if (item["number"],) in reasons else item["status"] or NOT_JUDGED] += 1
            ask_relation(item, work.round, self._settings, state)
            fresh = state.reached.add(item["seen"])
            if fresh and item["program"] is not None:
                self._listener.on_interesting(item["number"], item["program"], fresh)
        for example in value["ill"]:
            state.note_ill(example)
        for error in value["judge_errors"]:
            state.note_error(f"program {error['number']}: {error['error']}")
        state.judgements += value["judgements"]
        state.draw_cpu_s += value["draw_cpu_s"]
        state.judge_cpu_s += value["judge_cpu_s"]
        for found in findings:
            if found.numbers not in reasons:
                self._found(found)
        if left:
            state.add_work(replace(work, numbers=tuple(sorted(left))))

    def _take_features(self, work: Work, value: Mapping[str, Any]) -> None:
        round_ = self._state.rounds.get(work.round, RoundState())  # a closed round: its programs were drawn before
        for item in value["programs"]:
            round_.features.setdefault(item["number"], item["features"])
        for error in value["errors"]:
            if error["number"] not in round_.features:
                round_.features[error["number"]] = []
                self._state.statuses[NOT_DRAWN] += 1
                self._state.note_error(f"drawing program {error['number']}: {error['error']}")

    def _take_death(self, work: Work, end: Died | TimedOut | OutOfMemory) -> None:
        """Handle a worker that died in a range: the program that killed it is a finding, the others are judged again."""
        state = self._state
        found = _STAGE.match(end.stage)
        numbers = tuple(map(int, found["numbers"].split())) if found else ()
        if len(numbers) != 1:
            # a batch, or not known which: judge them one by one
            if work.tries >= _TRIES:
                state.note_error(f"programs {_span(work.numbers)}: the worker ends before the first: {end}")
                state.statuses[NOT_JUDGED] += len(work.numbers)
                state.add_work(replace(work, kind="draw"))
                return
            state.add_work(replace(work, batch_size=1, tries=work.tries + 1))
            return
        assert found is not None
        (guilty,) = numbers
        rest = tuple(number for number in work.numbers if number != guilty)
        if rest:
            state.add_work(replace(work, numbers=rest))
        if found["stage"] == "draw":
            state.rounds.setdefault(work.round, RoundState()).features.setdefault(guilty, [])
            if isinstance(end, Died) and end.signal in _FATAL:  # each statement runs in eager when it is drawn
                verdict = verdict_of_end(replace(end, stage="eager, while the program was drawn"))
                state.statuses[verdict.status.value] += 1
                state.note_ill({"number": guilty, "status": verdict.status.value, "symptom": verdict.symptom})
                return
            state.statuses[NOT_DRAWN] += 1
            state.note_error(f"drawing program {guilty}: {verdict_of_end(end).symptom}")
            return
        verdict = verdict_of_end(replace(end, stage=found["stage"]))
        state.statuses[verdict.status.value] += 1
        if verdict.status.is_finding:
            state.awaiting_draw[guilty] = verdict.to_json()
        else:
            state.note_ill({"number": guilty, "status": verdict.status.value, "symptom": verdict.symptom})
        state.add_work(Work(kind="draw", round=work.round, numbers=(guilty,)))

    def _take_sorted(self, work: Work, result: TaskResult) -> None:
        """Take programs that were drawn and not judged; they wait to be put into batches."""
        if not isinstance(result.end, Completed):
            # drawing one of them kills the process: judging one by one shows which
            self._state.add_work(replace(work, kind="range"))
            return
        value: Any = result.end.value
        self._take_features(work, value)
        round_ = self._state.rounds[work.round]
        for item in value["programs"]:
            is_single = item["key"] is None or item["number"] % SINGLES_EVERY == 0
            round_.sorted.setdefault("" if is_single else item["key"], []).append(item["number"])

    def _take_drawn(self, work: Work, result: TaskResult) -> None:
        state = self._state
        if not isinstance(result.end, Completed):
            state.note_error(f"drawing programs {_span(work.numbers)}: {result.end}")
            for number in work.numbers:
                state.rounds.setdefault(work.round, RoundState()).features.setdefault(number, [])
                state.awaiting_draw.pop(number, None)
            return
        value = result.end.value
        self._take_features(work, value)
        for item in value["programs"]:  # type: ignore[union-attr]
            verdict = state.awaiting_draw.pop(item["number"], None)
            if verdict is not None:
                symptom = symptom_of(Verdict.from_json(verdict)).to_json()
                found = FoundProgram(
                    numbers=(item["number"],),
                    program=item["program"],
                    verdict=verdict,
                    symptom=symptom,
                    inputs=inputs_of_json(item.get("inputs", ())),
                )
                self._found(found)

    # -------------------------------------------------------------------------------------------------------- findings

    def _refusal(self, found: FoundProgram) -> str:
        """Why the subject refuses the program; "" if it is a finding."""
        verdict = Verdict.from_json(found.verdict)
        return refusal_of(verdict, self._settings.subject, traceback=found.traceback)

    def _found(self, found: FoundProgram) -> None:
        """Count a finding, and plan its confirmation unless a bucket explains it."""
        state = self._state
        if not found.relation:  # programs with a relation were already counted as agreeing
            state.symptoms[f"{found.symptom['status']}: {found.symptom['kind']}"] += 1
        bucket = self._explaining(found)
        if bucket is not None:
            state.change_bucket(bucket.key, alike=bucket.alike + 1)
            # The second, fourth, eighth ... is reduced nevertheless, since another bug may have the same symptom.
            if not _is_power_of_two(bucket.alike + 1):
                return
        state.add_work(Work(kind="confirm", found=found, is_sample=bucket is not None))

    def drop_explained(self) -> None:
        """Drop waiting findings that a new bucket explains."""
        for key, work in list(self._state.work.items()):
            if work.found is None or work.is_sample:
                continue
            bucket = self._explaining(work.found)
            if bucket is not None:
                self._state.change_bucket(bucket.key, alike=bucket.alike + 1)
                del self._state.work[key]

    def _explaining(self, found: FoundProgram) -> FoundBucket | None:
        """A bucket with the same symptom, all of whose operators are in the program.

        A bug may break a relation and also show without one: then the bucket without a relation explains it.
        """
        symptom = Symptom.from_json(found.symptom)
        plain = replace(symptom, kind=without_relation(symptom.kind))
        operators = set(operators_of(FuzzProgram.from_json(found.program)))
        for bucket in self._state.buckets.values():
            own = Symptom(status=bucket.status, kind=bucket.kind)
            if (
                bucket.is_reduced
                and bucket.operators
                and operators.issuperset(bucket.operators)
                and matches(own, symptom if bucket.relation else plain)
            ):
                return bucket
        return None

    def _take_confirmation(self, work: Work, result: TaskResult) -> None:
        assert work.found is not None
        found = work.found
        match result.end:
            case Completed(value=value):
                if not value["shown"]:
                    self._note_flaky(replace(found, shown=0, runs=int(value["runs"])))  # type: ignore[call-overload]
                    return
                found = replace(found, runs=int(value["runs"]))  # type: ignore[call-overload]
                if value["symptom"] != found.symptom and found.symptom["status"] not in _KILLED:
                    found = replace(
                        found, verdict=value["verdict"], symptom=value["symptom"], traceback=value["traceback"]
                    )
            case Failed(error=error):
                self._state.lost_findings += 1
                self._state.note_error(f"program {found.numbers}: {error}")
                return
            case Died() | TimedOut() | OutOfMemory():
                verdict = self._verdict_of_death(found, result.end)
                if not verdict.status.is_finding:  # it ended while eager ran, so the finding cannot be repeated
                    self._note_flaky(replace(found, shown=0))
                    return
                found = replace(found, verdict=verdict.to_json(), symptom=symptom_of(verdict).to_json())
        reason = self._refusal(found)
        if reason:
            self._state.refused[reason] += 1
            return
        if self._settings.reduces:
            self._state.add_work(replace(work, kind="reduce", found=found))
        else:
            self._to_bucket(found, reduced=None)

    def _verdict_of_death(self, found: FoundProgram, end: Died | TimedOut | OutOfMemory) -> Verdict:
        if not found.relation:
            verdict = verdict_of_end(end)
            if isinstance(end, TimedOut):
                note = f"a second run, with more time than the {self._settings.case_timeout_s:g} s of a first, did not end either"
                verdict = replace(verdict, explained=(*verdict.explained, note))
            return verdict
        verdict = verdict_of_end(replace(end, stage=end.stage.removeprefix(f"relation {found.relation}: ")))
        return replace(verdict, symptom=with_relation(found.relation, verdict.symptom))

    def _note_flaky(self, found: FoundProgram) -> None:
        self._state.statuses["flaky"] += 1
        if len(self._state.flaky) < _MOST_FLAKY:
            self._state.flaky.append(found)

    def _take_reduction(self, work: Work, result: TaskResult) -> None:
        assert work.found is not None
        if isinstance(result.end, Completed):
            self._state.reduce_s += result.end.wall_s
            self._to_bucket(work.found, reduced=result.end.value)
            return
        if isinstance(result.end, Failed):
            self._state.note_error(f"reducing program {work.found.numbers}: {result.end.error}")
        self._to_bucket(work.found, reduced=None)

    def _to_bucket(self, found: FoundProgram, *, reduced: Mapping[str, Any] | None) -> None:
        """Put a finding, reduced or not, into its bucket."""
        is_reduced = reduced is not None and bool(reduced.get("reproduced", True))
        data: Mapping[str, Any] = reduced if reduced is not None and is_reduced else {}
        program = data.get("program", found.program)
        symptom = data.get("symptom", found.symptom)
        parsed = FuzzProgram.from_json(program)
        operators = operators_of(parsed)
        rung, culprit = data.get("rung", ""), data.get("culprit", "")
        bucket = FoundBucket(
            key=bucket_key(parsed, Symptom.from_json(symptom), rung, self._settings.subject.name, culprit),
            subject=self._settings.subject.name,
            status=symptom["status"],
            kind=symptom["kind"],
            rung=rung,
            culprit=culprit,
            operators=operators,
            program=program,
            source=data.get("source", ""),
            verdict=data.get("verdict", found.verdict),
            numbers=found.numbers,
            is_reduced=is_reduced,
            trials=data.get("trials", 0),
            seconds=data.get("seconds", 0.0),
            traceback=found.traceback,
            opinion=data.get("opinion", ""),
            script=data.get("script", ""),
            short_script=data.get("short_script", ""),
            relation=found.relation,
            inputs=inputs_of_json(data.get("inputs", found.inputs)),
        )
        self._merge(bucket)

    def _merge(self, bucket: FoundBucket) -> None:
        state = self._state
        own = state.buckets.get(bucket.key)
        if own is not None:
            numbers = (*own.numbers, *bucket.numbers)[:_KEPT_NUMBERS]
            best = bucket if _size(bucket) < _size(own) else own
            bucket = replace(best, numbers=numbers, count=own.count + 1, alike=own.alike)
        state.buckets[bucket.key] = replace(bucket, known=self._listener.known(bucket))
        self._listener.on_bucket(state.buckets[bucket.key])


def _size(bucket: FoundBucket) -> tuple[bool, int]:
    return not bucket.is_reduced, len(json.dumps(bucket.program))


def _span(numbers: tuple[int, ...]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]) if numbers else "(none)"


def _is_power_of_two(number: int) -> bool:
    return number > 1 and number & (number - 1) == 0
