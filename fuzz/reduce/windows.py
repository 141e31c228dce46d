"""Narrows a long program to a short run of its statements that shows the finding alone, before the passes of `fuzz.reduce`.

A judgement of some hundred statements takes seconds, one of ten a fraction of that. So short windows are tried first: those that
end where values begin to differ (`fuzz.reduce.scout`), then quarters of the program, and quarters of the one that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fuzz.program.editing import defined_names, tidied, uses_of
from fuzz.program.structure import FuzzProgram, Items, Operand, Ref, names_in
from fuzz.reduce.live import LiveCall
from fuzz.reduce.search import OutOfBudgetError, SearchState
from fuzz.reduce.statements import starting_at

SHORT = 12  # a program of so many statements is not narrowed
# Windows around a suspect: statements before it, and behind it, which a fused kernel may need.
_AROUND = ((0, 1), (2, 1), (8, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """The shorter program, or the same if no window shows the finding; and the candidates that ran on the subject."""

    program: FuzzProgram
    trials: int


def narrowed(
    program: FuzzProgram,
    shows: Callable[[FuzzProgram], bool],
    suspects: Sequence[int],
    *,
    deadline: float,
) -> Narrowed:
    """The shortest run of statements found that shows the finding.

    `suspects` are positions of statements that may be wrong, the most suspicious first. `program` need not have been tried
    itself. `deadline` is a time of `time.monotonic`.
    """
    state = SearchState(program, shows, deadline=deadline, max_trials=1000)
    try:
        if len(program.statements) > SHORT and not _around(state, suspects):
            while len(state.current.statements) > SHORT and _some_quarter(state):
                pass
    except OutOfBudgetError:
        pass
    return Narrowed(program=state.current, trials=state.trials)


def _around(state: SearchState, positions: Sequence[int]) -> bool:
    """Accept a window that ends with a suspect, or a little behind it."""
    program, live = state.current, state.live
    if live is None:
        return False
    candidates = (window(program, at - before, at + behind, live) for before, behind in _AROUND for at in positions)
    return any(map(state.accept, candidates))


def _some_quarter(state: SearchState) -> bool:
    """Accept a quarter of the program, or the half around each; quarters overlap by half."""
    program, live = state.current, state.live
    if live is None:
        return False
    count = len(program.statements)
    return any(state.accept(window(program, low, high, live)) for low, high in _spans(count))


def _spans(count: int) -> Iterator[tuple[int, int]]:
    for size in (max(SHORT // 2, count // 4), count // 2 + 1):
        step = max(1, size // 2)
        for low in range(0, max(1, count - step), step):
            yield low, min(count, low + size)


def window(program: FuzzProgram, low: int, high: int, live: Sequence[LiveCall]) -> FuzzProgram | None:
    """Statements `low` to `high` alone, on the values that they had in the program; None if one cannot be an argument.

    It returns what later statements or the result read of it, or else all that it computes.
    """
    low, high = max(0, low), min(high, len(program.statements))
    kept, later = program.statements[low:high], program.statements[high:]
    made = defined_names(kept)
    read = set(names_in(program.result)).union(*(uses_of(statement) for statement in later)) & set(made)
    names = [name for name in made if name in read] or made
    result: Operand = Ref(names[0]) if len(names) == 1 else Items(tuple(Ref(name) for name in names), "tuple")
    shorter = replace(program, statements=program.statements[:high], result=result if names else None)
    return tidied(shorter) if low == 0 else starting_at(shorter, low, live)
