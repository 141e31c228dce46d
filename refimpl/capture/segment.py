"""A segment: what was captured from one place on, and when it may be used again. The segments of a function.

Counterpart: torch/_dynamo/output_graph.py, torch/csrc/dynamo/cache_entry.cpp
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.dynamic import SizeHistory
from refimpl.capture.guards import GuardList
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.sources import Source

Place = tuple[int, ...]


def place_of(frames: list[FrameState]) -> Place:
    """Which instruction of which code every frame is at."""
    return tuple(number for frame in frames for number in (id(frame.code), frame.offset))


@dataclass(slots=True, kw_only=True, eq=False)
class Segment:
    """What runs between two places."""

    check: Callable[[list[FrameState]], tuple[Any, ...] | None]
    """What the graph and `rebuild` need of the frames; None where the guards do not hold."""
    check_slots: Callable[[list[Any]], tuple[Any, ...] | None]
    """The same, of the slots of the frame, where that has not begun. Always None for a segment that begins later."""
    inputs: int
    """So many of these are the graph's inputs."""
    call: Callable[..., Any] | None
    """The compiled graph; None where there is nothing to compute."""
    rebuild: Callable[[Any, Any], Any]
    """The result of the function, or the frames at the break."""
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

    def lookup(self, place: Place, frames: list[FrameState]) -> tuple[Segment, tuple[Any, ...]] | None:
        segments = self.by_place.get(place)
        if segments is None:
            return None
        for index, segment in enumerate(segments):
            kept = segment.check(frames)
            if kept is not None:
                if index:
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
