"""Scenes: what eager refuses leaves no trace, regions run as they read, writes have one meaning, arguments may be derived."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.geometry import overlaps_itself, partly_overlap
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.program.render import render
from fuzz.program.structure import Block, Definition, Expr, Items, OpCall, Operand, Ref, Statement
from oracle.observe import observe
from oracle.observe.outcome import Returned
from oracle.program import Call, Program
from oracle.program.build import instantiate


def new_scene(seed: int = 0) -> Scene:
    return Scene(RandomDraw(seed), Settings(), seed=seed)


def tensor(shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"$": "tensor", "shape": shape, "dtype": "float32", "fill": {"kind": "arange"}, **fields}


def call(target: str, *args: Operand, result: str = "") -> OpCall:
    return OpCall(target=target, args=args, results=(result,) if result else ())


def program_of(scene: Scene, result: Operand) -> Program:
    fuzzed = scene.to_program(result)
    return Program(name="p", source=render(fuzzed), calls=(Call(args=[*scene.specs.values()]),), seed=scene.seed)


def test_results_join_the_scene() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3]))
    assert scene.add(call("operator.mul", Ref("a0"), 2.0, result="v0"))
    assert scene.values["v0"].tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    "refused",
    [
        call("torch.matmul", Ref("a0"), 3, result="v9"),
        call("torch.ones", Items((10_000_000,), "tuple"), result="v9"),
        call("torch.nothing_of_that_name", Ref("a0"), result="v9"),
        [call(".add_", Ref("a0"), 1.0), call("torch.cat", Ref("a0"), result="v9")],  # the first one has already written
    ],
    ids=["wrong operand", "too large", "unknown", "half of it"],
)
def test_a_refused_statement_leaves_no_trace(refused: Statement | list[Statement]) -> None:
    scene = new_scene()
    scene.add_argument(tensor([3]))
    scene.add(call("operator.mul", Ref("a0"), 2.0, result="v0"))
    assert not scene.add(refused)
    assert [*scene.values] == ["a0", "v0"]
    assert scene.values["a0"].tolist() == [0.0, 1.0, 2.0]
    assert len(scene.statements) == 1


def test_random_numbers_are_the_same_after_a_refusal() -> None:
    drawn = []
    for refuses in (False, True):
        scene = new_scene()
        scene.add_argument(tensor([3]))
        scene.add(call("torch.rand", Items((4,), "tuple"), result="v0"))
        if refuses:
            assert not scene.add([call("torch.rand", Items((2,), "tuple"), result="v1"), call("torch.cat", Ref("a0"))])
        scene.add(call("torch.rand", Items((4,), "tuple"), result="v1"))
        drawn.append([scene.values[name].tolist() for name in ("v0", "v1")])
    assert drawn[0] == drawn[1]


# --------------------------------------------------------------------------------------------------------------- regions


def test_a_region_becomes_a_block() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3], requires_grad=True))
    with scene.region("torch.no_grad()"):
        scene.add(call("operator.mul", Ref("a0"), 2.0, result="v0"))
        scene.add(call(".add_", Ref("v0"), 1.0))
    scene.add(call("operator.mul", Ref("a0"), 2.0, result="v1"))
    block = scene.statements[0]
    assert isinstance(block, Block)
    assert (block.header, len(block.body)) == ("with torch.no_grad():", 2)
    assert not scene.values["v0"].requires_grad
    assert scene.values["v1"].requires_grad


def test_a_refusal_in_a_region_keeps_the_modes() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3], requires_grad=True))
    scene.add(call("operator.mul", Ref("a0"), 2.0, result="v0"))
    with scene.region("torch.no_grad()"):
        scene.add(call("operator.mul", Ref("a0"), 2.0, result="v1"))
        with scene.region("torch.enable_grad()"):
            assert not scene.add(call("torch.cat", Ref("a0"), result="v9"))
            scene.add(call("operator.mul", Ref("a0"), 2.0, result="v2"))
        assert not scene.add(call("torch.cat", Ref("a0"), result="v9"))
        scene.add(call("operator.mul", Ref("a0"), 2.0, result="v3"))
    assert torch.is_grad_enabled()
    assert [scene.values[f"v{i}"].requires_grad for i in range(4)] == [True, False, True, False]
    assert "    with torch.enable_grad():\n            v2 = a0 * 2.0" in render(scene.to_program(Ref("v3")))


def test_an_empty_region_is_no_statement() -> None:
    scene = new_scene()
    with scene.region("torch.no_grad()"):
        pass
    assert scene.statements == []


def test_a_region_is_left_when_something_is_raised() -> None:
    scene = new_scene()
    with pytest.raises(KeyError), scene.region("torch.no_grad()"):
        raise KeyError
    assert torch.is_grad_enabled()


# ------------------------------------------------------------------------------------------------------------- arguments


def test_derived_arguments_are_what_the_program_is_called_with() -> None:
    scene = new_scene()
    root = scene.add_input(tensor([2, 3], requires_grad=True))
    derive = [call("operator.mul", Ref(root), 2.0, result="t0"), call("getitem", Ref("t0"), Expr("1:"), result="a0")]
    assert scene.derive_arguments(derive, ["a0"])
    late = scene.add_argument(tensor([3]))
    scene.add(call(".add_", Ref("a0"), Ref(late)))
    assert [*scene.values] == ["a0", "a1"]
    assert scene.values["a0"].tolist() == [[6.0, 9.0, 12.0]]
    outcome = observe(instantiate(program_of(scene, Ref("a0"))))
    assert isinstance(outcome, Returned)
    assert outcome.calls[0].outputs[0].value.tolist() == [[6.0, 9.0, 12.0]]


def test_a_derivation_that_eager_refuses_is_left_out() -> None:
    scene = new_scene()
    root = scene.add_input(tensor([2]))
    assert not scene.derive_arguments([call(".expand", Ref(root), 3, 3, result="a0")], ["a0"])
    assert (scene.arguments, scene.derive, [*scene.values]) == ([], [], [])


def test_arguments_share_one_storage() -> None:
    scene = new_scene()
    first = tensor([3], storage="s")
    second = {"$": "tensor", "shape": [2], "dtype": "float32", "offset": 1, "storage": "s"}
    scene.add_arguments([first, second])
    scene.add(call(".zero_", Ref("a1")))
    assert scene.values["a0"].tolist() == [0.0, 0.0, 0.0]


def test_one_tensor_is_two_arguments() -> None:
    scene = new_scene()
    scene.add_arguments([tensor([3], id="t"), {"$": "same", "id": "t"}])
    assert scene.values["a0"] is scene.values["a1"]


# ---------------------------------------------------------------------------------------------------------------- writes


def test_targets_do_not_overlap_themselves() -> None:
    scene = new_scene()
    scene.add_argument(tensor([2, 3], stride=[0, 1]))
    scene.add_argument(tensor([0]))
    assert scene.target() is None
    scene.add_argument(tensor([2, 3], stride=[1, 2]))
    assert scene.target() == "a2"


def test_memory_that_autograd_may_have_saved_elsewhere_is_no_target() -> None:
    scene = new_scene()
    scene.add_arguments([tensor([3], storage="s", requires_grad=True), tensor([3], storage="s")])
    assert scene.target(lambda t: not t.requires_grad) == "a1"  # nothing is saved yet
    scene.add(call("operator.mul", Ref("a0"), Ref("a0"), result="v0"))
    assert scene.target(lambda t: not t.requires_grad) is None


def test_views_of_one_tensor_are_targets() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3], requires_grad=True))
    scene.add([call("operator.mul", Ref("a0"), 2.0, result="v0"), call("getitem", Ref("v0"), Expr("1:"), result="v1")])
    assert scene.target(lambda t: t.numel() == 2) == "v1"


@pytest.mark.parametrize("seed", range(30))
def test_operands_are_not_partly_overwritten(seed: int) -> None:
    scene = new_scene(seed)
    scene.add_argument(tensor([6]))
    for index, name in (("1:", "v0"), (":-1", "v1"), ("::2", "v2")):
        scene.add(call("getitem", Ref("a0"), Expr(index), result=name))
    for _ in range(10):
        target = scene.target()
        assert target is not None
        operand = scene.operand_for(target)
        if isinstance(operand, Ref) and operand.name in scene.values:
            assert not partly_overlap(scene.values[operand.name], scene.values[target])
            assert not overlaps_itself(scene.values[target])


def test_python_scalars_are_operands_of_their_kind() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3]))
    scene.add_argument(2.5)
    found = {scene.scalar(scene.values["a0"]) for _ in range(30)}
    assert Ref("a1") in found
    assert all(not isinstance(scene.scalar(torch.ones(2, dtype=torch.int64)), (float, Ref)) for _ in range(30))


# -------------------------------------------------------------------------------------------------------------- backward


def test_backward_that_eager_refuses_is_noticed() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3], requires_grad=True))
    scene.add([call(".exp", Ref("a0"), result="v0"), call(".add_", Ref("v0"), 1.0)])
    assert scene.wants_gradients()
    assert not scene.accepts_backward(Ref("v0"))


def test_backward_through_written_arguments_counts() -> None:
    scene = new_scene()
    root = scene.add_input(tensor([3], requires_grad=True))
    scene.derive_arguments([call("operator.mul", Ref(root), 1, result="a0")], ["a0"])
    scene.add(
        [
            call(".exp_", Ref("a0")),
            call("operator.mul", Ref("a0"), Ref("a0"), result="v0"),
            call(".add_", Ref("a0"), 1.0),
        ]
    )
    assert not scene.accepts_backward(None)


def test_backward_from_results_in_containers() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3], requires_grad=True))
    scene.add(call(".sin", Ref("a0"), result="v0"))
    assert scene.accepts_backward(Items((Ref("v0"), Items((Ref("v0"), None))), "tuple"))
    assert scene.values["a0"].grad is not None


def test_definitions_are_there_for_statements() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3]))
    scene.define(Definition(name="double", text="def double(x):\n    return x * 2"))
    assert scene.add(call("double", Ref("a0"), result="v0"))
    assert not scene.add(call("torch.cat", Ref("a0"), result="v1"))  # builds the scene again
    assert scene.add(call("double", Ref("v0"), result="v1"))
    assert scene.values["v1"].tolist() == [0.0, 4.0, 8.0]


def test_values_that_autograd_no_longer_lets_anyone_ask_leave_the_scene() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3], requires_grad=True))
    scene.add(call("operator.mul", Ref("a0"), 2.0, result="v0"))
    with scene.region("torch.no_grad()"):
        scene.add(call("getitem", Ref("v0"), Expr("1:"), result="v1"))
    assert "v1" in scene.values
    scene.add(call(".add_", Ref("v0"), 1.0))
    assert [*scene.values] == ["a0", "v0"]


def test_the_newest_results_are_the_likeliest_operands() -> None:
    scene = new_scene()
    scene.add_argument(tensor([3]))
    for number in range(6):
        scene.add(call("operator.mul", Ref("a0"), 2.0, result=f"v{number}"))
    scene.add_argument(tensor([3]))
    picked = [scene.pick() for _ in range(400)]
    assert sum(name in ("v4", "v5") for name in picked) > 240
    assert len(set(picked)) == 8
