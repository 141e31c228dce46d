"""Reduction: finds the smallest program that still shows a finding.

`reduce` is a pure search over the structured program. The caller decides what "still shows" means (`fuzz.reduce.task` runs a
subject and compares symptoms). Every pass offers candidates, large steps first. A candidate that eager refuses, or that does
something undefined which the original does not, is not tried.

Counterpart: torch/_dynamo/repro/after_aot.py (minifier), torch/_functorch/fx_minifier.py
Differs: reduces the program as a user would write it, not a compiler's graph, so that mutation, aliases, guards, gradients and
exceptions can be reduced too.
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
    """The place in the program that the verdict names, which is simplified first."""

    call: int | None = None  # the call that shows the symptom
    output: int | str | None = None  # position or key of the output that shows it
    needs_output: bool = False  # the symptom concerns an output, so a program without outputs cannot show it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The result of a reduction, and its cost."""

    program: FuzzProgram
    trials: int  # candidates that ran on the subject
    refused: int  # candidates that eager refused, or with undefined results
    is_finished: bool  # no pass can reduce further; False: out of time or trials


def reduce(
    program: FuzzProgram,
    shows: Callable[[FuzzProgram], bool],
    *,
    deadline: float,
    max_trials: int = 1000,
    hint: Hint = Hint(),
) -> FuzzProgram:
    """The smallest program found before `deadline` (of `time.monotonic`) for which `shows` is true. Deterministic except for the
    deadline.
    """
    return reduce_counted(program, shows, deadline=deadline, max_trials=max_trials, hint=hint).program


def reduce_counted(
    program: FuzzProgram,
    shows: Callable[[FuzzProgram], bool],
    *,
    deadline: float,
    max_trials: int = 1000,
    hint: Hint = Hint(),
) -> Reduced:
    """Like `reduce`, also with the cost."""
    state = SearchState(replace(program, families=()), shows, deadline=deadline, max_trials=max_trials)
    is_finished = False
    done: dict[str, Hashable] = {}  # by pass: the part of the program that it depends on when it last found nothing
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
    """The passes, those that remove most first."""
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
