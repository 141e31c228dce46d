"""A segment: what was captured from one place on, and when it may be used again. The segments of a function.

Counterpart: torch/_dynamo/output_graph.py, torch/csrc/dynamo/cache_entry.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.instructions import NormalizedCode
from refimpl.capture.dynamic import SizeHistory
from refimpl.capture.guards import GuardList
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.sources import Source

Place = tuple[int, ...]


def place_of(frames: list[FrameState]) -> Place:
    """Which instruction of which code every frame is at."""
    return tuple(number for frame in frames for number in (id(frame.code), frame.offset))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resumption:
    """Where a segment stopped: all of the frame but what is in its slots and on its stack."""

    code: NormalizedCode
    globals: dict[str, Any]
    builtins: dict[str, Any]
    offset: int
    then: Then
    place: Place

    @classmethod
    def of(cls, frame: FrameState) -> Resumption:
        return cls(
            code=frame.code, globals=frame.globals, builtins=frame.builtins, offset=frame.offset, then=frame.then,
            place=place_of([frame]),
        )  # fmt: skip

    def frame(self, slots: list[Any], stack: list[Any]) -> FrameState:
        """A frame that goes on from here."""
        return FrameState(
            code=self.code, slots=slots, globals=self.globals, builtins=self.builtins, stack=stack, offset=self.offset,
            then=self.then, is_running=True,
        )  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class Segment:
    """What runs between two places."""

    check_slots: Callable[[list[Any], Sequence[Any]], tuple[Any, ...] | None]
    """What the graph and `rebuild` need of slots and stack of the frame; None where the guards do not hold."""
    inputs: int
    """So many of these are the graph's inputs."""
    call: Callable[..., Any] | None
    """The compiled graph; None where there is nothing to compute."""
    rebuild: Callable[[Any, Any], Any]
    """The result of the function, or slots and stack of the frame at the break."""
    after: Resumption | None
    """The rest of that frame; None where the function returns."""
    reason: GraphBreak | None
    """Why capture stopped; None where the function returns."""
    is_stepped: bool
    """Whether the instruction at the break is still to be run."""
    has_effects: bool
    """Whether the graph does anything that must not be done twice."""
    sets_state: bool
    """Whether the graph changes modes of torch and puts them back."""
    guards: GuardList
    graph: fx.GraphModule | None
    sources: tuple[Source, ...] = ()
    """Of what `check` gives, in order."""
    restart_seconds: float = 0.0
    """What attempts took that found out where to stop."""
    codes: tuple[Any, ...]
    """Of the frame that it begins in, and of those that it enters. Held, for places are numbers of theirs."""

    def check(self, frames: list[FrameState]) -> tuple[Any, ...] | None:
        """`check_slots` of the one frame."""
        return self.check_slots(frames[0].slots, frames[0].stack)


@dataclass(slots=True)
class SegmentCache:
    """By place, those used last first."""

    by_place: dict[Place, list[Segment]] = field(default_factory=dict)
    refused: set[Place] = field(default_factory=set)  # captured too often
    _sizes: dict[Place, SizeHistory] = field(default_factory=dict)

    def clear(self) -> None:
        """Forgets all."""
        self.by_place.clear()
        self.refused.clear()
        self._sizes.clear()

    def lookup(self, place: Place, slots: list[Any], stack: Sequence[Any]) -> tuple[Segment, tuple[Any, ...]] | None:
        """One that fits, and what it needs."""
        segments = self.by_place.get(place)
        if segments is None:
            return None
        for segment in segments:
            kept = segment.check_slots(slots, stack)
            if kept is not None:
                if segments[0] is not segment:
                    self.put_first(segments, segment)
                return segment, kept
        return None

    def put_first(self, segments: list[Segment], segment: Segment) -> None:
        """It is asked first the next time."""
        segments.remove(segment)
        segments.insert(0, segment)

    def sizes(self, place: Place) -> SizeHistory:
        """What was seen of the inputs of a place."""
        return self._sizes.setdefault(place, SizeHistory())

    def add(self, place: Place, segment: Segment) -> None:
        self.by_place.setdefault(place, []).insert(0, segment)

    def count(self, place: Place) -> int:
        return len(self.by_place.get(place, ()))

    def segments(self) -> list[Segment]:
        return [segment for segments in self.by_place.values() for segment in segments]
