"""Whole programs: the same from the same seed, accepted and defined in eager, and with every feature often enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.draw.choices import HypothesisDraw, RandomDraw
from fuzz.draw.geometry import overlaps_itself, partly_overlap
from fuzz.draw.scene import Scene
from fuzz.draw.settings import FOCUSES, Settings
from fuzz.program.render import render, to_program
from fuzz.program.structure import Expr, FuzzProgram, OpCall, Operand, Ref
from fuzz.tests.grammar_samples import assert_same_outcome, programs, share_of
from fuzz.vocabulary.programs import draw_program
from fuzz.vocabulary.statements.plans_run import accepted
from oracle.observe import observe
from oracle.observe.outcome import Raised
from oracle.program import Call
from oracle.program.build import instantiate

COUNT = 300


@pytest.mark.parametrize("focus", FOCUSES)
def test_one_seed_gives_one_program(focus: str) -> None:
    for seed in ("0/1", "0/2", "1/1"):
        one, again = (draw_program(RandomDraw(seed), Settings(focus=focus)) for _ in range(2))
        assert repr(one) == repr(again)


@pytest.mark.parametrize("focus", FOCUSES)
def test_programs_are_defined(focus: str) -> None:
    """Two runs of eager in one process give the same bits, and raise only where the plan says so."""
    for program in programs(focus, 60):
        plan = to_program(program, name="p")
        torch.compiler.reset()  # torch.cond compiles in eager too, and gives up after many functions
        one, again = observe(instantiate(plan)), observe(instantiate(plan))
        assert isinstance(one, Raised) <= program.expects_raise, render(program)
        assert_same_outcome(one, again, render(program))


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_programs_drawn_by_hypothesis_are_accepted(data: Any) -> None:
    program = draw_program(HypothesisDraw(data.draw), Settings(max_statements=3))
    outcome = observe(instantiate(to_program(program, name="p")))
    assert isinstance(outcome, Raised) <= program.expects_raise


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        (r"'\$': 'same'", 0.03),
        (r"'storage': 's0'", 0.05),
        (r"^def derive", 0.15),
        (r"is None else", 0.01),
        (r"= \w+\[[^\]]*:", 0.15),
        (r"as_strided\(", 0.01),
        (r"\.unfold\(", 0.03),
        (r"\.(split|chunk|tensor_split|unbind)\(", 0.05),
        (r"\.(transpose|permute|mT|t)\b", 0.08),
        (r"\.(view|reshape|flatten|unflatten|ravel)\(", 0.1),
        (r"\.expand\(", 0.03),
        (r"\.view\(torch\.", 0.005),
        (r"^\s+\w+\[.*\] = ", 0.06),
        (r"\.\w+_\(", 0.3),
        (r"[+*/-]= ", 0.03),
        (r"out=", 0.02),
        (r"_foreach_\w+_\(", 0.015),
        (r"\.(squeeze|unsqueeze|transpose|t|resize|as_strided|swapaxes)_\(", 0.015),
        (r"(detach\(\)|\.data)\n\s+v\d+\.\w+_\(", 0.01),
        (r"return .*\ba\d", 0.2),
        (r"return \{|return .*\{'rest'", 0.05),
        (r"'stride': \[[^\]]*\b0\b", 0.03),
        (r"backward=True", 0.2),
    ],
)
def test_how_often_features_of_memory_are_drawn(pattern: str, least: float) -> None:
    assert share_of("views", COUNT, pattern) > least


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        (r"with torch\.(no_grad|set_grad_enabled|enable_grad)", 0.05),
        (r"autograd\.Function", 0.05),
        (r"register_hook", 0.005),
        (r"checkpoint\(", 0.01),
        (r"torch\.autograd\.grad\(", 0.005),
        (r"torch\.(func|vmap)", 0.02),
        (r"\.detach\(\)", 0.03),
        (r"dropout|rand", 0.05),
        (r"backward=True", 0.3),
    ],
)
def test_how_often_features_of_autograd_are_drawn(pattern: str, least: float) -> None:
    assert share_of("autograd", COUNT, pattern) > least


# ---------------------------------------------------------------------------------------------------- what is accepted


def new_scene(*specs: dict[str, Any]) -> Scene:
    scene = Scene(RandomDraw(0), Settings(), seed=0)
    for spec in specs:
        scene.add_argument({"$": "tensor", "dtype": "float32", "fill": {"kind": "arange"}, **spec})
    return scene


def call(target: str, *args: Operand, result: str = "") -> OpCall:
    return OpCall(target=target, args=args, results=(result,) if result else ())


def planned(scene: Scene, result: Operand, **fields: Any) -> FuzzProgram:
    return scene.to_program(result, calls=(Call(args=[*scene.specs.values()], **fields),))


def test_gradients_that_eager_refuses_are_turned_off() -> None:
    scene = new_scene({"shape": [3], "requires_grad": True})
    scene.add([call(".exp", Ref("a0"), result="v0"), call(".add_", Ref("v0"), 1.0)])
    program = accepted(scene, planned(scene, Ref("v0"), backward=True))
    assert program is not None
    assert (program.calls[0].grad_mode, program.calls[0].backward) == ("no_grad", False)


def test_gradients_that_eager_accepts_are_kept() -> None:
    scene = new_scene({"shape": [3], "requires_grad": True})
    scene.add(call(".exp", Ref("a0"), result="v0"))
    program = planned(scene, Ref("v0"), backward=True)
    assert accepted(scene, program) == program


def test_a_later_call_that_eager_refuses_ends_the_plan() -> None:
    scene = new_scene({"shape": [3]})
    scene.add(call("getitem", Ref("a0"), 2, result="v0"))
    short = [{"$": "tensor", "shape": [1], "dtype": "float32"}]
    program = planned(scene, Ref("v0"))
    longer = FuzzProgram(arguments=program.arguments, statements=program.statements, result=program.result,
                         calls=(*program.calls, Call(args=short)), seed=program.seed)  # fmt: skip
    found = accepted(scene, longer)
    assert found is not None
    assert len(found.calls) == 1


def test_a_write_whose_result_hangs_on_the_order_of_a_kernel_is_refused() -> None:
    scene = new_scene({"shape": [4]})
    scene.add(
        [call("getitem", Ref("a0"), Expr("1:"), result="v0"), call("getitem", Ref("a0"), Expr(":-1"), result="v1")]
    )
    assert scene.add(call(".masked_scatter_", Ref("v0"), Expr("torch.ones(3, dtype=torch.bool)"), Ref("v1")))
    assert accepted(scene, planned(scene, Ref("a0"))) is None


def test_nothing_in_a_program_writes_where_elements_meet() -> None:
    """Asked of the arguments of drawn programs: what their first statement writes to by name."""
    for program in programs("views", COUNT):
        scene_values = {
            name: value
            for name, value in zip(
                program.arguments, instantiate(to_program(program, name="p")).inputs(0)[0], strict=False
            )
            if not program.derive and isinstance(value, torch.Tensor)
        }
        first = program.statements[0] if program.statements else None
        if isinstance(first, OpCall) and first.target in (".add_", ".mul_", ".copy_", ".sub_"):
            names = [name for name in first.uses if name in scene_values]
            assert not names or not overlaps_itself(scene_values[names[0]])
            assert len(names) < 2 or not partly_overlap(scene_values[names[0]], scene_values[names[1]])
