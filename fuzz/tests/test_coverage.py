"""Coverage: what counts as a feature of a program, and how it steers."""

from __future__ import annotations

from typing import Any

import pytest

from fuzz.campaign.coverage import CoverageState, Vocabulary, program_features, steering_factors
from fuzz.program.structure import Block, FuzzProgram, Lines, OpCall, Ref
from oracle.program import Call


def tensor(shape: list[int], dtype: str = "float32", **fields: Any) -> dict[str, Any]:
    return {"$": "tensor", "shape": shape, "dtype": dtype, **fields}


def program(*statements: Any, args: list[Any], **fields: Any) -> FuzzProgram:
    names = tuple(f"a{i}" for i in range(len(args)))
    return FuzzProgram(arguments=names, calls=(Call(args=args),), statements=statements, **fields)


def test_operators_and_pairs_of_producer_and_consumer() -> None:
    features = program_features(
        program(
            OpCall(target="torch.add", args=(Ref("a0"), Ref("a0")), results=("v0",)),
            OpCall(target="torch.sum", args=(Ref("v0"),), kwargs=(("dim", 0),), results=("v1",)),
            args=[tensor([3, 2])],
        )
    )
    assert {"op:torch.add", "op:torch.sum", "pair:argument->torch.add", "pair:torch.add->torch.sum"} <= set(features)
    assert {"keyword:torch.sum(dim=)", "operands:one value twice", "op_dtype:torch.add(float32)"} <= set(features)
    assert len(features) == len(set(features))


def test_statements_in_blocks_and_texts_are_seen() -> None:
    inner = OpCall(target=".mul_", args=(Ref("a0"), 2))
    features = program_features(
        program(
            Block(header="with torch.no_grad():", body=(inner,)),
            Lines(text="{v0} = torch.cos({a0})", uses=("a0",), results=("v0",)),
            OpCall(target="torch.sin", args=(Ref("v0"),), results=("v1",)),
            args=[tensor([3])],
        )
    )
    assert {"op:.mul_", "block:with torch.no_grad():", "op:torch.cos", "pair:python->torch.sin"} <= set(features)


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (tensor([3, 4]), "contiguous"),
        (tensor([3, 4], stride=[4, 1]), "contiguous"),
        (tensor([3, 4], stride=[1, 3]), "permuted"),
        (tensor([3, 4], stride=[0, 1]), "expanded"),
        (tensor([3, 4], stride=[8, 1]), "gaps"),
        (tensor([3, 4], stride=[1, 6]), "permuted gaps"),
        (tensor([3, 4], stride=[1, 1]), "overlapping"),
        (tensor([1, 4], stride=[77, 1]), "contiguous"),
        (tensor([3], offset=5), "offset"),
        (tensor([3], storage="s"), "shared storage"),
        (tensor([3], conj=True), "conj"),
    ],
)
def test_layouts_have_names(spec: dict[str, Any], layout: str) -> None:
    features = program_features(program(args=[spec]))
    assert [f for f in features if f.startswith("layout:")] == [f"layout:{layout}"]


def test_what_changes_between_calls_is_a_feature() -> None:
    calls = (
        Call(args=[tensor([3])], backward=True),
        Call(args=[tensor([4], "float64")], before="SCALE = 2", grad_mode="no_grad", training=False),
    )
    features = program_features(FuzzProgram(arguments=("a0",), calls=calls))
    expected = {"plan:another shape", "plan:another dtype", "plan:something changed between calls", "plan:backward"}
    assert expected | {"grad_mode:no_grad", "plan:training False", "calls:2"} <= set(features)


def test_what_is_new_is_told_once() -> None:
    coverage = CoverageState()
    assert coverage.add(["op:a", "op:b"]) == ["op:a", "op:b"]
    assert coverage.add(["op:a", "op:c"]) == ["op:c"]
    assert coverage.of_kind("op") == {"a": 2, "b": 1, "c": 1}
    assert coverage.sizes() == {"op": 3}


def test_rare_operators_are_steered_to_within_bounds() -> None:
    coverage = CoverageState()
    for name, count in (("torch.add", 400), ("torch.sin", 20), ("torch.cos", 20), ("torch.tan", 0)):
        coverage.counts[f"op:{name}"] = count
    names = ("torch.add", "torch.sin", "torch.cos", "torch.tan")
    factors = steering_factors(Vocabulary(operators=names, rules=("slice",)), coverage, {})
    assert factors["op:torch.add"] == 0.5
    assert factors["op:torch.sin"] == 1.0
    assert factors["op:torch.tan"] == 4.0
    assert factors["rule:slice"] == 1.0


def test_operators_that_still_show_new_behaviour_are_steered_to() -> None:
    coverage = CoverageState()
    coverage.counts.update({"op:torch.sin": 20, "op:torch.cos": 20})
    vocabulary = Vocabulary(operators=("torch.sin", "torch.cos"))
    factors = steering_factors(vocabulary, coverage, {"torch.sin": 3.0, "torch.cos": 0.0})
    assert factors["op:torch.sin"] > 1.0 > factors["op:torch.cos"]
