"""Draw: where every random choice of a program comes from.

The grammar is written once, against this interface. `RandomDraw` takes choices from a seeded generator and is what campaigns
use (tens of thousands of programs a minute); `HypothesisDraw` takes them from a Hypothesis test case, so that the same grammar
is a strategy that shrinks. The first of several options is the simplest one: that is the one Hypothesis shrinks to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Draw(Protocol):
    """A source of choices. The same seed gives the same choices."""

    def integer(self, low: int, high: int) -> int:
        """low <= result <= high."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, the simplest first. Raises IndexError for none."""
        ...

    def weighted(self, weights: Mapping[T, float]) -> T:
        """One of the keys; a weight of 0 is never drawn. Raises ValueError when no weight is positive."""
        ...

    def chance(self, probability: float) -> bool:
        """True with this probability; False is the simpler answer."""
        ...


class RandomDraw:
    """Choices from a seeded generator."""

    def __init__(self, seed: int | str) -> None:
        self._rng = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._rng.randrange(len(options))] if options else _nothing()

    def weighted(self, weights: Mapping[T, float]) -> T:
        return _at(weights, self._rng.random())

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability


class HypothesisDraw:
    """Choices of a Hypothesis test case; `draw` is what `@st.composite` hands in."""

    _DIGIT = 127  # Hypothesis draws integers of wider ranges with a bias to small ones
    _STEPS = _DIGIT * _DIGIT  # resolution of probabilities

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        if len(options) > self._DIGIT:
            return options[self._position() * len(options) // self._STEPS]
        return options[self._draw(st.integers(0, len(options) - 1))] if options else _nothing()

    def weighted(self, weights: Mapping[T, float]) -> T:
        return _at(weights, self._position() / self._STEPS)

    def chance(self, probability: float) -> bool:
        if probability <= 0 or probability >= 1:
            return probability >= 1
        return self._position() >= (1 - probability) * self._STEPS

    def _position(self) -> int:
        """A uniform integer, 0 <= result < _STEPS."""
        return self._draw(st.integers(0, self._DIGIT - 1)) * self._DIGIT + self._draw(st.integers(0, self._DIGIT - 1))


def _nothing() -> Any:
    raise IndexError("a choice among no options")


def _at(weights: Mapping[T, float], position: float) -> T:
    """The key at a position in [0, 1) of the cumulated weights."""
    total = sum(weights.values())
    if total <= 0:
        raise ValueError(f"weights {dict(weights)!r}, but one should be positive")
    reached = 0.0
    last: T | None = None
    for key, weight in weights.items():
        if weight <= 0:
            continue
        last = key
        reached += weight
        if position * total < reached:
            return key
    assert last is not None
    return last
