"""Reduction: the smallest program that still shows what a finding shows.

`reduce` is a pure search over the structured program; what "still shows" means is the caller's (`fuzz.reduce.task` asks a
subject and compares symptoms). Every pass offers candidates, from large steps to small ones; a candidate that eager
refuses, or that does something undefined which the original does not, is not tried.

Counterpart: torch/_dynamo/repro/after_aot.py (minifier), torch/_functorch/fx_minifier.py
Differs: works on the program that a user would write, not on the graph a compiler has made of it; so mutation, aliases,
guards, gradients and exceptions reduce like everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fuzz.reduce import lines, operands, plans, specs, statements
from fuzz.reduce.canonical import canonical
from fuzz.reduce.search import OutOfBudgetError, SearchState
from fuzz.structure import FuzzProgram

__all__ = ["Hint", "Reduced", "reduce", "reduce_counted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What the verdict says about where to look first."""

    call: int | None = None  # that shows it
    output: int | None = None  # position in the result that shows it
    needs_output: bool = False  # it is about results: a program that returns nothing cannot show it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What a reduction gives, and what it cost."""

    program: FuzzProgram
    trials: int  # candidates that the subject was asked about
    refused: int  # candidates that eager refused, or that were undefined
    is_finished: bool  # no pass had anything left; False: out of time or trials


def reduce(
    program: FuzzProgram,
    shows: Callable[[FuzzProgram], bool],
    *,
    deadline: float,
    max_trials: int = 1000,
    hint: Hint = Hint(),
) -> FuzzProgram:
    """The smallest program found by `deadline` (of `time.monotonic`), deterministic but for that. `shows(program)` holds."""
    return reduce_counted(program, shows, deadline=deadline, max_trials=max_trials, hint=hint).program


def reduce_counted(
    program: FuzzProgram,
    shows: Callable[[FuzzProgram], bool],
    *,
    deadline: float,
    max_trials: int = 1000,
    hint: Hint = Hint(),
) -> Reduced:
    """The same, with its cost."""
    state = SearchState(replace(program, families=()), shows, deadline=deadline, max_trials=max_trials)
    is_finished = False
    try:
        before = None
        while before != state.current:
            before = state.current
            _round(state, hint)
        is_finished = True
        state.accept(canonical(state.current))
    except OutOfBudgetError:
        pass
    named = replace(state.current, families=program.families)
    return Reduced(program=named, trials=state.trials, refused=state.refused, is_finished=is_finished)


def _round(state: SearchState, hint: Hint) -> None:
    """All passes once: those that take away most come first."""
    plans.reduce_calls(state, wrong=hint.call)
    statements.reduce_result(state, first=hint.output)
    statements.truncate(state)
    statements.cut_beginning(state)
    statements.drop_statements(state)
    statements.unwrap_blocks(state)
    lines.inline_helpers(state)
    lines.unroll_loops(state)
    lines.split_lines(state)
    lines.propagate_copies(state)
    plans.reduce_module(state)
    plans.reduce_derivation(state)
    if not hint.needs_output:
        statements.drop_result(state)
    plans.reduce_settings(state)
    plans.reduce_gradients(state)
    specs.drop_unused(state)
    operands.reduce_keywords(state)
    specs.reduce_memory(state)
    operands.reduce_operands(state)
    specs.reduce_dtypes(state)
    specs.reduce_shapes(state)
    specs.merge_arguments(state)
    specs.reduce_values(state)
