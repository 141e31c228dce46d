"""Rules of Python features and control flow: every one can be drawn, eager accepts it, and its text is whole."""

from __future__ import annotations

import re

import pytest

from fuzz.draw.choices import RandomDraw
from fuzz.draw.scene import REFUSALS, Scene
from fuzz.draw.settings import Settings
from fuzz.judge.single import judge
from fuzz.program.render import render, to_program
from fuzz.program.structure import Block, FuzzProgram, Items, Lines, OpCall, Ref, Statement
from fuzz.vocabulary.programs import PYTHON_RULES, draw_program
from fuzz.vocabulary.statements import control
from fuzz.vocabulary.statements.plans import draw_plan
from fuzz.vocabulary.statements.plans_run import PlanRun, accepted
from fuzz.vocabulary.statements.python_template import Template, Varies, computation, filled, rules_of
from fuzz.vocabulary.statements.rule import Rule
from oracle.program import Call
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status

_RARE = {"cond", "while_loop", "scan", "map"}  # eager compiles them: half a second each
_RULES = [rule for rule in (*PYTHON_RULES, *control.RULES) if rule.name not in _RARE]
_TRIES = 12


def _scene(seed: int | str, *, focus: str = "python") -> Scene:
    scene = Scene(RandomDraw(seed), Settings(focus=focus), seed=1)
    scene.new_tensor((3, 4), "float32", layouts=("contiguous",))
    scene.new_tensor((3, 4), "float32")
    return scene


def _drawn(rule: Rule, seed: int) -> tuple[Scene, list[Statement] | None]:
    scene = _scene(f"{rule.name}/{seed}")
    found = rule.draw_statements(scene.draw, scene)
    if found is None:
        return scene, None
    return scene, [found] if isinstance(found, (OpCall, Lines, Block)) else [*found]


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.name)
def test_a_rule_is_accepted_in_most_tries_and_its_program_means_one_thing(rule: Rule) -> None:
    programs: list[FuzzProgram] = []
    for seed in range(_TRIES):
        scene, statements = _drawn(rule, seed)
        if statements is None or not scene.add(statements):
            continue
        names = [name for statement in statements for name in statement.results if name in scene.values]
        result = Items(tuple(map(Ref, dict.fromkeys([*names, "a0"]))), "tuple")
        program = accepted(scene, draw_plan(scene.draw, scene, scene.to_program(result)))
        programs += [program] if program is not None else []
    assert len(programs) >= (_TRIES // 4 if rule.name in ("raise", "try_torch", "identity") else _TRIES // 2)
    eager = load(resolve("eager"))
    for program in programs[:2]:
        verdict = judge(to_program(program, name=rule.name), eager).verdict
        assert verdict.status is Status.PASS, (verdict.symptom, render(program))


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.name)
def test_no_place_of_a_text_is_left_open(rule: Rule) -> None:
    for seed in range(4):
        scene, statements = _drawn(rule, seed)
        if statements is None or not scene.add(statements):
            continue
        source = render(scene.to_program(Ref("a0")))
        assert not re.search(r"\$\w|\{[xyrsA]\}", source), source
        for change in scene.changes:
            assert "$" not in " ".join((change.name, change.restore, *change.texts))


def test_names_of_rules_are_unique() -> None:
    names = [rule.name for rule in (*PYTHON_RULES, *control.RULES)]
    assert len(names) == len(set(names))
    assert len(names) >= 120


def test_draws_are_a_function_of_their_seed() -> None:
    def sources() -> list[str]:
        return [render(draw_program(RandomDraw(f"p/{i}"), Settings(focus="python"))) for i in range(25)]

    assert sources() == sources()


def test_what_a_rule_changes_between_calls_changes_the_result() -> None:
    """Each text of a change gives, in eager, another result than no change; or an error. Else it would test nothing."""
    silent = []
    for rule in _RULES:
        scene, statements = _drawn(rule, 0)
        if statements is None or not scene.add(statements):
            continue
        names = [name for statement in statements for name in statement.results if name in scene.values]
        program = scene.to_program(Items(tuple(map(Ref, names)), "tuple"))
        for change in scene.changes:
            silent += [(rule.name, text) for text in change.texts if _is_silent(program, scene, text)]
    # what is equal for this one draw: a dtype that is not the tensor's, a rank that is in both sets, ...
    assert len(silent) <= 12, silent


