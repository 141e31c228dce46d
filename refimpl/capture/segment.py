"""A segment: a graph with its guards, and what to rebuild after it; and the cache of a function's segments, by place.

Counterpart: torch/_dynamo/output_graph.py, torch/csrc/dynamo/cache_entry.cpp; facts_of_segment: convert_frame.py _compile
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from refimpl._torch import HigherOrderOperator, OpOverload, OpOverloadPacket
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.instructions import NormalizedCode
from refimpl.capture.config import config
from refimpl.capture.guards.guard_list import GuardKind, GuardList
from refimpl.capture.guards.size_history import SizeHistory
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.frame import FrameState, Then

Place = tuple[int, ...]
_OF_TORCH = ("aten", "prims", "prim")


def place_of(frames: list[FrameState]) -> Place:
    """The current instruction of each frame: the id of its code and its offset."""
    return tuple(number for frame in frames for number in (id(frame.code), frame.offset))


Contents = Sequence[list[Any]]
"""The slots and the stack of each of several frames, the lowest frame's first."""


def contents_of(frames: list[FrameState]) -> Contents:
    """The slots and the stack of each frame."""
    return [each for frame in frames for each in (frame.slots, frame.stack)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Suspended:
    """A frame that waits, without the contents of its slots and stack."""

    code: NormalizedCode
    globals: dict[str, Any]
    builtins: dict[str, Any]
    offset: int
    then: Then

    def frame(self, slots: list[Any], stack: list[Any]) -> FrameState:
        """A frame that continues here, with these contents."""
        return FrameState(
            code=self.code, slots=slots, globals=self.globals, builtins=self.builtins, stack=stack, offset=self.offset,
            then=self.then, is_running=True,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resumption:
    """Where a segment stopped: the frame of the function, and above it those of inlined calls that the graph broke in."""

    suspended: tuple[Suspended, ...]
    place: Place

    @classmethod
    def of(cls, frames: list[FrameState]) -> Resumption:
        suspended = [
            Suspended(
                code=frame.code, globals=frame.globals, builtins=frame.builtins, offset=frame.offset, then=frame.then
            )
            for frame in frames
        ]
        return cls(suspended=tuple(suspended), place=place_of(frames))

    def frames(self, contents: Contents) -> list[FrameState]:
        """Frames that continue here, with these contents."""
        return [
            one.frame(slots, stack)
            for one, slots, stack in zip(self.suspended, contents[::2], contents[1::2], strict=True)
        ]


@dataclass(slots=True, kw_only=True, eq=False)
class Segment:
    """The part of a function that one graph covers."""

    check_contents: Callable[..., tuple[Any, ...] | None]
    """Checks the guards on the slots and stack of each frame. Returns the objects that the graph and `rebuild` need; None where
    a guard fails.
    """
    inputs: int
    """How many of these objects, from the first on, are the graph's inputs."""
    call: Callable[..., Any] | None
    """The compiled graph; None where there is nothing to compute."""
    rebuild: Callable[[Any, Any], Any]
    """Rebuilds the function's result, or the contents of the frames at the graph break."""
    after: Resumption | None
    """Where the function continues after the graph break; None where it returns."""
    reason: GraphBreak | None
    """Why the graph breaks; None where the function returns."""
    is_stepped: bool
    """Whether the instruction at the graph break still has to run."""
    has_effects: bool
    """Whether the graph has an effect that must not happen twice."""
    sets_state: bool
    """Whether the graph changes grad mode, autocast or inference mode (and restores it at its end)."""
    guards: GuardList
    graph: fx.GraphModule | None
    sources: tuple[Source, ...] = ()
    """The sources of the objects that `check_contents` returns, in order."""
    restart_seconds: float = 0.0
    """Time of the attempts that only found out where the segment has to end."""
    codes: tuple[Any, ...]
    """The code of the frames it begins in and of all inlined functions. Kept alive, because a place contains the id of a code."""

    def check(self, frames: list[FrameState]) -> tuple[Any, ...] | None:
        """`check_contents` for a list of frames."""
        return self.check_contents(*contents_of(frames))


@dataclass(slots=True)
class SegmentCache:
    """The segments of a function by place, most recently used first."""

    by_place: dict[Place, list[Segment]] = field(default_factory=dict)
    refused: set[Place] = field(default_factory=set)  # places that have too many segments
    _sizes: dict[Place, SizeHistory] = field(default_factory=dict)
    is_begun: bool = False  # whether a call ran under a stance that captures the second one

    def clear(self) -> None:
        """Removes all segments."""
        self.by_place.clear()
        self.refused.clear()
        self._sizes.clear()
        self.is_begun = False

    def lookup(self, place: Place, contents: Contents) -> tuple[Segment, tuple[Any, ...]] | None:
        """A segment whose guards hold, and the objects it needs; None where there is none."""
        segments = self.by_place.get(place)
        if segments is None:
            return None
        for segment in segments:
            kept = segment.check_contents(*contents)
            if kept is not None:
                if segments[0] is not segment:
                    self.put_first(segments, segment)
                return segment, kept
        return None

    def put_first(self, segments: list[Segment], segment: Segment) -> None:
        """Moves a segment to the front, so that it is checked first, unless the order is that of their making."""
        if config.automatic_dynamic_exclusion_guard:
            return
        segments.remove(segment)
        segments.insert(0, segment)

    def sizes(self, place: Place) -> SizeHistory:
        """The input sizes seen at a place."""
        return self._sizes.setdefault(place, SizeHistory())

    def add(self, place: Place, segment: Segment) -> None:
        segments = self.by_place.setdefault(place, [])
        segments.insert(len(segments) if config.automatic_dynamic_exclusion_guard else 0, segment)

    def count(self, place: Place) -> int:
        return len(self.by_place.get(place, ()))

    def segments(self) -> list[Segment]:
        return [segment for segments in self.by_place.values() for segment in segments]


def facts_of_segment(segment: Segment | None) -> dict[str, Any]:
    """Fields of CompilationMetrics for a segment: counts of guards and nodes, custom operators. For None, that there is none."""
    if segment is None:
        return {"has_guarded_code": False}
    nodes = [] if segment.graph is None else list(segment.graph.graph.nodes)
    by_tag = _custom_operators(nodes)
    return {
        "has_guarded_code": True,
        "guard_count": len(segment.guards),
        "shape_env_guard_count": sum(
            len(guard.seen.shape_env.guards) for guard in segment.guards if guard.kind is GuardKind.SHAPES
        ),
        "graph_op_count": sum(node.op.startswith("call") for node in nodes),
        "graph_node_count": len(nodes),
        "graph_input_count": sum(node.op == "placeholder" for node in nodes),
        "non_compliant_ops": by_tag[False],
        "compliant_custom_ops": by_tag[True],
        "dynamo_time_before_restart_s": segment.restart_seconds,
    }


def facts_of_failure(raised: BaseException | None) -> dict[str, Any]:
    """Fields of CompilationMetrics for a failure: class and text of the error, and the program's line where it is known."""
    if raised is None:
        return {}
    stack = raised.stack if isinstance(raised, GraphBreak) else ()
    found: dict[str, Any] = {"fail_type": type(raised).__name__, "fail_reason": str(raised)}
    if stack:
        found |= {"fail_user_frame_filename": stack[-1].file, "fail_user_frame_lineno": stack[-1].line}
    return found


def _custom_operators(nodes: list[fx.Node]) -> dict[bool, frozenset[str]]:
    """Names of custom operators, by whether all their overloads have the tag `pt2_compliant_tag`."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in nodes:
        target = node.target
        if isinstance(target, HigherOrderOperator) or not isinstance(target, (OpOverload, OpOverloadPacket)):
            continue
        overloads = (
            [target] if isinstance(target, OpOverload) else [getattr(target, name) for name in target.overloads()]
        )
        if overloads[0].namespace not in _OF_TORCH:
            is_compliant = all(torch.Tag.pt2_compliant_tag in overload.tags for overload in overloads)
            found[is_compliant].add(str(target))
    return {is_compliant: frozenset(names) for is_compliant, names in found.items()}
