"""Programs that are modules: every rule is accepted, state can be left out, and what is around changes between calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuzz.draw.choices import RandomDraw
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.judge.single import judge
from fuzz.program.render import needed_state, render, to_program
from fuzz.program.structure import Block, FuzzProgram, Items, Lines, OpCall, Ref, Statement
from fuzz.vocabulary.programs import draw_program
from fuzz.vocabulary.statements import modules
from fuzz.vocabulary.statements.modules_layers import LAYERS
from fuzz.vocabulary.statements.plans import draw_plan
from fuzz.vocabulary.statements.plans_run import accepted
from fuzz.vocabulary.statements.rule import Rule
from oracle.program import Call
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status

_TRIES = 16


def _scene(seed: int | str, *, focus: str = "guards", is_random: bool = False) -> Scene:
    scene = Scene(RandomDraw(seed), Settings(focus=focus, is_random=is_random), seed=1)
    scene.become_module(())
    scene.new_tensor((3, 4), "float32", layouts=("contiguous",))
    return scene


def _rule(name: str) -> Rule:
    return next(rule for rule in modules.RULES if rule.name == name)


def _program(scene: Scene, rule: Rule) -> FuzzProgram | None:
    """A module with one draw of the rule, and a plan; None where eager refuses it."""
    if rule.name == "over_parameters":
        first = _rule("parameter").draw_statements(scene.draw, scene)
        assert first is not None
        if not scene.add(first):
            return None
    drawn = rule.draw_statements(scene.draw, scene)
    assert drawn is not None
    statements: list[Statement] = [drawn] if isinstance(drawn, (OpCall, Lines, Block)) else [*drawn]
    if not scene.add(statements):
        return None
    names = [name for statement in scene.statements for name in statement.results if name in scene.values]
    program = scene.to_program(Items(tuple(map(Ref, dict.fromkeys(names))), "tuple"))
    return accepted(scene, draw_plan(scene.draw, scene, program))


@pytest.mark.parametrize("rule", modules.RULES, ids=lambda rule: rule.name)
def test_a_rule_is_accepted_in_most_tries_and_its_program_means_one_thing(rule: Rule) -> None:
    drawn = [_program(_scene(f"{rule.name}/{seed}"), rule) for seed in range(_TRIES)]
    programs = [program for program in drawn if program is not None]
    assert len(programs) >= 0.8 * _TRIES
    eager = load(resolve("eager"))
    for program in programs[:4]:
        verdict = judge(to_program(program, name=rule.name), eager).verdict
        assert verdict.status is Status.PASS, (verdict.symptom, render(program))


def test_every_layer_and_container_is_drawn() -> None:
    seen: set[str] = set()
    for seed in range(150):
        scene = _scene(seed, is_random=True)
        program = _program(scene, _rule("layer"))
        if program is not None:
            text = render(program)
            seen.update(name for name in LAYERS if f"self.{name}" in text)
            seen.update(word for word in ("Sequential", "ModuleList", "ModuleDict", "_hook(") if word in text)
    assert seen == {*LAYERS, "Sequential", "ModuleList", "ModuleDict", "_hook("}


def test_no_dropout_where_nothing_random_is_wanted() -> None:
    programs = [_program(_scene(seed), _rule("layer")) for seed in range(60)]
    assert not any("Dropout" in render(program) for program in programs if program is not None)


def test_state_that_nothing_reads_is_left_out() -> None:
    scene = _scene(0)
    for name in ("parameter", "buffer"):
        statements = _rule(name).draw_statements(scene.draw, scene)
        assert statements is not None
        assert scene.add(statements)
    last = scene.statements[-1].results or scene.statements[-2].results
    program = scene.to_program(Ref(last[0]))
    assert len(needed_state(program)) == 2
    alone = FuzzProgram(**{**_fields(program), "statements": (), "result": Ref("a0")})
    assert needed_state(alone) == ()


def _fields(program: FuzzProgram) -> dict[str, object]:
    return {name: getattr(program, name) for name in program.__slots__}


def test_values_of_one_line_do_not_depend_on_the_others() -> None:
    """Leaving out the first of two lines leaves the second as it was."""
    scene = _scene(5)
    for _ in range(2):
        statement = _rule("parameter").draw_statements(scene.draw, scene)
        assert statement is not None
        assert scene.add(statement)
    assert scene.state is not None
    text = scene.state[1].text
    assert text.startswith("torch.default_generator.manual_seed(1); ") or text == "self.w1 = self.w0"  # tied


@pytest.mark.parametrize(
    ("rule", "is_found"),
    [
        # Regressions 197859, 115774 and 111785, 124717
        ("own_submodule", lambda text: "object.__setattr__(target, 'inner0', " in text),
        ("own_submodule", lambda text: "._modules['inner0'] = " in text),
        ("tensor_attribute", lambda text: "target.t0 = torch.tensor(5.0)" in text),
        ("buffer", lambda text: "target.b0 = " in text),
        ("flag_attribute", lambda text: "target.flag0 = False" in text),
        ("parameter", lambda text: "_parameters['w0'] = " in text),
        ("container_attribute", lambda text: "target.c0.append(" in text),
        ("layer", lambda text: ".weight" in text),
    ],
)
def test_what_is_in_the_module_changes_between_calls(rule: str, is_found: Callable[[str], bool]) -> None:
    for seed in range(400):
        program = _program(_scene(seed), _rule(rule))
        if program is not None and any(is_found(call.before) for call in program.calls[1:]):
            return
    pytest.fail("no plan has it")


def test_train_and_eval_are_both_asked_for() -> None:
    plans = [_program(_scene(seed), _rule("layer")) for seed in range(60)]
    flags = {call.training for program in plans if program is not None for call in program.calls}
    assert flags == {None, True, False}


@pytest.mark.parametrize(("focus", "low", "high"), [("guards", 0.3, 0.6), ("export", 0.45, 0.75), ("ops", 0, 0)])
def test_how_often_a_program_is_a_module(focus: str, low: float, high: float) -> None:
    programs = [draw_program(RandomDraw(f"m/{i}"), Settings(focus=focus)) for i in range(60)]
    assert low <= sum(program.is_module for program in programs) / 60 <= high


def test_exports_begin_with_arguments_that_are_one_tensor() -> None:
    """Regression 139805: exported on (x, x), then called on two tensors."""

    def has_same(call: Call) -> bool:
        return any(isinstance(spec, dict) and spec.get("$") == "same" for spec in call.args)

    for seed in range(600):
        calls = draw_program(RandomDraw(f"e/{seed}"), Settings(focus="export")).calls
        if has_same(calls[0]) and any(not has_same(call) for call in calls[1:]):
            return
    pytest.fail("no program has it")


def test_parameters_are_held_in_plain_lists() -> None:
    """Regression 163303."""
    drawn = [_program(_scene(seed, focus="export"), _rule("container_attribute")) for seed in range(60)]
    assert any("= [torch.nn.Parameter(" in render(program) for program in drawn if program is not None)
