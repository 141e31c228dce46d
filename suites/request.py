"""The options of a sweep, checked before anything is written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from oracle.known.ledger import BUILT_IN, ledger_named, ledger_words
from oracle.limits import available_cores, check_positive, duration
from oracle.subjects.naming import check_distinct_names
from oracle.subjects.registry import resolve, split_names
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import Limits
from suites.base import Selection
from suites.planning import Order, Shard
from suites.registry import ALL_SUITES, SUITES, find_suite
from suites.rungs import LOWER_RUNGS

DIRECTIONS = ("forward", "backward")
_ALL = "all"
MOST_PROCESSES = 50  # in which a case's speed is measured
MOST_RERUNS = 50  # of a case that fails


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """All options of one run. They are stored with it, and a resumed run uses them."""

    suites: tuple[str, ...]
    selection: Selection
    subjects: Mapping[str, tuple[SubjectSpec, ...]]  # per suite
    subjects_are_own: bool = False  # the suites' own subjects are used, since the user named none
    lower_rungs: tuple[SubjectSpec, ...] = ()  # rungs on which programs with findings run too (`suites.rungs`)
    shard: Shard
    limits: Limits
    options: Mapping[str, Any]
    workers: int
    threads: int
    reruns: int = 0  # of each case that fails
    subjects_file: str = ""  # for the repro commands
    known: str = BUILT_IN  # "none", or the ledgers by comma: "torch", paths

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["subjects"] = {suite: [spec.to_json() for spec in specs] for suite, specs in self.subjects.items()}
        data["lower_rungs"] = [spec.to_json() for spec in self.lower_rungs]
        data["selection"] = self.selection.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SweepRequest:
        return cls(
            suites=tuple(data["suites"]),
            selection=Selection.from_json(data["selection"]),
            subjects={suite: tuple(map(SubjectSpec.from_json, specs)) for suite, specs in data["subjects"].items()},
            subjects_are_own=data.get("subjects_are_own", False),
            lower_rungs=tuple(map(SubjectSpec.from_json, data.get("lower_rungs", ()))),
            shard=Shard(**data["shard"]),
            limits=Limits(**data["limits"]),
            options=data["options"],
            workers=data["workers"],
            threads=data["threads"],
            reruns=data.get("reruns", 0),
            subjects_file=data.get("subjects_file", ""),
            known=data.get("known", BUILT_IN),
        )

    def going_on(self, *, time: str | None, workers: int | None) -> SweepRequest:
        """The request of a resumed run: unchanged, except for given options that do not change results."""
        _check_workers(workers)
        limits = replace(self.limits, run_s=duration(time)) if time else self.limits
        return replace(self, limits=limits, workers=workers or self.workers)

    def spec_by_name(self) -> dict[str, SubjectSpec]:
        """Every subject that the run may need, by name. Raises UsageError if suites have different ones with one name."""
        found: dict[str, SubjectSpec] = {}
        for suite, specs in (*self.subjects.items(), ("of lower rungs", self.lower_rungs)):
            for spec in specs:
                if found.setdefault(spec.name, spec) != spec:
                    raise UsageError(
                        seen=f"subject {spec.name!r} of suite {suite} with other options than in another suite",
                        expected="one subject of that name",
                        do="start a new run without --resume",
                    )
        return found

    def selection_for(self, suite: str) -> Selection | None:
        """The part of the selection that applies to a suite; None if the suite lacks a selected dtype or tag."""
        entry, asked = SUITES[suite], self.selection
        tags = tuple(tag for tag in asked.tags if tag in entry.tags)
        dtypes = tuple(dtype for dtype in asked.dtypes if dtype in entry.dtypes)
        if (asked.tags and not tags) or (asked.dtypes and not dtypes):
            return None
        return replace(asked, tags=tags, dtypes=dtypes)

    def selection_options(self) -> list[str]:
        """Command-line options that select the same programs."""
        asked = self.selection
        words = [] if self.suites == ALL_SUITES else ["--suite", ",".join(self.suites)]
        if not words and not asked.quick and not (asked.match or asked.tags or asked.max_samples):
            words = ["--suite", _ALL]
        words += [word for glob in asked.match for word in ("--match", glob)]
        words += [word for tag in asked.tags for word in ("--tag", tag)]
        words += ["--dtype", ",".join(asked.dtypes)] if asked.dtypes else []
        words += ["--direction", ",".join(asked.directions)] if asked.directions else []
        words += ["--max-samples", str(asked.max_samples)] if asked.max_samples else []
        words += ["--known", self.known] if asked.ledgers else []
        words += ["--recording", asked.recording] if asked.recording else []
        return words + (["--device", asked.device] if asked.device != "cpu" else [])

    def orders(self) -> list[Order]:
        """The requests for plans, one for each suite."""
        selections = {suite: self.selection_for(suite) for suite in self.suites}
        return [
            Order(
                suite=suite,
                selection=selection,
                subjects=tuple(spec.name for spec in self.subjects[suite]),
                are_own=self.subjects_are_own,
            )
            for suite, selection in selections.items()
            if selection is not None
        ]


def make_request(
    *, suite: str | None, subject: str | None, subjects_file: Path | None, match: list[str] | None, tag: list[str] | None,
    dtype: str | None, direction: str | None, max_samples: int | None, shard: str, device: str, time: str | None,
    case_timeout: float, memory: float, workers: int | None, threads: int, speed: bool, speed_budget: float,
    speed_processes: int = 1, speed_precision: float | None = None, speed_most_processes: int = 20,
    rerun: int = 0, known: str = BUILT_IN, recording: Path | None = None,
) -> SweepRequest:  # fmt: skip
    """Check every option before anything is written."""
    is_quick = suite is None and not match and not tag and max_samples is None
    names = _suite_names(suite)
    _check_recording(recording, names)
    ledger_named(known)  # reports an unreadable ledger before anything runs
    ledgers = () if known == "none" else ledger_words(known)
    chosen = tuple(resolve(name, subjects_file=subjects_file) for name in split_names(subject)) if subject else None
    check_distinct_names([spec.name for spec in chosen or ()])
    selection = Selection(
        match=tuple(match or ()),
        tags=tuple(tag or ()),
        dtypes=_words(dtype),
        directions=_words(direction),
        device=device,
        max_samples=max_samples,
        quick=is_quick,
        foreign=is_quick and any(spec.rung is None for spec in chosen or ()),
        ledgers=tuple(word for word in ledgers if word != BUILT_IN),
        recording=str(recording.resolve()) if recording else "",
    )
    _check_selection(selection, names)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UsageError(seen=f"--device {device}", expected="cpu, cuda or cuda:N", do="name a device torch has")
    _check_numbers(
        {"--case-timeout": case_timeout, "--memory": memory, "--speed-budget": speed_budget, "--threads": threads},
        speed_processes=speed_processes, rerun=rerun, max_samples=max_samples,
    )  # fmt: skip
    _check_precision(speed_precision, most=speed_most_processes, speed=speed, processes=speed_processes)
    _check_workers(workers)
    return SweepRequest(
        suites=names,
        selection=selection,
        subjects={name: chosen or _own_subjects(name, is_quick=is_quick) for name in names},
        subjects_are_own=chosen is None,
        lower_rungs=tuple(map(resolve, LOWER_RUNGS)) if is_quick and chosen is None else (),
        shard=parse_shard(shard),
        limits=Limits(timeout_s=case_timeout, memory_bytes=int(memory * 2**30), run_s=duration(time) if time else None),
        options={
            "speed": speed,
            "speed_budget_s": speed_budget,
            "speed_processes": speed_processes,
            "device": device,
            **_precision(speed_precision, most=speed_most_processes),
        },
        workers=workers or (1 if speed else available_cores()),
        threads=threads,
        reruns=rerun,
        subjects_file=str(subjects_file.resolve()) if subjects_file else "",
        known=",".join(ledgers) or "none",
    )


def _check_selection(selection: Selection, suites: tuple[str, ...]) -> None:
    """Raises UsageError for a direction, tag or dtype that none of the suites has."""
    for word in selection.directions:
        if word not in DIRECTIONS:
            raise UsageError(
                seen=f"--direction {word}", expected="forward or backward", do="name one, or both by comma"
            )
    for word in selection.tags:
        if not any(word in SUITES[name].tags for name in suites):
            tags = sorted({known_tag for name in suites for known_tag in SUITES[name].tags})
            raise UsageError(
                seen=f"--tag {word}", expected=f"one of {', '.join(tags)}", do="`torch-oracle list tags` explains them"
            )
    for word in selection.dtypes:
        if not any(word in SUITES[name].dtypes for name in suites):
            dtypes = sorted({known_dtype for name in suites for known_dtype in SUITES[name].dtypes})
            raise UsageError(
                seen=f"--dtype {word}", expected=f"one of {', '.join(dtypes)}", do="name dtypes without 'torch.'"
            )


def _check_recording(recording: Path | None, suites: tuple[str, ...]) -> None:
    if recording is not None and "recorded" not in suites:
        raise UsageError(
            seen=f"--recording {recording} without the suite that replays it",
            expected="--suite recorded",
            do="add it, or leave out --recording",
        )


def _check_numbers(positive: Mapping[str, float], *, speed_processes: int, rerun: int, max_samples: int | None) -> None:
    check_positive(positive)
    if not 1 <= speed_processes <= MOST_PROCESSES:
        raise UsageError(
            seen=f"--speed-processes {speed_processes}",
            expected=f"from 1 to {MOST_PROCESSES}",
            do="leave it out, or name a number",
        )
    if not 0 <= rerun <= MOST_RERUNS:
        raise UsageError(
            seen=f"--rerun {rerun}", expected=f"from 0 to {MOST_RERUNS}", do="leave it out, or name a number"
        )
    if max_samples is not None and max_samples < 1:
        raise UsageError(seen=f"--max-samples {max_samples}", expected="at least 1", do="leave it out for all samples")


def _precision(percent: float | None, *, most: int) -> dict[str, Any]:
    """The options that say how precisely speed is measured; none where --speed-precision is not given."""
    if percent is None:
        return {}
    return {"speed_precision": math.log1p(percent / 100), "speed_most_processes": most}


def _check_precision(percent: float | None, *, most: int, speed: bool, processes: int) -> None:
    if percent is None:
        return
    if not speed or not 0 < percent < math.inf:
        raise UsageError(
            seen=f"--speed-precision {percent:g}{'' if speed else ' without --speed'}",
            expected="--speed, and percent above 0",
            do="for example: --speed --speed-precision 2",
        )
    if processes < 2 or not processes <= most <= MOST_PROCESSES:
        raise UsageError(
            seen=f"--speed-precision with --speed-processes {processes} and --speed-most-processes {most}",
            expected=f"2 <= processes <= most <= {MOST_PROCESSES}: one process does not show how much processes differ",
            do="raise the smaller one",
        )


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise UsageError(seen=f"--workers {workers}", expected="at least 1", do="leave it out for one per core")


def _suite_names(text: str | None) -> tuple[str, ...]:
    words = _words(text)
    if text is None or _ALL in words:
        named = [find_suite(word).name for word in words if word != _ALL]
        return (*ALL_SUITES, *(name for name in named if name not in ALL_SUITES))
    return tuple(find_suite(word).name for word in words)


def _own_subjects(suite: str, *, is_quick: bool) -> tuple[SubjectSpec, ...]:
    entry = SUITES[suite]
    return tuple(map(resolve, entry.quick_subjects if is_quick else entry.default_subjects))


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def parse_shard(text: str) -> Shard:
    """The part of a run that "i/n" names. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(seen=f"--shard {text}", expected="i/n with 1 <= i <= n", do="for example --shard 1/4")
    return Shard(index=int(found[1]), count=int(found[2]))
