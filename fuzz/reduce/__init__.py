"""Reduction: the smallest program that still shows what a finding shows.

`reduce` is a pure search over the structured program; what "still shows" means is the caller's (`fuzz.reduce.task` asks a
subject and compares symptoms). Every pass offers candidates, from large steps to small ones; a candidate that eager
refuses, or that does something undefined which the original does not, is not tried.

Counterpart: torch/_dynamo/repro/after_aot.py (minifier), torch/_functorch/fx_minifier.py
Differs: works on the program that a user would write, not on the graph a compiler has made of it; so mutation, aliases,
guards, gradients and exceptions reduce like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

from fuzz.program.structure import FuzzProgram
from fuzz.reduce import lines, operands, plans, specs, statements
from fuzz.reduce.canonical import canonical
from fuzz.reduce.search import OutOfBudgetError, SearchState, key_of

__all__ = ["Hint", "Reduced", "reduce", "reduce_counted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What the verdict says about where to look first."""

    call: int | None = None  # that shows it
    output: int | str | None = None  # position or key in the result that shows it
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
    done: dict[str, Hashable] = {}  # by pass: what it saw when it last ended without anything left
    try:
        before = None
        while before != state.current:
            before = state.current
            for step in _passes(hint):
                if done.get(step.name) != step.sees(state.current):
                    step.run(state)
                    done[step.name] = step.sees(state.current)
        is_finished = True
    except OutOfBudgetError:
        pass
    last = canonical(state.current)
    if last == state.current or not shows(
        last
    ):  # one question more than was asked for, so that equal programs look equal
        last = state.current
    named = replace(last, families=program.families)
    return Reduced(program=named, trials=state.trials, refused=state.refused, is_finished=is_finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One pass; it runs again only after something it depends on has changed."""

    name: str
    run: Callable[[SearchState], object]
    sees: Callable[[FuzzProgram], Hashable]


def _passes(hint: Hint) -> list[_Pass]:
    """Those that take away most come first."""
    structural: list[Callable[[SearchState], object]] = [
        partial(plans.reduce_calls, wrong=hint.call),
        partial(statements.reduce_result, first=hint.output),
        statements.truncate,
        statements.cut_beginning,
        statements.drop_statements,
        statements.unwrap_blocks,
        lines.inline_helpers,
        lines.unroll_loops,
        lines.split_lines,
        lines.propagate_copies,
        plans.reduce_module,
        plans.reduce_derivation,
    ]
    if not hint.needs_output:
        structural.append(statements.drop_result)
    structural += [plans.reduce_settings, plans.reduce_gradients, specs.drop_unused, operands.reduce_keywords]
    shaping: list[Callable[[SearchState], object]] = [
        specs.reduce_memory,
        operands.reduce_operands,
        operands.generalise_operators,
        specs.reduce_dtypes,
        specs.reduce_shapes,
        specs.merge_arguments,
    ]
    return [
        *(_Pass(name=_name(run), run=run, sees=_structure) for run in structural),
        *(_Pass(name=_name(run), run=run, sees=_structure_and_shapes) for run in shaping),
        _Pass(name="reduce_values", run=specs.reduce_values, sees=key_of),
    ]


def _name(run: Callable[[SearchState], object]) -> str:
    return (run.func if isinstance(run, partial) else run).__name__


def _structure(program: FuzzProgram) -> Hashable:
    return key_of(replace(program, calls=tuple(replace(call, args=None) for call in program.calls)))


def _structure_and_shapes(program: FuzzProgram) -> Hashable:
    return key_of(
        replace(program, calls=tuple(replace(call, args=_without_fills(call.args)) for call in program.calls))
    )


def _without_fills(specs_: list[object]) -> list[object]:
    return [{k: v for k, v in spec.items() if k != "fill"} if isinstance(spec, dict) else spec for spec in specs_]
