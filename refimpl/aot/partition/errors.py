"""Errors of partitioning."""

from __future__ import annotations

from collections.abc import Sequence

from refimpl.errors import RefimplError


class UnsplittableJointGraph(RefimplError, RuntimeError):
    """A joint graph that no forward and backward graph can be made of."""

    def __init__(self, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"the joint graph cannot be split: {seen}\n  expected: {expected}\n  what to do: {do}")


class IllegalPartition(RefimplError, AssertionError):
    """A forward and a backward graph that together are not the joint graph."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(
            f"the forward and backward graphs are no partition of the joint graph:{listed}\n"
            "  expected: all outputs kept, random and effectful ops run once, a backward that needs only what the forward saves\n"
            "  what to do: report it as a fault of the partitioner that made them, with the joint graph"
        )
