"""Call plans: later calls with other arguments, after changes of globals or attributes, which test guards.

Every later call runs in eager while it is drawn. If eager refuses it, it is dropped, or sometimes kept as the last call: a
subject must raise the same error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from fuzz.draw.choices import Draw
from fuzz.draw.scene import REFUSALS, Change, Scene
from fuzz.program.render import render, to_program
from fuzz.program.structure import FuzzProgram
from fuzz.vocabulary.statements.plans_arguments import (
    Specs,
    cast,
    realiased,
    refilled,
    regraded,
    relaid,
    renumbered,
    resized,
    tensors_in,
)
from fuzz.vocabulary.statements.plans_config import draw_config, draw_dynamic
from fuzz.vocabulary.statements.plans_run import PlanRun, UndefinedWriteError
from oracle.program import Call

_TRIES = 3  # variations tried for one later call
# How many calls follow the first one, by focus: weights of 0, 1, 2, 3.
LATER_CALLS: Mapping[str, tuple[float, float, float, float]] = {
    "all": (5, 3, 1.5, 0.5),
    "ops": (9, 1, 0, 0),
    "views": (6, 3, 1, 0),
    "autograd": (6, 3, 1, 0),
    "python": (2, 4, 3, 1),
    "guards": (0, 3, 4, 3),
    "dynamic": (0, 4, 4, 2),
    "export": (3, 4, 2, 0),
    "dtype": (6, 4, 0, 0),
}
_PLAIN: Mapping[str, float] = {
    "repeat": 0.5, "values": 3, "size": 3, "layout": 2, "dtype": 1, "requires_grad": 1, "number": 4, "alias": 1.5,
    "change": 5, "grad_mode": 0.7, "training": 2,
}  # fmt: skip
# How likely each variation is, by focus; those that find nothing to vary are drawn again.
VARIATION_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(LATER_CALLS, _PLAIN),
    "guards": {**_PLAIN, "values": 1, "number": 6, "change": 12, "requires_grad": 1.5, "alias": 3, "training": 3},
    "dynamic": {**_PLAIN, "size": 14, "dtype": 0.3, "requires_grad": 0.3},
    "export": {"repeat": 0.5, "values": 3, "alias": 3, "size": 3},
    "dtype": {**_PLAIN, "dtype": 8},
}
# Errors caused by the program and its arguments, and not by a kernel's implementation.
_KEPT_ERRORS = re.compile(
    r"must match|size of tensor|shape|refused by the program|expected|mat1 and mat2|sizes|not divisible|unpack"
)


@dataclass(slots=True, kw_only=True)
class PlanState:
    """A plan under construction."""

    scene: Scene
    program: FuzzProgram
    source: str
    calls: list[Call]
    run: PlanRun
    is_written: bool = False  # the first call writes to an argument
    restores: dict[str, str] = field(default_factory=dict)  # name of a change -> the statement that restores it

    def possible_changes(self) -> list[Change]:
        """The changes of things that the program depends on."""
        return [c for c in self.scene.changes if re.search(rf"(?<![\w.]){re.escape(c.name)}\b", self.source)]


Vary: TypeAlias = Callable[[Draw, PlanState, Call], Call | None]


def draw_plan(draw: Draw, scene: Scene, program: FuzzProgram) -> FuzzProgram:
    """The program with its calls and its configuration. The first call has the arguments the scene was made with."""
    settings = scene.settings
    dynamic = draw_dynamic(draw, settings)
    first = _first_call(draw, scene)
    program = replace(program, calls=(first,), dynamic=dynamic)
    later = min(draw.weighted(dict(enumerate(LATER_CALLS[settings.focus]))), settings.calls - 1)
    if later:
        program = _with_later_calls(draw, scene, program, later)
    return replace(program, config=draw_config(draw, settings, program))


def _first_call(draw: Draw, scene: Scene) -> Call:
    has_state = scene.state is not None and any(v.requires_grad for n, v in scene.values.items() if "self." in n)
    wants_gradients = has_state or any(tensor.requires_grad for tensor in scene.values.values())
    grad_mode = draw.weighted({"grad": 0.9, "no_grad": 0.08, "inference": 0.02})
    return Call(
        args=[*scene.specs.values()],
        backward=wants_gradients and grad_mode == "grad" and draw.chance(0.9),
        grad_mode=grad_mode,
        training=None if scene.state is None else draw.weighted({None: 2, False: 2, True: 1}),
    )


def _with_later_calls(draw: Draw, scene: Scene, program: FuzzProgram, count: int) -> FuzzProgram:
    state = _begun(scene, program)
    if state is None:
        return program
    for _ in range(count):
        call = _next_call(draw, state)
        if call is None:
            continue
        error = _refusal(state, call)
        if error is None:
            state.calls.append(call)
        elif _is_worth_keeping(error) and draw.chance(0.25):
            return replace(program, calls=(*state.calls, call), expects_raise=True)
        else:  # the refused call may have had effects
            try:
                state.run = _replayed(program, state.calls)
            except REFUSALS:
                break
    return replace(program, calls=tuple(state.calls))


def _begun(scene: Scene, program: FuzzProgram) -> PlanState | None:
    """The plan's state after the first call; None if eager refuses it, for example in backward."""
    try:
        run = _replayed(program, program.calls)
    except REFUSALS:
        return None
    return PlanState(
        scene=scene,
        program=program,
        source=render(program),
        calls=[*program.calls],
        run=run,
        is_written=any(run.written),
    )


