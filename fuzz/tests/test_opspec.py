"""Every operator specification gives calls that eager accepts, the same for one seed, and as data."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.geometry import overlaps_itself, partly_overlap
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.program.render import render
from fuzz.program.structure import FuzzProgram, Items, OpCall, Ref
from fuzz.tests.opspec_samples import TRIES, Sample, draw_sample, tallies, tensors_of
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.operators.build import can_overflow

_CATEGORIES = {
    "pointwise", "comparison", "complex", "operator", "special", "cast", "reduction", "scan", "sort", "matmul", "linalg", "index",
    "embedding", "shape", "view", "activation", "norm", "loss", "conv", "pool", "resize", "attention", "fft", "creation",
    "in place", "metadata", "out", "foreach", "random", "aten", "view copy", "masked",
}  # fmt: skip


def test_there_are_far_more_than_three_hundred_operators() -> None:
    targets = {name.split("(")[0] for name, spec in OPERATORS.items() if not spec.writes}
    assert len(targets) >= 600
    assert len(OPERATORS) >= 1000


def test_every_category_is_known_and_has_operators() -> None:
    assert {spec.category for spec in OPERATORS.values()} == _CATEGORIES


def test_half_of_the_draws_on_a_fresh_scene_are_accepted() -> None:
    rare = {
        name: f"{tally.accepted} of {tally.tried}" for name, tally in tallies().items() if tally.accepted < TRIES // 2
    }
    assert rare == {}


def test_a_seed_draws_one_call() -> None:
    for name, tally in tallies().items():
        sample = tally.samples[0]
        again = draw_sample(name, sample.seed)
        assert again is not None
        assert again.program == sample.program


def test_another_seed_draws_another_call() -> None:
    same = [
        name
        for name, tally in tallies().items()
        if len({json.dumps(sample.program.to_json()["calls"][0]["args"]) for sample in tally.samples}) == 1
        and len({str(sample.call) for sample in tally.samples}) == 1
    ]
    assert same == []


def test_programs_are_data() -> None:
    for tally in tallies().values():
        for sample in tally.samples[:2]:
            text = json.dumps(sample.program.to_json(), allow_nan=False)
            assert FuzzProgram.from_json(json.loads(text)) == sample.program


def test_names_begin_with_what_is_called() -> None:
    for name, tally in tallies().items():
        assert {sample.call.target for sample in tally.samples} == {name.split("(")[0]}


def test_narrowed_domains_have_reasons() -> None:
    for name, spec in OPERATORS.items():
        assert all(reason.strip() for reason in spec.meta.values()), name


def test_a_specification_that_finds_nothing_leaves_no_argument_behind() -> None:
    empty_handed = 0
    for name, spec in OPERATORS.items():
        scene = Scene(RandomDraw(f"none/{name}"), Settings(), seed=0)
        if spec.draw_call(scene.draw, scene) is None:
            empty_handed += 1
            assert (scene.specs, scene.arguments, scene.values) == ({}, [], {})
    assert empty_handed > 0


def test_live_values_are_taken_up() -> None:
    """A specification is to connect statements: on a scene with fitting values most operands are not new arguments."""
    new = Counter[bool]()
    for i in range(300):
        scene = Scene(RandomDraw(f"live/{i}"), Settings(), seed=i)
        scene.new_tensor((3, 4), "float32", requires_grad=False, domain="positive", layouts=("contiguous",))
        scene.new_tensor((3, 4), "float32", requires_grad=False, layouts=("contiguous",))
        call = OPERATORS["torch.add"].draw_call(scene.draw, scene)
        assert call is not None
        new.update(name not in ("a0", "a1") for name in call.uses)
    assert new[False] > 2 * new[True]


def test_no_gradient_is_asked_of_a_choice_among_equal_elements() -> None:
    """Its place is as open as the index, which is bound to a name that nothing reads."""
    choosing = [name for name, spec in OPERATORS.items() if "of equal elements" in spec.meta.get("results", "")]
    assert {"torch.topk", "torch.topk(dim)", "torch.msort", "torch.kthvalue", "torch.mode(dim)"} <= set(choosing)
    for name in choosing:
        for i in range(20):
            scene = Scene(RandomDraw(f"{name}/{i}"), Settings(), seed=i)
            scene.new_tensor((3, 4), "float32", requires_grad=True, layouts=("contiguous",))
            call = OPERATORS[name].draw_call(scene.draw, scene)
            assert call is None or not any(scene.values[used].requires_grad for used in call.uses), name


# -------------------------------------------------------------------------------------------------------- what is written


def test_calls_that_write_have_one_meaning() -> None:
    for name, spec in OPERATORS.items():
        if spec.writes:
            for sample in tallies()[name].samples:
                values = dict(zip(sample.program.arguments, tensors_of(sample.program), strict=True))
                assert _overlap(sample, values) == "", f"{name}: {render(sample.program)}"


def _written(call: OpCall) -> list[str]:
    if "batch_norm" in call.target:
        operands = call.args[1:3]
    else:
        first = dict(call.kwargs).get("out", call.args[0] if call.args else None)
        operands = first.items if isinstance(first, Items) else (first,)
    return [operand.name for operand in operands if isinstance(operand, Ref)]


def _overlap(sample: Sample, values: dict[str, object]) -> str:
    """What is wrong with a write: its target overlaps itself, or partly overlaps another operand; empty if nothing."""
    for name in _written(sample.call):
        target = values[name]
        assert isinstance(target, torch.Tensor)
        if overlaps_itself(target):
            return f"{name} overlaps itself"
        for other in sample.call.uses:
            operand = values[other]
            if other != name and isinstance(operand, torch.Tensor) and partly_overlap(target, operand):
                return f"{name} partly overlaps {other}"
    return ""


@pytest.mark.parametrize("wrong", ["itself", "another"])
def test_an_overlap_is_noticed(wrong: str) -> None:
    call = OpCall(target=".add_", args=(Ref("a0"), Ref("a1")))
    program = FuzzProgram(arguments=("a0", "a1"), statements=(call,), result=Ref("a0"))
    memory = torch.zeros(8)
    target = memory[:1].expand(4) if wrong == "itself" else memory[:4]
    operand = torch.zeros(4) if wrong == "itself" else memory[1:5]
    sample = Sample(operator=".add_", seed="", call=call, program=program)
    assert _overlap(sample, {"a0": target, "a1": operand}) != ""
    assert _overlap(sample, {"a0": torch.zeros(4), "a1": torch.zeros(4)}) == ""


# ------------------------------------------------------------------------------------------------------ sums that overflow


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([3e38, 1.0], torch.float32, True),
        ([float("inf"), float("nan"), 1.0], torch.float32, False),
        ([1e5, -1e5], torch.float32, False),
        ([6e4, 1.0], torch.float16, True),
        ([100.0, 1.0], torch.float16, False),
        ([3e38, 1.0], torch.complex64, True),
        ([3e38, 1.0], torch.float64, False),
        ([], torch.float32, False),
    ],
)
def test_extremes_are_told_from_infinities(values: list[float], dtype: torch.dtype, expected: bool) -> None:
    assert can_overflow(torch.tensor(values, dtype=dtype)) == expected


def test_sums_take_no_extremes_but_comparisons_do() -> None:
    extremes = Counter[str]()
    for name in ("torch.sum", "torch.mm", "torch.amax", "torch.add"):
        for i in range(150):
            sample = draw_sample(name, f"extremes/{i}")
            if sample is not None:
                values = [value for value in tensors_of(sample.program) if isinstance(value, torch.Tensor)]
                extremes[name] += any(can_overflow(value) for value in values)
    assert extremes["torch.sum"] == extremes["torch.mm"] == 0
    assert min(extremes["torch.amax"], extremes["torch.add"]) > 0
