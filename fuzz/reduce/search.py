"""The search: candidates in the order the passes offer them, each tried once; what still shows becomes the program.

Cheap questions come first: was this candidate seen, does eager run it, is its meaning defined. Only then is the subject asked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence

from fuzz.program.editing import Edit
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.live import LiveCall, undefined_kinds, values_of


class OutOfBudgetError(Exception):
    """Time or trials are used up: the best program so far is the answer."""


class SearchState:
    """The smallest program found, and what has been tried."""

    def __init__(
        self, program: FuzzProgram, shows: Callable[[FuzzProgram], bool], *, deadline: float, max_trials: int
    ) -> None:
        self.current = program
        self.trials = 0  # the subject was asked
        self.refused = 0  # eager refused, or the meaning became open
        self._shows = shows
        self._deadline = deadline
        self._max_trials = max_trials
        self._seen = {key_of(program)}
        self._undefined = undefined_kinds(program) or frozenset()
        self._values: tuple[FuzzProgram, list[LiveCall] | None] | None = None

    @property
    def live(self) -> list[LiveCall] | None:
        """The values that the current program computes, by call; None where they cannot be had."""
        if self._values is None or self._values[0] is not self.current:
            self._values = (self.current, values_of(self.current))
        return self._values[1]

    def accept(self, candidate: FuzzProgram | None) -> bool:
        """Try a candidate; where it shows, it is the current program from now on. Raises OutOfBudgetError."""
        if candidate is None or candidate == self.current:
            return False
        key = key_of(candidate)
        if key in self._seen:
            return False
        self._seen.add(key)
        if time.monotonic() > self._deadline or self.trials >= self._max_trials:
            raise OutOfBudgetError
        undefined = undefined_kinds(candidate)
        if undefined is None or not undefined <= self._undefined:
            self.refused += 1
            return False
        self.trials += 1
        if not self._shows(candidate):
            return False
        self.current = candidate
        return True

    def accept_first(self, candidates: Sequence[FuzzProgram | None]) -> bool:
        """Try candidates in order until one shows."""
        return any(self.accept(candidate) for candidate in candidates)

    def accept_edits(self, edits: Sequence[Edit]) -> bool:
        """Make as many of the edits as keep what shows: all at once, else by halves. Edits must not disturb one another."""
        if not edits:
            return False
        candidate = self.current
        for edit in edits:
            candidate = edit(candidate) or candidate
        if self.accept(candidate):
            return True
        if len(edits) == 1:
            return False
        half = len(edits) // 2
        first = self.accept_edits(edits[:half])
        return self.accept_edits(edits[half:]) or first


def key_of(program: FuzzProgram) -> bytes:
    """What two programs have in common that are one."""
    return hashlib.blake2b(json.dumps(program.to_json(), sort_keys=True).encode(), digest_size=16).digest()
