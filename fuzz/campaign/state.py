"""Everything a campaign knows, as data that a corpus keeps and a resumed campaign continues with. Does not import torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fuzz.campaign.coverage import CoverageState, Vocabulary
from fuzz.campaign.settings import CampaignSettings
from oracle.errors import UsageError
from oracle.verdict import Verdict

STATE_VERSION = 1
NOT_DRAWN = "not drawn: internal error"
NOT_JUDGED = "not judged: internal error"
LOST_TRIALS = 20  # if the first programs are all lost, the grammar or the judge is broken
_LOST_SHARE = 0.01  # the share of programs that may be lost to internal errors
_MOST_EXAMPLES = 50  # kept programs that eager refuses, and internal errors: enough to correct the grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProgram:
    """A program on which the subject differs from eager, on its way to a bucket."""

    numbers: tuple[int, ...]  # several for a batch in which no member differs alone
    program: Mapping[str, Any]  # FuzzProgram.to_json()
    verdict: Mapping[str, Any]  # Verdict.to_json()
    symptom: Mapping[str, Any]  # Symptom.to_json()
    traceback: str = ""
    shown: int = 1  # the finding showed in so many runs in another task ...
    runs: int = 1
    # The broken relation: the subject is right on one of two related programs and wrong on the other.
    relation: str = ""
    inputs: tuple[tuple[str, ...], ...] = ()  # of each call, as Python text (fuzz.draw.inputs.source); () if not known

    @property
    def symptom_key(self) -> tuple[str, str]:
        return self.symptom["status"], self.symptom["kind"]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FoundProgram:
        return cls(**{**data, "numbers": tuple(data["numbers"]), "inputs": inputs_of_json(data.get("inputs", ()))})


def inputs_of_json(calls: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """The lines of each call."""
    return tuple(tuple(lines) for lines in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBucket:
    """Findings taken as one bug, with one reduced program."""

    key: str
    subject: str
    status: str
    kind: str
    rung: str  # the first wrong rung; "" if it was not searched for
    culprit: str = ""  # the part of the compiler without which the symptom goes away; "" if not known
    operators: tuple[str, ...]
    program: Mapping[str, Any]  # reduced
    source: str
    verdict: Mapping[str, Any]
    numbers: tuple[int, ...]  # the first programs that were reduced to it
    count: int = 1  # programs that were reduced to it
    alike: int = 0  # programs with the same symptom and its operators, not reduced themselves
    is_reduced: bool = True
    known: str = ""  # id of the known issue
    trials: int = 0
    seconds: float = 0.0
    traceback: str = ""
    opinion: str = ""  # what refimpl does with the reduced program; "" if it was not run
    script: str = ""  # a script of the finding that needs only torch
    short_script: str = ""  # the same in a few lines, if these show it
    relation: str = ""  # the relation that the subject breaks; "" if it is wrong on the program alone
    inputs: tuple[tuple[str, ...], ...] = ()  # of each call, as Python text (fuzz.draw.inputs.source); () if not known

    def parsed_verdict(self) -> Verdict:
        return Verdict.from_json(self.verdict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FoundBucket:
        return cls(
            **{
                **data,
                "operators": tuple(data["operators"]),
                "numbers": tuple(data["numbers"]),
                "inputs": inputs_of_json(data.get("inputs", ())),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work, which becomes one task. It stays in the state until its task has ended."""

    kind: (
        str  # "range" (judge), "sort" (draw, to see what can be batched), "draw" (again), "relate", "confirm", "reduce"
    )
    round: int = 0
    numbers: tuple[int, ...] = ()
    batch_size: int = 1
    tries: int = 0
    found: FoundProgram | None = None
    is_sample: bool = False  # reduced although a bucket seems to explain it
    program: Mapping[str, Any] | None = None  # the program on which a relation is tried

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Work:
        found = data["found"]
        return cls(
            **{
                **data,
                "numbers": tuple(data["numbers"]),
                "found": None if found is None else FoundProgram.from_json(found),
            }
        )


@dataclass(slots=True, kw_only=True)
class RoundState:
    """A round that is not closed: the features of its programs so far."""

    features: dict[int, list[str]] = field(default_factory=dict)
    sorted: dict[str, list[int]] = field(default_factory=dict)  # key of a batch -> programs drawn and not yet in a task