def _replayed(program: FuzzProgram, calls: Any) -> PlanRun:
    run = PlanRun(to_program(program, name="plan"))
    for call in calls:
        run.call(call)
    return run


def _refusal(state: PlanState, call: Call) -> Exception | None:
    try:
        state.run.call(call, checks_writes=True)
    except (*REFUSALS, UndefinedWriteError) as error:
        return error
    return None


def _is_worth_keeping(error: Exception) -> bool:
    return isinstance(error, (RuntimeError, ValueError, TypeError)) and bool(_KEPT_ERRORS.search(str(error)))


# ------------------------------------------------------------------------------------------------------- variations


def _next_call(draw: Draw, state: PlanState) -> Call | None:
    """A variation of the last call, or, later on, the first call again."""
    last = replace(state.calls[-1], before="")
    if len(state.calls) >= 2 and draw.chance(0.35):
        restores = [text for text in state.restores.values() if text]
        state.restores.clear()
        return replace(state.calls[0], before="\n".join(restores))
    weights = dict(VARIATION_WEIGHTS[state.scene.settings.focus])
    if state.scene.settings.focus == "export" and state.program.dynamic is not True:
        weights["size"] = 0  # an exported program need not support other sizes
    call: Call | None = None
    for _ in range(2 if draw.chance(0.15) else 1):
        for _ in range(_TRIES):
            varied = VARIATIONS[draw.weighted(weights)](draw, state, call or last)
            if varied is not None:
                call = varied
                break
    if call is None and draw.chance(0.3):
        return last
    return call


def _on_arguments(vary: Callable[[Draw, PlanState, Specs], Specs | None]) -> Vary:
    def varied(draw: Draw, state: PlanState, call: Call) -> Call | None:
        specs = vary(draw, state, call.args)
        return None if specs is None else replace(call, args=specs)

    return varied


def _numbers(draw: Draw, state: PlanState, specs: Specs) -> Specs | None:
    names = [*state.scene.specs]
    others = {names.index(name): options for name, options in state.scene.alternatives.items()}
    return renumbered(draw, specs, others)


def _sizes(draw: Draw, state: PlanState, specs: Specs) -> Specs | None:
    body = state.source.rpartition("\ndef " if not state.program.is_module else "\n    def forward")[2]
    numbers = [*dict.fromkeys(int(text) for text in re.findall(r"(?<![\w.])\d{1,2}(?![\w.])", body))]
    changed = resized(draw, specs, largest=state.scene.settings.max_numel, numbers=numbers)
    if changed is not None and state.scene.settings.focus == "export":
        # 0, 1 and strides are fixed by the example inputs: another one is refused, as documented
        is_fixed = any("stride" in spec or min(spec["shape"], default=2) < 2 for spec in tensors_in([specs, changed]))
        return None if is_fixed else changed
    return changed


def _change(draw: Draw, state: PlanState, call: Call) -> Call | None:
    changes = state.possible_changes()
    if not changes:
        return None
    change = draw.choice(changes)
    state.restores[change.name] = change.restore
    return replace(call, before="\n".join(filter(None, (call.before, draw.choice(change.texts)))))


def _grad_mode(draw: Draw, state: PlanState, call: Call) -> Call | None:
    others = [mode for mode in ("grad", "no_grad", "inference") if mode != call.grad_mode]
    mode = others[0] if draw.chance(0.8) else others[1]
    return replace(call, grad_mode=mode, backward=mode == "grad" and state.run.has_gradients)


def _training(draw: Draw, state: PlanState, call: Call) -> Call | None:
    if not state.program.is_module:
        return None
    return replace(call, training=call.training is False)


def _requires_grad(draw: Draw, state: PlanState, call: Call) -> Call | None:
    specs = regraded(draw, call.args)
    return None if specs is None else replace(call, args=specs, backward=call.grad_mode == "grad" and draw.chance(0.8))


VARIATIONS: Mapping[str, Vary] = {
    "repeat": lambda draw, state, call: call,
    "values": _on_arguments(lambda draw, state, specs: refilled(draw, specs)),
    "size": _on_arguments(_sizes),
    "layout": _on_arguments(lambda draw, state, specs: relaid(draw, specs, writes=state.is_written)),
    "dtype": _on_arguments(lambda draw, state, specs: cast(draw, specs)),
    "requires_grad": _requires_grad,
    "number": _on_arguments(_numbers),
    "alias": _on_arguments(lambda draw, state, specs: realiased(draw, specs)),
    "change": _change,
    "grad_mode": _grad_mode,
    "training": _training,
}
