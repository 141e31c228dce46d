"""Answers of one version of torch about a program, from one process: outcomes of eager and compiled, the capture, times."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oracle.explaining import breaks_once, readable, short_reason
from oracle.explanation import Break
from oracle.observe.outcome import (
    AliasGraph,
    CallObservation,
    Crashed,
    ExceptionFacts,
    Leaf,
    Outcome,
    Raised,
    Returned,
    TensorFacts,
    TimedOut,
)
from triage.advise.worker import LEAVES, scalar
from triage.interpreters import Ended

_PROGRAM = re.compile(r"^<program (.*)>$")  # the name under which a program's source is compiled
_TUPLES = ("shape", "stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFacts:
    """Dynamo's capture of the program; None if this version of torch cannot report it."""

    graphs: int | None = None
    breaks: tuple[Break, ...] | None = None
    recompiles: tuple[str, ...] | None = None  # the reason of each

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaptureFacts:
        breaks, recompiles = data["breaks"], data["recompiles"]
        return cls(
            graphs=data["graphs"],
            breaks=None if breaks is None else _breaks(breaks),
            recompiles=None if recompiles is None else tuple(map(readable, recompiles)),
        )

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON, null for those that are not told."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of one process. Times are in seconds, and None if there was nothing to measure."""

    torch: str = ""  # "2.12.0+cpu"; "" if the interpreter has none
    python: str = ""
    death: str = ""  # why the process ended early
    inputs: Mapping[str, str] = field(default_factory=dict)  # digest of each argument, parameter and buffer
    eager: Outcome
    compiled: Outcome
    capture: CaptureFacts = CaptureFacts()
    first_s: float | None = None  # the first compiled call and its backward
    eager_s: float | None = None  # a later call and its backward, median
    compiled_s: float | None = None

    @property
    def compile_s(self) -> float | None:
        """The seconds by which the first compiled call took longer than a later one."""
        if self.first_s is None or self.compiled_s is None:
            return None
        return max(0.0, self.first_s - self.compiled_s)

    def without_calls(self) -> Answer:
        """The answer without what was seen of the calls, which may be large."""
        return replace(self, eager=_without_calls(self.eager), compiled=_without_calls(self.compiled))


def _without_calls(outcome: Outcome) -> Outcome:
    return replace(outcome, calls=()) if isinstance(outcome, (Returned, Raised)) else outcome


def read_answer(folder: Path, ended: Ended, timeout_s: float) -> Answer:
    """The answer in a worker's folder. If the worker died, the run that it was in ended so."""
    path = folder / "answer.json"
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    stage = told.get("stage", "eager")
    died = stage != "end"
    late = TimedOut(seconds=timeout_s, stage=stage, traceback="")
    signal = -ended.code if ended.code is not None and ended.code < 0 else None
    crashed = Crashed(signal=signal, exit_code=None if signal else ended.code, stage=stage, traceback="")
    unfinished = late if ended.code is None else crashed
    reader = _Reader(folder)
    return Answer(
        torch=told.get("torch", ""),
        python=told.get("python", ""),
        death="" if not died else f"no end within {timeout_s:.0f} s" if ended.code is None else ended.death,
        inputs=told.get("inputs", {}),
        eager=reader.outcome(told["eager"]) if "eager" in told else unfinished,
        compiled=reader.outcome(told["compiled"]) if "compiled" in told else unfinished,
        capture=CaptureFacts.from_json(told["capture"]) if "capture" in told else CaptureFacts(),
        **{name: told.get(name) for name in ("first_s", "eager_s", "compiled_s")},
    )


def _breaks(found: Sequence[Mapping[str, Any]]) -> tuple[Break, ...]:
    """Graph breaks as `oracle.explaining` tells them; the texts of lines are those that the worker read."""
    texts = {(file, line): text for each in found if each["place"] for file, line, text in [each["place"]]}

    def show(file: str, line: int) -> str:
        own = _PROGRAM.match(file)
        text = texts[file, line]
        return f"{own[1] if own else Path(file).name}:{line}" + (f": {text}" if text else "")

    places = (tuple(each["place"][:2]) if each["place"] else None for each in found)
    listed = [(short_reason(each["reason"]), place, each["depth"]) for each, place in zip(found, places, strict=True)]
    return breaks_once(listed, show)


@dataclass(frozen=True)
class _Reader:
    """Reads outcomes as `triage.advise.worker.written` wrote them. A tensor is read once, whatever number of leaves has it."""

    folder: Path

    @cached_property
    def _bytes(self) -> dict[str, torch.Tensor]:
        return {}

    def outcome(self, data: Mapping[str, Any]) -> Outcome:
        calls = tuple(map(self._call, data["calls"]))
        raised = data["raised"]
        if raised is None:
            return Returned(calls=calls)
        return Raised(exception=ExceptionFacts(**{**raised, "ancestry": tuple(raised["ancestry"])}), calls=calls)

    def _call(self, data: Mapping[str, Any]) -> CallObservation:
        leaves: dict[str, Any] = {name: tuple(map(self._leaf, data[name])) for name in LEAVES}
        aliases = AliasGraph(**{name: _nested_tuple(value) for name, value in data["aliases"].items()})
        plain = {name: data[name] for name in ("structure", "rng_digest", "seconds")}
        return CallObservation(**plain, **leaves, aliases=aliases)

    def _leaf(self, data: Mapping[str, Any]) -> Leaf:
        if "facts" not in data:
            return Leaf(path=data["path"], value=scalar(data["value"]), facts=None)
        facts = {name: _nested_tuple(value) if name in _TUPLES else value for name, value in data["facts"].items()}
        return Leaf(path=data["path"], value=self._tensor(data["file"], facts), facts=TensorFacts(**facts))

    def _tensor(self, name: str, facts: Mapping[str, Any]) -> torch.Tensor:
        dtype = getattr(torch, facts["dtype"])
        if 0 in facts["shape"]:
            return torch.empty(facts["shape"], dtype=dtype)
        if name not in self._bytes:
            self._bytes[name] = torch.from_numpy(np.load(self.folder / f"{name}.npy", allow_pickle=False))
        return self._bytes[name].view(dtype).reshape(facts["shape"])


def _nested_tuple(value: Any) -> Any:
    return tuple(map(_nested_tuple, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
