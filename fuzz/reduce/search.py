"""The search: tries candidates in the order of the passes, each once; one that still shows the finding becomes the current
program.

Cheap checks come first: was the candidate tried before, does eager run it, is its result defined. Only then does the subject run.
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
    """Time or trials are used up: the best program so far is the result."""


class SearchState:
    """The smallest program found, and the candidates tried."""

    def __init__(
        self, program: FuzzProgram, shows: Callable[[FuzzProgram], bool], *, deadline: float, max_trials: int
    ) -> None:
        self.current = program
        self.trials = 0  # candidates that ran on the subject
        self.refused = 0  # candidates that eager refused, or with undefined results
        self._shows = shows
        self._deadline = deadline
        self._max_trials = max_trials
        self._seen = {key_of(program)}
        self._undefined = undefined_kinds(program) or frozenset()
        self._values: tuple[FuzzProgram, list[LiveCall] | None] | None = None

    @property
    def live(self) -> list[LiveCall] | None:
        """The values that the current program computes, by call; None if it does not run."""
        if self._values is None or self._values[0] is not self.current:
            self._values = (self.current, values_of(self.current))
        return self._values[1]

    def accept(self, candidate: FuzzProgram | None) -> bool:
        """Try a candidate; if it shows the finding, it becomes the current program. Raises OutOfBudgetError."""
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
        """Try candidates in order until one shows the finding."""
        return any(self.accept(candidate) for candidate in candidates)

    def accept_edits(self, edits: Sequence[Edit]) -> bool:
        """Apply as many edits as possible: all at once, else by halves. Edits must be independent of each other."""
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
    """A key that is equal for equal programs."""
    return hashlib.blake2b(json.dumps(program.to_json(), sort_keys=True).encode(), digest_size=16).digest()
