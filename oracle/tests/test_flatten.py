"""Flattening names every leaf and tells structures apart."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch

from oracle.observe.flatten import flatten


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: int


Point = collections.namedtuple("Point", "x y")


def paths(value: object) -> list[str]:
    return [leaf.path for leaf in flatten(value, "output")[0]]


def test_a_nest_of_containers_has_a_path_per_leaf() -> None:
    value = (torch.ones(1), {"loss": torch.ones(2), "aux": [None, 3]}, Pair(left=torch.ones(1), right=2))
    assert paths(value) == [
        "output[0]", "output[1]['loss']", "output[1]['aux'][0]", "output[1]['aux'][1]", "output[2].left", "output[2].right",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], (1,)),
        ([1], [1.0]),
        ([1], [True]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1], [1, 2]),
        ([None], []),
        (Point(1, 2), (1, 2)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (torch.ones(1), 1.0),
    ],
)
def test_structures_that_differ_read_differently(one: object, other: object) -> None:
    assert flatten(one, "")[1] != flatten(other, "")[1]


def test_named_results_of_torch_have_their_field_names() -> None:
    leaves, structure = flatten(torch.max(torch.ones(2, 3), dim=1), "output")
    assert [leaf.path for leaf in leaves] == ["output.values", "output.indices"]
    assert structure.startswith("max(")


def test_a_cycle_ends() -> None:
    value: list[object] = [1]
    value.append(value)
    leaves, structure = flatten(value, "output")
    assert [leaf.path for leaf in leaves] == ["output[0]"]
    assert structure == "list(int, <cycle list>)"


def test_an_object_that_holds_a_tensor_is_looked_into() -> None:
    class Holder:
        def __init__(self) -> None:
            self.cache = [torch.ones(1)]

    assert paths(Holder()) == ["output.cache[0]"]


def test_an_object_without_tensors_is_one_opaque_leaf() -> None:
    (leaf,), _ = flatten(object(), "output")
    assert leaf.is_opaque
