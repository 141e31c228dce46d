"""Call plans: later calls are accepted by eager, differ as promised, and come back to the first."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest

from fuzz.draw.choices import RandomDraw
from fuzz.draw.scene import Change, Scene
from fuzz.draw.settings import Settings
from fuzz.judge.single import judge
from fuzz.program.render import to_program
from fuzz.program.structure import Definition, FuzzProgram, Lines, OpCall, Ref
from fuzz.vocabulary.programs import draw_program
from fuzz.vocabulary.statements.plans import draw_plan
from fuzz.vocabulary.statements.plans_config import OPTIONS, draw_config, draw_dynamic, known_options
from fuzz.vocabulary.statements.plans_run import PlanRun, UndefinedWriteError
from oracle.configure import configured
from oracle.program import Call, Program
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status


def _spec(shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"$": "tensor", "shape": shape, "dtype": "float32", "fill": {"kind": "normal", "seed": 1}, **fields}


def _planned(seed: int, *, focus: str = "guards", body: str = "{v0} = {a0} * 2", **scene_fields: Any) -> FuzzProgram:
    """A program of one statement on one argument, with a drawn plan."""
    draw = RandomDraw(seed)
    scene = Scene(draw, Settings(focus=focus), seed=1)
    scene.add_argument(_spec([3, 4]))
    for definition in scene_fields.get("definitions", ()):
        scene.define(definition)
    scene.changes.extend(scene_fields.get("changes", ()))
    names = tuple(definition.name for definition in scene.definitions)
    assert scene.add(Lines(text=body, uses=("a0",), results=("v0",), definitions=names))
    return draw_plan(draw, scene, scene.to_program(Ref("v0")))


def test_plans_are_a_function_of_their_seed() -> None:
    assert [_planned(seed) for seed in range(20)] == [_planned(seed) for seed in range(20)]


def test_guards_are_asked_by_later_calls() -> None:
    plans = [_planned(seed).calls for seed in range(60)]
    assert all(len(calls) <= 4 for calls in plans)
    assert sum(len(calls) > 1 for calls in plans) >= 50
    assert any(len(calls) > 2 and calls[-1].args == calls[0].args for calls in plans)  # back to the first


def test_operators_are_mostly_called_once() -> None:
    plans = [_planned(seed, focus="ops").calls for seed in range(60)]
    assert sum(len(calls) == 1 for calls in plans) >= 45


def test_every_kind_of_variation_is_drawn() -> None:
    seen: collections.Counter[str] = collections.Counter()
    for seed in range(250):
        calls = _planned(seed).calls
        for before, after in itertools.pairwise(calls):
            seen.update(_differences(before, after))
    assert {"shape", "layout", "dtype", "requires_grad", "fill", "grad_mode"} <= set(seen)


def _differences(one: Call, other: Call) -> list[str]:
    found = ["grad_mode"] if one.grad_mode != other.grad_mode else []
    a, b = one.args[0], other.args[0]
    found += [name for name in ("shape", "dtype", "fill") if a.get(name) != b.get(name)]
    if a.get("requires_grad", False) != b.get("requires_grad", False):
        found.append("requires_grad")
    if a["shape"] == b["shape"] and any(a.get(name) != b.get(name) for name in ("stride", "offset", "memory_format")):
        found.append("layout")
    return found


def test_what_the_program_depends_on_is_changed_and_restored() -> None:
    scale = Definition(name="SCALE", text="SCALE = 2.0")
    change = Change(kind="global", name="SCALE", texts=("SCALE = 3.0",), restore="SCALE = 2.0")
    texts = set()
    for seed in range(80):
        program = _planned(seed, body="{v0} = {a0} * SCALE", definitions=(scale,), changes=(change,))
        texts.update(call.before for call in program.calls)
    assert {"", "SCALE = 3.0", "SCALE = 2.0"} <= texts


def test_what_the_program_does_not_read_is_not_changed() -> None:
    change = Change(kind="global", name="SCALE", texts=("SCALE = 3.0",))
    assert not any(call.before for seed in range(40) for call in _planned(seed, changes=(change,)).calls)


def test_a_refused_call_is_left_out_or_the_last_one() -> None:
    body = "if {a0}.shape[0] != 3:\n    raise ValueError('refused by the program')\n{v0} = {a0} * 2"
    programs = [_planned(seed, focus="dynamic", body=body) for seed in range(80)]
    raising = [program for program in programs if program.expects_raise]
    assert raising
    for program in programs:
        run = PlanRun(to_program(program, name="plan"))
        for call in program.calls[:-1]:
            run.call(call)
        if program.expects_raise:
            with pytest.raises(ValueError, match="refused by the program"):
                run.call(program.calls[-1])
        else:
            run.call(program.calls[-1])


def _source(body: str) -> Program:
    return Program(name="p", source=f"import torch\n\ndef program(a0, a1):\n    {body}\n    return a0.sum()\n")


@pytest.mark.parametrize(
    ("body", "is_defined"),
    [
        ("a0[1:].copy_(a0[:-1])", False),
        ("a0[1:].copy_(a0[:-1].clone())", True),
        ("a0.add_(a0)", True),
        ("a0[:1].expand(3).add_(1)", False),
        ("a0.mul_(a1)", True),
        ("torch.mul(a1, 2, out=a0)", True),
        ("torch.mul(a1, torch.ones(2, 1), out=a0)", False),  # deprecated: it makes a0 larger
    ],
)
def test_undefined_writes_are_noticed(body: str, is_defined: bool) -> None:
    run = PlanRun(_source(body))
    call = Call(args=[_spec([4]), _spec([4])])
    if is_defined:
        run.call(call, checks_writes=True)
        assert run.written == (True, False)
    else:
        with pytest.raises(UndefinedWriteError):
            run.call(call, checks_writes=True)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("a0 = a1.int()", [2.0, float("inf")]),
        ("a0 = a1.long()", [2.0, float("nan")]),
        ("a0 = a1.to(torch.uint8)", [2.0, 300.0]),
        ("a0 = torch.arange(2) << a1.long()", [2.0, 64.0]),
        ("a0 = torch.arange(2).scatter(0, a1.long(), torch.arange(2))", [0.0, 1.0, 1.0]),
        ("a0 = torch.ops.aten.embedding_dense_backward(torch.ones(2, 3), a1.long(), 5, -1, False)", [2.0, 4.0, 5.0]),
        ("a0 = torch.ops.aten.embedding_dense_backward(torch.ones(2, 3), a1.long(), 5, -1, False)", [0.0, 4.0, -1.0]),
    ],
)
def test_undefined_numbers_are_noticed(body: str, values: list[float]) -> None:
    *defined, other = values

    def call(numbers: list[float]) -> Call:
        spec = {**_spec([len(numbers)]), "fill": {"kind": "values", "values": numbers}}
        return Call(args=[_spec([4]), spec])

    run = PlanRun(_source(body))
    run.call(call(defined), checks_writes=True)
    with pytest.raises(UndefinedWriteError):
        run.call(call([*defined[1:], other]), checks_writes=True)


def test_a_plan_never_aliases_arguments_such_that_a_write_is_undefined() -> None:
    """The body shifts one argument into the other: fine apart, undefined once both are one memory."""
    for seed in range(120):
        draw = RandomDraw(seed)
        scene = Scene(draw, Settings(focus="guards"), seed=1)
        scene.add_argument(_spec([4]))
        scene.add_argument(_spec([4]))
        assert scene.add(Lines(text="{a0}[1:].copy_({a1}[:-1])", uses=("a0", "a1")))
        program = draw_plan(draw, scene, scene.to_program(Ref("a0")))
        run = PlanRun(to_program(program, name="plan"))
        for call in program.calls[: len(program.calls) - program.expects_raise]:
            run.call(call, checks_writes=True)


def test_a_run_says_whether_there_is_something_to_differentiate() -> None:
    run = PlanRun(_source("a0 = a0 * a1"))
    run.call(Call(args=[_spec([2]), _spec([2])]))
    assert not run.has_gradients
    run.call(Call(args=[_spec([2], requires_grad=True), _spec([2])], backward=True))
    assert run.has_gradients


@pytest.mark.parametrize("focus", ["all", "guards", "dynamic", "export", "views"])
def test_eager_accepts_every_plan_twice(focus: str) -> None:
    eager = load(resolve("eager"))
    for seed in range(25):
        program = draw_program(RandomDraw(f"plans/{seed}"), Settings(focus=focus, is_random=False))
        verdict = judge(to_program(program, name="drawn"), eager).verdict
        assert verdict.status is Status.PASS, (verdict.symptom, program)


def test_every_option_is_known_and_can_be_held() -> None:
    for module in OPTIONS:
        known = known_options(module)
        assert len(known) >= 0.8 * len(OPTIONS[module])
        for option, values in known.items():
            for value in values:
                with configured({f"{module}.{option}": value}):
                    pass


def test_dynamic_shapes_follow_the_focus() -> None:
    drawn = {
        focus: collections.Counter(draw_dynamic(RandomDraw(seed), Settings(focus=focus)) for seed in range(300))
        for focus in ("ops", "dynamic", "export")
    }
    assert drawn["ops"][None] > 200
    assert drawn["dynamic"][True] > 100
    assert drawn["export"][False] == 0


def test_a_random_program_that_is_differentiated_meets_the_memory_budget() -> None:
    """Regressions 190758 and 190717: a mask drawn again in backward."""
    dropout = OpCall(target="torch.nn.functional.dropout", args=(Ref("a0"), 0.5), results=("v0",))
    program = FuzzProgram(
        arguments=("a0",), statements=(dropout,), result=Ref("v0"), calls=(Call(args=[_spec([4])], backward=True),)
    )
    name = "torch._functorch.config.activation_memory_budget"
    drawn = [draw_config(RandomDraw(seed), Settings(focus="autograd"), program).get(name) for seed in range(60)]
    assert {0.0, 0.1} <= set(drawn)
    assert drawn.count(None) > 20
