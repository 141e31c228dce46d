"""Sources: their names are upstream's, and what is made of them reads each object once."""

from __future__ import annotations

from types import CellType, SimpleNamespace
from typing import Any

import pytest
import torch

from refimpl.capture.guards.sources import (
    AttributeSource,
    CellSource,
    DictKeySource,
    DictPlaceSource,
    DimensionSource,
    GlobalSource,
    ItemSource,
    KeptSource,
    ReaderBuilder,
    SlotSource,
    Source,
    StackSource,
    placeholder_name,
)

SELF, X = SlotSource(0, 0, "self"), SlotSource(0, 1, "x")
WEIGHT = ItemSource(AttributeSource(ItemSource(AttributeSource(SELF, "_modules"), "lin"), "_parameters"), "weight")


def frame(*slots: Any, stack: tuple[Any, ...] = ()) -> SimpleNamespace:
    """What of a frame sources read."""
    return SimpleNamespace(slots=list(slots), stack=list(stack))


@pytest.mark.parametrize(
    ("source", "name", "placeholder"),
    [
        (X, "L['x']", "L_x_"),
        (ItemSource(SlotSource(0, 0, "d"), "a"), "L['d']['a']", "L_d_a_"),
        (ItemSource(X, 3), "L['x'][3]", "L_x_3_"),
        (WEIGHT, "L['self']._modules['lin']._parameters['weight']", "L_self_modules_lin_parameters_weight_"),
        (GlobalSource(KeptSource({}, "globals"), "scale"), "G['scale']", "G_scale_"),
        (StackSource(0, 2), "L['stack2']", "L_stack2_"),
        (SlotSource(1, 0, "x"), "F[1]['x']", "F_1_x_"),
        (DimensionSource(X, "size", 0), "L['x'].size()[0]", "L_x_size_0_"),
        (DimensionSource(X, "storage_offset"), "L['x'].storage_offset()", "L_x_storage_offset_"),
    ],
)
def test_names_are_upstreams(source: Source, name: str, placeholder: str) -> None:
    assert source.name == name
    assert placeholder_name(source.name) == placeholder


def test_a_reader_reads_what_the_sources_lead_to() -> None:
    module = torch.nn.Sequential()
    module.lin = torch.nn.Linear(2, 3)
    key = object()
    namespace = {"scale": 5}
    x = torch.ones(4, 2)
    expected = {
        WEIGHT: module.lin.weight,
        X: x,
        StackSource(1, 0): "on the stack",
        GlobalSource(KeptSource(namespace, "globals"), "scale"): 5,
        CellSource(SlotSource(1, 0, "c")): "in a cell",
        DictKeySource(SlotSource(1, 1, "d"), 1): key,
        ItemSource(SlotSource(1, 1, "d"), (1, "a")): "under a tuple",
        DimensionSource(X, "size", 0): 4,
        DimensionSource(X, "stride", 0): 2,
        DimensionSource(X, "storage_offset"): 0,
    }
    builder = ReaderBuilder()
    result = "[" + ", ".join(builder.read(source) for source in expected) + "]"
    frames = [
        frame(module, x),
        frame(CellType("in a cell"), {(1, "a"): "under a tuple", key: 0}, stack=("on the stack",)),
    ]
    found = builder.function(result)(frames)
    for seen, wanted in zip(found, expected.values(), strict=True):
        assert seen is wanted or seen == wanted


def test_what_two_sources_have_in_common_is_read_once() -> None:
    class Counting:
        def __init__(self) -> None:
            self.reads = 0

        @property
        def inner(self) -> dict[str, int]:
            self.reads += 1
            return {"a": 1, "b": 2}

    inner = AttributeSource(X, "inner")
    builder = ReaderBuilder()
    a, b = builder.read(ItemSource(inner, "a")), builder.read(ItemSource(inner, "b"))
    counting = Counting()
    assert builder.function(f"({a}, {b})")([frame(None, counting)]) == (1, 2)
    assert counting.reads == 1


def test_the_keys_of_a_dict_are_listed_once_for_all_places() -> None:
    builder = ReaderBuilder()
    table = {KeptSource: 1, "a": 2, None: 3}
    read = [
        builder.read(kind(X, index)) for kind in (DictKeySource, DictPlaceSource, DictKeySource) for index in range(3)
    ]
    reader = builder.function(f"[{', '.join(read)}]")
    assert reader([frame(None, table)]) == [*table, *table.values(), *table]
    source = vars(reader)["source"]
    assert source.count(".keys()") == source.count(".values()") == 1
    assert DictKeySource(X, 1) != DictPlaceSource(X, 1)
    assert DictPlaceSource(X, 1).name == "list(L['x'].values())[1]"


@pytest.mark.parametrize("value", [None, {}, {"d": {}}, {"d": 5}, 3, CellType()])
def test_what_cannot_be_read_does_not_fit(value: Any) -> None:
    builder = ReaderBuilder()
    source = CellSource(AttributeSource(ItemSource(ItemSource(X, "d"), "k"), "cell"))
    read = builder.function(f"({builder.read(source)},)")
    assert read([frame(None, value)]) is None


def test_sources_are_equal_by_what_they_lead_to() -> None:
    assert ItemSource(X, 1) == ItemSource(SlotSource(0, 1, "x"), 1)
    assert ItemSource(X, 1) != ItemSource(X, True)
    assert ItemSource(X, 1) != ItemSource(X, 1.0)
    first, second = [1], [1]
    assert KeptSource(first, "a") == KeptSource(first, "b")
    assert KeptSource(first, "a") != KeptSource(second, "a")
    assert len({ItemSource(X, 1), ItemSource(X, True), ItemSource(X, 1)}) == 2
    assert [source.name for source in WEIGHT.way()][:2] == ["L['self']", "L['self']._modules"]