def _is_silent(program: FuzzProgram, scene: Scene, text: str) -> bool:
    outcomes = []
    for before in ("", text):
        run = PlanRun(to_program(program, name="p"))
        specs = [*scene.specs.values()]
        try:
            run.call(Call(args=specs))
            run.call(Call(args=specs, before=before))
        except REFUSALS as error:
            outcomes.append(repr(error))
        else:
            outcomes.append(repr(run.result))
    return outcomes[0] == outcomes[1]


def test_a_template_fills_its_places() -> None:
    template = Template(
        name="sample",
        definitions=("$D = $n", "def $E(x):\n    return $b(x, x) * $D"),
        text="{r} = $E($f({x}))[..., 0] * {A}",
        argument=(2, 3),
        varies=(Varies(kind="global", name="$D", texts=("$D = $m",), restore="$D = $n"),),
    )
    scene = _scene(3)
    lines = filled(scene.draw, scene, template)
    assert lines is not None
    assert scene.add(lines)
    assert [definition.name for definition in scene.definitions] == ["sample0", "sample_e0"]
    assert scene.definitions[1].needs == ("sample0",)
    assert lines.definitions == ("sample_e0",)
    assert lines.uses[-1] == "a2"
    assert scene.alternatives == {"a2": (2, 3)}
    assert scene.changes[0].name == "sample0"
    assert scene.changes[0].texts[0] != scene.changes[0].restore
    assert "sample0 = " in render(scene.to_program(Ref(lines.results[0])))


def test_computations_of_a_template_vary() -> None:
    assert len({computation(RandomDraw(seed), "float", "f", "x") for seed in range(60)}) >= 10
    assert "where(a > b, a, b * 2)" in " ".join(
        computation(RandomDraw(seed), "float", "b", "a, b") for seed in range(60)
    )


def test_rules_that_leave_the_graph_are_no_part_of_exports() -> None:
    (rule,) = rules_of((Template(name="sample", text="{r} = {x} * 2"),), is_exportable=False)
    scene = _scene(0, focus="export")
    assert rule.draw_statements(scene.draw, scene) is None
    assert rule.draw_statements(scene.draw, _scene(0)) is not None


@pytest.mark.parametrize(("focus", "least"), [("python", 0.6), ("guards", 0.6), ("all", 0.08)])
def test_how_often_python_features_are_drawn(focus: str, least: float) -> None:
    programs = [draw_program(RandomDraw(f"d/{i}"), Settings(focus=focus)) for i in range(100)]
    share = sum(bool({"python", "control", "state"} & set(program.families)) for program in programs) / 100
    assert share >= least


def test_operators_alone_have_no_python_features() -> None:
    programs = [draw_program(RandomDraw(f"d/{i}"), Settings(focus="ops")) for i in range(30)]
    assert not any({"python", "control", "state"} & set(program.families) for program in programs)


def test_a_size_is_compared_with_one_that_comes_later() -> None:
    """Regression 113875: a comparison with a shape, and then an input of exactly that shape."""
    rule = next(rule for rule in PYTHON_RULES if rule.name == "size_compared")
    for seed in range(2000):
        draw = RandomDraw(seed)
        scene = Scene(draw, Settings(focus="dynamic"), seed=1)
        scene.new_tensor((5, 2, 3), "float32", layouts=("contiguous",))
        block = rule.draw_statements(draw, scene)
        assert isinstance(block, Block)
        compared = re.search(r"!= (\(.*\))", block.header)
        if compared is None or not scene.add(block):
            continue
        shapes = [tuple(call.args[0]["shape"]) for call in draw_plan(draw, scene, scene.to_program(Ref("v0"))).calls]
        if shapes[0] != eval(compared[1]) and eval(compared[1]) in shapes[1:]:
            return
    pytest.fail("no plan came to the shape that the program compares with")


def test_a_class_attribute_is_another_at_a_later_call() -> None:
    """Regression 176851."""
    rule = next(rule for rule in PYTHON_RULES if rule.name == "class_attribute")
    for seed in range(100):
        scene = _scene(seed, focus="guards")
        lines = rule.draw_statements(scene.draw, scene)
        assert isinstance(lines, Lines)
        if scene.add(lines):
            program = draw_plan(scene.draw, scene, scene.to_program(Ref(lines.results[0])))
            if any(".scale = " in call.before for call in program.calls[1:]):
                return
    pytest.fail("no plan changed the attribute")
