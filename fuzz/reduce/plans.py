"""Passes over the call plan and the program's surroundings: calls, changes between them, gradients, configuration, state."""

from __future__ import annotations

import re
from dataclasses import replace

from fuzz.program.editing import Edit, add_argument, fresh_name, renamed_statement, tidied, used_names, with_renamed
from fuzz.program.render import needed_definitions, needed_state, render_function
from fuzz.program.structure import FuzzProgram, renamed
from fuzz.reduce.search import SearchState


def reduce_calls(state: SearchState, *, wrong: int | None = None) -> None:
    """Try one call, then two, then dropping calls one by one. `wrong` is the call that shows the symptom."""
    count = len(state.current.calls)
    if count > 1:
        last = wrong if wrong is not None and wrong < count else count - 1
        pairs = [(before, last) for before in range(last)]
        chosen = [(last,), *pairs, tuple(range(last + 1))]
        if not state.accept_first([_with_calls(state.current, positions) for positions in chosen]):
            state.accept_edits([_without_call(position) for position in reversed(range(count))])
    state.accept_edits([_without_before(position) for position in range(len(state.current.calls))])


def _with_calls(program: FuzzProgram, positions: tuple[int, ...]) -> FuzzProgram:
    """Keep some of the calls. Statements before a dropped call move before the next one."""
    calls = []
    pending = ""
    for position, call in enumerate(program.calls):
        pending = "\n".join(text for text in (pending, call.before) if text)
        if position in positions:
            # changes before the first call do not matter, since nothing is compiled yet
            calls.append(replace(call, before=pending if calls else ""))
            pending = ""
    return replace(program, calls=tuple(calls))


def _without_call(position: int) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        kept = tuple(i for i in range(len(program.calls)) if i != position)
        return _with_calls(program, kept) if kept and position < len(program.calls) else None

    return edit


def _without_before(position: int) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        if position >= len(program.calls) or not program.calls[position].before:
            return None
        calls = list(program.calls)
        calls[position] = replace(calls[position], before="")
        return replace(program, calls=tuple(calls))

    return edit


def reduce_gradients(state: SearchState) -> None:
    """Try without backward, without `requires_grad`, and in the default grad mode."""
    edits: list[Edit] = [_without_backward, _in_grad_mode, _without_training]
    state.accept_edits(edits)
    names = state.current.inputs or state.current.arguments
    state.accept_edits([_without_requires_grad(name) for name in names])


def _without_backward(program: FuzzProgram) -> FuzzProgram | None:
    return replace(program, calls=tuple(replace(call, backward=False) for call in program.calls))


def _in_grad_mode(program: FuzzProgram) -> FuzzProgram | None:
    return replace(program, calls=tuple(replace(call, grad_mode="grad") for call in program.calls))


def _without_training(program: FuzzProgram) -> FuzzProgram | None:
    return replace(program, calls=tuple(replace(call, training=None) for call in program.calls))


def _without_requires_grad(name: str) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        names = program.inputs or program.arguments
        if name not in names:
            return None
        at = names.index(name)

        def plain(args: list[object]) -> list[object]:
            spec = args[at]
            if not isinstance(spec, dict) or not spec.get("requires_grad"):
                return args
            slim = {key: value for key, value in spec.items() if key not in ("requires_grad", "parameter")}
            return [*args[:at], slim, *args[at + 1 :]]

        return replace(program, calls=tuple(replace(call, args=plain(call.args)) for call in program.calls))

    return edit


def reduce_settings(state: SearchState) -> None:
    """Try without configuration, and without a request for dynamic shapes."""
    edits: list[Edit] = [_without_config(key) for key in state.current.config]
    if state.current.dynamic is not None:
        edits.append(lambda program: replace(program, dynamic=None))
    state.accept_edits(edits)
    edits = [_without_keyword(key) for call in state.current.calls for key in (call.kwargs or {})]
    state.accept_edits(edits)


def _without_config(key: str) -> Edit:
    return lambda program: replace(program, config={k: v for k, v in program.config.items() if k != key})


def _without_keyword(key: str) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram:
        calls = [
            replace(call, kwargs={k: v for k, v in (call.kwargs or {}).items() if k != key} or None)
            for call in program.calls
        ]
        return replace(program, calls=tuple(calls))

    return edit


# ---------------------------------------------------------------------------------------------------------------- module


def reduce_module(state: SearchState) -> None:
    """Try a function with the module's state as arguments; else a module with less state."""
    if state.current.state is not None and not state.accept(_as_function(state)):
        state.accept(replace(state.current, state=needed_state(state.current)))
        state.accept_edits([_state_as_argument(entry.name, state) for entry in needed_state(state.current)])
    slim = replace(state.current, definitions=needed_definitions(state.current))
    state.accept(slim)


def _as_function(state: SearchState) -> FuzzProgram | None:
    program, live = state.current, state.live
    if live is None:
        return None
    names = _state_names(program)
    if any("self." in call.before or "target." in call.before for call in program.calls):
        return None
    for name in names:
        program = _handed_in(program, name, state) or program
    program = replace(program, state=None)
    return None if "self." in render_function(program) or "self)" in render_function(program) else program


def _state_as_argument(name: str, state: SearchState) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        return _handed_in(program, name, state) if name in _state_names(program) else None

    return edit


def _state_names(program: FuzzProgram) -> list[str]:
    return sorted(name for name in used_names(program) if re.fullmatch(r"self\.\w+", name))


def _handed_in(program: FuzzProgram, name: str, state: SearchState) -> FuzzProgram | None:
    """Make a part of the state an argument, with its value at the start of each call."""
    if state.live is None:
        return None
    try:
        specs = [call.value(name, before=0) for call in state.live]
    except KeyError:
        return None
    new = fresh_name(program, "p")
    program = replace(
        program,
        statements=tuple(renamed_statement(s, {name: new}) for s in program.statements),
        result=renamed(program.result, {name: new}),
    )
    return tidied(add_argument(program, new, specs))


def reduce_derivation(state: SearchState) -> None:
    """Try arguments that are not derived from inputs."""
    if not state.current.derive:
        return
    inside = replace(
        state.current,
        statements=(*state.current.derive, *state.current.statements),
        arguments=state.current.inputs,
        inputs=(),
        derive=(),
    )
    state.accept(tidied(with_renamed(inside, {})))