@dataclass(slots=True, kw_only=True)
class CampaignState:
    """The state of a campaign."""

    identity: Mapping[str, Any]
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    next_number: int = 0
    rounds: dict[int, RoundState] = field(default_factory=dict)  # open ones
    closed_rounds: int = 0
    factors: dict[int, dict[str, float]] = field(default_factory=dict)  # round -> steering
    drawn: CoverageState = field(default_factory=CoverageState)  # of structured programs, closed rounds
    reached: CoverageState = field(default_factory=CoverageState)  # seen while programs ran
    work: dict[int, Work] = field(default_factory=dict)
    next_work: int = 0
    statuses: Counter[str] = field(default_factory=Counter)  # number of programs by status
    refused: Counter[str] = field(default_factory=Counter)  # number of refused programs by reason
    relations: Counter[str] = field(default_factory=Counter)  # number of relations tried, by name
    symptoms: Counter[str] = field(default_factory=Counter)  # findings, reduced or not, "status: kind"
    awaiting_draw: dict[int, dict[str, Any]] = field(
        default_factory=dict
    )  # program number -> verdict of a program that killed its task
    buckets: dict[str, FoundBucket] = field(default_factory=dict)
    flaky: list[FoundProgram] = field(default_factory=list)
    ill: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    error_count: int = 0
    lost_findings: int = 0  # findings that could not be judged again because of an internal error
    judgements: int = 0
    draw_cpu_s: float = 0.0
    judge_cpu_s: float = 0.0
    reduce_s: float = 0.0
    wall_s: float = 0.0
    stopped: str = ""  # why the campaign stops: "this subject fails on every program"

    @property
    def programs(self) -> int:
        return sum(self.statuses.values())

    @property
    def lost(self) -> int:
        """The number of programs that were not judged because of internal errors."""
        return self.statuses[NOT_DRAWN] + self.statuses[NOT_JUDGED] + self.lost_findings

    @property
    def is_broken(self) -> bool:
        """Whether more than one program in a hundred is lost."""
        return self.lost > _LOST_SHARE * self.programs

    @property
    def new_buckets(self) -> list[FoundBucket]:
        """Buckets that are not known issues."""
        return [bucket for bucket in self.buckets.values() if not bucket.known]

    @property
    def waiting(self) -> list[Work]:
        """Findings that are not yet confirmed or reduced."""
        return [work for work in self.work.values() if work.found is not None]

    def add_work(self, work: Work) -> None:
        self.work[self.next_work] = work
        self.next_work += 1

    def note_error(self, text: str) -> None:
        self.error_count += 1
        if len(self.errors) < _MOST_EXAMPLES:
            self.errors.append(text)

    def note_ill(self, example: dict[str, Any]) -> None:
        if len(self.ill) < _MOST_EXAMPLES:
            self.ill.append(example)

    def change_bucket(self, key: str, **changes: Any) -> FoundBucket:
        self.buckets[key] = replace(self.buckets[key], **changes)
        return self.buckets[key]

    # ------------------------------------------------------------------------------------------------------------ JSON

    def to_json(self) -> dict[str, Any]:
        return {
            "format": STATE_VERSION,
            "identity": dict(self.identity),
            "vocabulary": {"operators": list(self.vocabulary.operators), "rules": list(self.vocabulary.rules)},
            "next_number": self.next_number,
            "rounds": {
                str(number): {
                    "features": {str(n): features for n, features in state.features.items()},
                    "sorted": state.sorted,
                }
                for number, state in self.rounds.items()
            },
            "closed_rounds": self.closed_rounds,
            "factors": {str(number): factors for number, factors in self.factors.items()},
            "drawn": dict(self.drawn.counts),
            "reached": dict(self.reached.counts),
            "work": [asdict(work) for work in self.work.values()],
            "statuses": dict(self.statuses),
            "refused": dict(self.refused),
            "relations": dict(self.relations),
            "symptoms": dict(self.symptoms),
            "awaiting_draw": {str(number): verdict for number, verdict in self.awaiting_draw.items()},
            "buckets": [asdict(bucket) for bucket in self.buckets.values()],
            "flaky": [asdict(found) for found in self.flaky],
            "ill": self.ill,
            "errors": self.errors,
            **{name: getattr(self, name) for name in (*_PLAIN, *_NEWER)},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CampaignState:
        """Raises UsageError for another format or missing fields."""
        version = data.get("format") if isinstance(data, Mapping) else None
        if version != STATE_VERSION:
            raise UsageError(
                seen=f"a campaign of format {version!r}",
                expected=f"format {STATE_VERSION}",
                do="use the torch-oracle version that wrote it, or another --corpus",
            )
        try:
            return cls(
                identity=dict(data["identity"]),
                vocabulary=Vocabulary(
                    operators=tuple(data["vocabulary"]["operators"]), rules=tuple(data["vocabulary"]["rules"])
                ),
                next_number=int(data["next_number"]),
                rounds={
                    int(number): RoundState(
                        features={int(n): list(found) for n, found in round_["features"].items()},
                        sorted={key: list(numbers) for key, numbers in round_["sorted"].items()},
                    )
                    for number, round_ in data["rounds"].items()
                },
                closed_rounds=data["closed_rounds"],
                factors={int(number): dict(factors) for number, factors in data["factors"].items()},
                drawn=CoverageState(counts=Counter(data["drawn"])),
                reached=CoverageState(counts=Counter(data["reached"])),
                work={number: Work.from_json(work) for number, work in enumerate(data["work"])},
                next_work=len(data["work"]),
                statuses=Counter(data["statuses"]),
                refused=Counter(data.get("refused", {})),
                relations=Counter(data.get("relations", {})),
                symptoms=Counter(data["symptoms"]),
                awaiting_draw={int(number): verdict for number, verdict in data["awaiting_draw"].items()},
                buckets={bucket["key"]: FoundBucket.from_json(bucket) for bucket in data["buckets"]},
                flaky=[FoundProgram.from_json(found) for found in data["flaky"]],
                ill=list(data["ill"]),
                errors=list(data["errors"]),
                **{name: data[name] for name in _PLAIN},
                **{name: data[name] for name in _NEWER if name in data},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                seen=f"a damaged campaign: {type(error).__name__}: {error}",
                expected="a state.json that a campaign wrote",
                do="restore state.json from a backup, or use another --corpus; its findings/ can still be read",
            ) from error


_PLAIN = ("error_count", "judgements", "draw_cpu_s", "judge_cpu_s", "reduce_s", "wall_s", "stopped")
_NEWER = ("lost_findings",)  # fields that states of earlier versions lack


def new_state(settings: CampaignSettings) -> CampaignState:
    return CampaignState(identity=settings.identity())
