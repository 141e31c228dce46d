"""Programs: `draw_program` is the whole grammar in one function: layout of arguments, statements, results, call plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene, is_usable
from fuzz.draw.settings import Settings
from fuzz.program.structure import Entries, FuzzProgram, Items, OpCall, Operand, Ref, walk
from fuzz.vocabulary.statements import (
    autograd,
    control,
    modules,
    ops,
    python_around,
    python_calls,
    python_classes,
    python_data,
    python_names,
    python_special,
    python_tensors,
    random,
    views,
    writes,
)
from fuzz.vocabulary.statements.layouts import draw_layout
from fuzz.vocabulary.statements.plans import draw_plan
from fuzz.vocabulary.statements.plans_run import accepted
from fuzz.vocabulary.statements.rule import Rule
from oracle.program import Call

_LARGEST_SEED = (1 << 31) - 1
_GOES_ON = 0.75  # chance of one more statement
_ATTEMPTS = 4  # at a program that eager accepts
_TRIES = 6  # rules tried for one statement before the program ends earlier
_MOST_RESULTS = 6

# Features of Python that capture must trace or leave to Python.
PYTHON_RULES: tuple[Rule, ...] = (
    *python_names.RULES,
    *python_around.RULES,
    *python_calls.RULES,
    *python_classes.RULES,
    *python_data.RULES,
    *python_tensors.RULES,
    *python_special.RULES,
)
RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "op": ops.RULES,
        "view": views.RULES,
        "write": writes.RULES,
        "autograd": autograd.RULES,
        "random": random.RULES,
        "state": modules.RULES,
        "control": control.RULES,
        "python": PYTHON_RULES,
    }
)


def draw_program(draw: Draw, settings: Settings) -> FuzzProgram:
    """A program that eager accepts, with every call of its plan except possibly a last one that is meant to raise."""
    for _ in range(_ATTEMPTS):
        program = _drawn(draw, settings)
        if program is not None:
            return program
    scene = Scene(draw, settings, seed=draw.integer(0, _LARGEST_SEED))
    result = Ref(scene.new_tensor())
    return scene.to_program(result, calls=(Call(args=[*scene.specs.values()]),))


def _drawn(draw: Draw, settings: Settings) -> FuzzProgram | None:
    scene = Scene(draw, settings, seed=draw.integer(0, _LARGEST_SEED))
    modules.begin(draw, scene)
    draw_layout(draw, scene)
    for count in range(settings.max_statements):
        # One choice before each statement instead of one count, so that Hypothesis can remove any statement.
        if count >= settings.min_statements and not draw.chance(_GOES_ON):
            break
        _add_statement(draw, scene)
    program = scene.to_program(draw_result(draw, scene))
    program = draw_plan(draw, scene, program)
    if any(isinstance(s, OpCall) and s.target == "torch.autograd.grad" for s in walk(program.statements)):
        # with donated buffers, compiled functions refuse to retain the graph
        program = replace(program, config={**program.config, "torch._functorch.config.donated_buffer": False})
    return accepted(scene, program)


def _add_statement(draw: Draw, scene: Scene) -> None:
    weights = {name: weight for name, weight in scene.settings.family_weights().items() if RULES.get(name)}
    if scene.state is None:
        weights.pop("state", None)
    steering = scene.settings.steering
    for _ in range(_TRIES):
        family = draw.weighted(weights)
        by_name = {rule.name: rule for rule in RULES[family]}
        rule = by_name[draw.weighted({n: r.weight * steering.factor(f"rule:{n}") for n, r in by_name.items()})]
        before = len(scene.arguments), len(scene.statements)
        statements = rule.draw_statements(draw, scene)
        if statements is not None and scene.add(statements):
            scene.families[family] = None
            return
        if len(scene.statements) == before[1]:
            scene.forget_arguments(before[0])  # no statement uses them


def draw_result(draw: Draw, scene: Scene) -> Operand:
    """What a program returns: up to six values, likely those that no statement reads; if memory is written, any value may be."""
    # a value that is only written to does not count as read, since its last contents should be returned
    used = {name for statement in scene.statements if statement.results for name in statement.uses}
    live = [name for name, value in scene.values.items() if is_usable(value)]
    results = [name for statement in scene.statements for name in statement.results if name in live]
    wanted: list[Operand] = [Ref(name) for name in dict.fromkeys(results) if name not in used]
    is_written = len(results) < len(scene.statements)
    if live and draw.chance(0.6 if is_written else 0.3):
        wanted.append(Ref(draw.choice(live)))
    if wanted and draw.chance(0.05):
        wanted.append(draw.choice(wanted))  # the same object twice
    if not wanted and is_written and draw.chance(0.3):
        return None
    if not wanted:
        wanted = [Ref(live[-1])] if live else []
    wanted = wanted[:_MOST_RESULTS]
    if draw.chance(0.04):
        wanted.append(Ref(draw.choice([*scene.scalars])) if scene.scalars else draw.choice((None, 1)))
    if len(wanted) == 1 and draw.chance(0.9):
        return wanted[0]
    return _contained(draw, wanted)


def _contained(draw: Draw, wanted: list[Operand]) -> Operand:
    kind = draw.weighted({"tuple": 10, "list": 1.5, "dict": 1.5, "nested": 1})
    match kind:
        case "list":
            return Items(tuple(wanted), "list")
        case "dict":
            return Entries(tuple(zip(("x", "y", "z", "w", "u"), wanted, strict=False)))
        case "nested":
            inner = Items(tuple(wanted[1:]), "list")
            return Items((*wanted[:1], Entries((("rest", inner),))), "tuple")
        case _:
            return Items(tuple(wanted), "tuple")
