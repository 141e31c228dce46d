"""What a sweep was asked for, checked: every option with what is expected, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from oracle.known.ledger import ledger_named
from oracle.limits import available_cores, check_positive, duration
from oracle.subjects.naming import check_distinct_names
from oracle.subjects.registry import resolve, split_names
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import Limits
from suites.base import Selection
from suites.planning import Shard
from suites.registry import SUITES, find_suite

DIRECTIONS = ("forward", "backward")
# What runs when the user selected nothing: a table in minutes.
QUICK_SAMPLES = {"opinfo": 1, "mutations": 5}  # programs per operator, per theme
QUICK_TAGS = {"models": ("quick",), "exports": ("quick",)}
QUICK_SUBJECTS = {
    "opinfo": ("aot_eager", "inductor"),
    "exports": ("refimpl.export[strict=false]", "export[strict=false]"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """One run, fully decided: what is stored with it, and what a resumed run continues with."""

    suites: tuple[str, ...]
    selection: Selection
    samples: Mapping[str, int | None]  # per suite
    tags: Mapping[str, tuple[str, ...]]  # per suite
    subjects: Mapping[str, tuple[SubjectSpec, ...]]  # per suite
    shard: Shard
    limits: Limits
    options: Mapping[str, Any]
    workers: int
    threads: int
    subjects_file: str = ""  # for the repro commands
    known: str = "torch"  # the ledger: "torch", "none" or a path

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["subjects"] = {suite: [spec.to_json() for spec in specs] for suite, specs in self.subjects.items()}
        data["selection"] = self.selection.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SweepRequest:
        return cls(
            suites=tuple(data["suites"]),
            selection=Selection.from_json(data["selection"]),
            samples=data["samples"],
            tags={suite: tuple(tags) for suite, tags in data["tags"].items()},
            subjects={suite: tuple(map(SubjectSpec.from_json, specs)) for suite, specs in data["subjects"].items()},
            shard=Shard(**data["shard"]),
            limits=Limits(**data["limits"]),
            options=data["options"],
            workers=data["workers"],
            threads=data["threads"],
            subjects_file=data.get("subjects_file", ""),
            known=data.get("known", "torch"),
        )

    def spec_by_name(self) -> dict[str, SubjectSpec]:
        """Every subject of the run once. Raises UsageError where suites have different subjects of one name."""
        found: dict[str, SubjectSpec] = {}
        for suite, specs in self.subjects.items():
            for spec in specs:
                if found.setdefault(spec.name, spec) != spec:
                    raise UsageError(
                        seen=f"subject {spec.name!r} of suite {suite} with other options than in another suite",
                        expected="one subject of that name",
                        do="start a new run without --resume",
                    )
        return found

    def selection_for(self, suite: str) -> Selection | None:
        """The selection as far as it applies to a suite; None where a wanted dtype or tag is unknown to it."""
        entry, asked = SUITES[suite], self.selection
        tags = tuple(tag for tag in self.tags[suite] if tag in entry.tags)
        dtypes = tuple(dtype for dtype in asked.dtypes if dtype in entry.dtypes)
        if (asked.tags and not tags) or (asked.dtypes and not dtypes):
            return None
        return Selection(
            match=asked.match,
            tags=tags,
            dtypes=dtypes,
            directions=asked.directions,
            device=asked.device,
            max_samples=self.samples[suite],
        )


def make_request(
    *, suite: str | None, subject: str | None, subjects_file: Path | None, match: list[str] | None, tag: list[str] | None,
    dtype: str | None, direction: str | None, max_samples: int | None, shard: str, device: str, time: str | None,
    case_timeout: float, memory: float, workers: int | None, threads: int, speed: bool, speed_budget: float,
    known: str = "torch",
) -> SweepRequest:  # fmt: skip
    """Check every option, with what is expected, before anything is written."""
    names = tuple(SUITES) if suite is None else tuple(find_suite(name).name for name in _words(suite))
    selection = Selection(
        match=tuple(match or ()),
        tags=tuple(tag or ()),
        dtypes=_words(dtype),
        directions=_words(direction),
        device=device,
        max_samples=max_samples,
    )
    for word in selection.directions:
        if word not in DIRECTIONS:
            raise UsageError(
                seen=f"--direction {word}", expected="forward or backward", do="name one, or both by comma"
            )
    for word in selection.tags:
        if not any(word in SUITES[name].tags for name in names):
            tags = sorted({known_tag for name in names for known_tag in SUITES[name].tags})
            raise UsageError(
                seen=f"--tag {word}", expected=f"one of {', '.join(tags)}", do="`torch-oracle list tags` explains them"
            )
    for word in selection.dtypes:
        if not any(word in SUITES[name].dtypes for name in names):
            dtypes = sorted({known_dtype for name in names for known_dtype in SUITES[name].dtypes})
            raise UsageError(
                seen=f"--dtype {word}", expected=f"one of {', '.join(dtypes)}", do="name dtypes without 'torch.'"
            )
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UsageError(seen=f"--device {device}", expected="cpu, cuda or cuda:N", do="name a device torch has")
    ledger_named(known)  # a ledger that cannot be read is told before anything runs
    check_positive(
        {
            "--case-timeout": case_timeout,
            "--memory": memory,
            "--speed-budget": speed_budget,
            "--threads": threads,
        }
    )
    if max_samples is not None and max_samples < 1:
        raise UsageError(seen=f"--max-samples {max_samples}", expected="at least 1", do="leave it out for all samples")
    if workers is not None and workers < 1:
        raise UsageError(seen=f"--workers {workers}", expected="at least 1", do="leave it out for one per core")
    chosen = tuple(resolve(name, subjects_file=subjects_file) for name in split_names(subject)) if subject else None
    check_distinct_names([spec.name for spec in chosen or ()])
    is_quick = suite is None and not match and not tag and max_samples is None
    return SweepRequest(
        suites=names,
        selection=selection,
        samples={name: QUICK_SAMPLES.get(name) if is_quick else max_samples for name in names},
        tags={name: QUICK_TAGS.get(name, ()) if is_quick else selection.tags for name in names},
        subjects={name: chosen or _default_subjects(name, is_quick=is_quick) for name in names},
        shard=parse_shard(shard),
        limits=Limits(timeout_s=case_timeout, memory_bytes=int(memory * 2**30), run_s=duration(time) if time else None),
        options={"speed": speed, "speed_budget_s": speed_budget, "device": device},
        workers=workers or (1 if speed else available_cores()),
        threads=threads,
        subjects_file=str(subjects_file.resolve()) if subjects_file else "",
        known=known if known in ("torch", "none") else str(Path(known).resolve()),
    )


def _default_subjects(suite: str, *, is_quick: bool) -> tuple[SubjectSpec, ...]:
    names = QUICK_SUBJECTS.get(suite) if is_quick else None
    return tuple(map(resolve, names or SUITES[suite].default_subjects))


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def parse_shard(text: str) -> Shard:
    """The part of a run that "i/n" names. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(seen=f"--shard {text}", expected="i/n with 1 <= i <= n", do="for example --shard 1/4")
    return Shard(index=int(found[1]), count=int(found[2]))
