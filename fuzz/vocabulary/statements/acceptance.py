"""The last question to a drawn program: does eager accept all of it, with one meaning. What it does not is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuzz.draw.scene import REFUSALS, Scene
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from fuzz.vocabulary.statements.plans_run import PlanRun, UndefinedWriteError
from oracle.program.build import ProgramLoadError

_REFUSALS = (*REFUSALS, UndefinedWriteError, ProgramLoadError)


def accepted(scene: Scene, program: FuzzProgram) -> FuzzProgram | None:
    """The program with a plan that eager carries out from beginning to end; None where not even the first call.

    Where autograd cannot go back from the results and the arguments that were written to, no call has gradients: a subject
    that traces forward and backward together would have to refuse what eager refuses later, or never.
    """
    for candidate in _candidates(scene, program):
        accepted_calls = _number_of_calls_accepted(candidate)
        if accepted_calls == len(candidate.calls):
            return candidate
        if accepted_calls:
            return replace(candidate, calls=candidate.calls[:accepted_calls], expects_raise=False)
    return None


def _candidates(scene: Scene, program: FuzzProgram) -> list[FuzzProgram]:
    """The program as it is, with gradients off, with inputs that want none; those that may do."""
    calls = program.calls
    wants_gradients = any(call.grad_mode == "grad" for call in calls) and scene.wants_gradients()
    without = replace(program, calls=tuple(replace(call, backward=False, grad_mode="no_grad") for call in calls))
    plain = replace(program, calls=tuple(replace(call, backward=False, args=_ungraded(call.args)) for call in calls))
    if wants_gradients and not scene.accepts_backward(program.result):
        return [without] if program.is_module else [without, plain]
    return [program, plain]


def _ungraded(tree: Any) -> Any:
    """Specs without `requires_grad`."""
    if isinstance(tree, Mapping):
        return {name: _ungraded(value) for name, value in tree.items() if name != "requires_grad"}
    return [_ungraded(item) for item in tree] if isinstance(tree, list) else tree


def _number_of_calls_accepted(program: FuzzProgram) -> int:
    try:
        run = PlanRun(to_program(program, name="plan"))
    except _REFUSALS:
        return 0
    for number, call in enumerate(program.calls):
        try:
            run.call(call, checks_writes=True)
        except UndefinedWriteError:
            return number
        except _REFUSALS:
            is_meant = program.expects_raise and number == len(program.calls) - 1
            return number + 1 if is_meant else number
    return len(program.calls)
