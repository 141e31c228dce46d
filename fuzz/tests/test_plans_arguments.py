"""Arguments of later calls: what changes, what stays, and that every result can be built."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.geometry import overlaps_itself
from fuzz.vocabulary.statements.plans_arguments import (
    cast,
    realiased,
    refilled,
    regraded,
    relaid,
    renumbered,
    resized,
    tensors_in,
    with_size,
)
from oracle.program.inputs import decode


def _spec(shape: list[int], dtype: str = "float32", **fields: Any) -> dict[str, Any]:
    return {"$": "tensor", "shape": shape, "dtype": dtype, "fill": {"kind": "normal", "seed": 1}} | fields


def _built(specs: Any) -> list[Any]:
    return decode(specs, seed=0)


def test_a_size_changes_everywhere_it_occurs() -> None:
    changed = with_size([_spec([3, 4]), _spec([4, 5]), 4], 4, 7, largest=4096)
    assert changed is not None
    assert [spec["shape"] for spec in tensors_in(changed)] == [[3, 7], [7, 5]]
    assert changed[2] == 4  # a number is no size


@pytest.mark.parametrize(
    ("shape", "stride", "old", "new", "expected"),
    [
        ([3, 4], [1, 3], 3, 5, [1, 5]),  # transposed stays transposed
        ([3, 4], [8, 2], 4, 6, [12, 2]),  # the gaps stay
        ([3, 4], [0, 1], 4, 6, [0, 1]),  # expanded stays expanded
        ([3, 4], [1, 1], 4, 6, [1, 1]),  # what overlaps itself goes on doing so
        ([3, 4], [4, 1], 3, 0, [4, 1]),
        ([1, 4], [8, 1], 4, 2, [4, 1]),
    ],
)
def test_strides_of_another_size_keep_their_order_and_gaps(
    shape: list[int], stride: list[int], old: int, new: int, expected: list[int]
) -> None:
    changed = with_size([_spec(shape, stride=stride)], old, new, largest=4096)
    assert changed is not None
    assert changed[0]["stride"] == expected


def test_indices_stay_inside_a_dimension_that_shrinks() -> None:
    index = {**_spec([2], "int64"), "fill": {"kind": "integers", "low": 0, "high": 4, "seed": 1}}
    changed = with_size([_spec([4, 3]), index], 4, 2, largest=4096)
    assert changed is not None
    assert changed[1]["fill"]["high"] == 2


def test_listed_values_cannot_be_resized() -> None:
    listed = {**_spec([2]), "fill": {"kind": "values", "values": [1, 2]}}
    assert with_size([listed], 2, 3, largest=4096) is None


def test_memory_that_is_shared_in_part_is_shared_no_longer() -> None:
    specs = [_spec([4], storage="s"), _spec([4], storage="s", offset=2)]
    changed = with_size(specs, 4, 6, largest=4096)
    assert changed is not None
    first, second = _built(changed)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_memory_that_is_shared_in_whole_stays_shared() -> None:
    changed = with_size([_spec([4], storage="s"), _spec([4], storage="s")], 4, 6, largest=4096)
    assert changed is not None
    first, second = _built(changed)
    assert first.data_ptr() == second.data_ptr()
    assert first.shape == (6,)


def test_every_resized_argument_can_be_built_and_the_original_is_kept() -> None:
    specs = [_spec([3, 4], stride=[1, 3]), _spec([4, 3], offset=2), [_spec([3])], 2.0]
    seen = set()
    for seed in range(60):
        changed = resized(RandomDraw(seed), specs, largest=4096)
        if changed is None:
            continue
        first = _built(changed)[0]
        seen.add(tuple(first.shape))
        assert _built(specs)[0].shape == (3, 4)
    assert {(0, 4), (1, 4), (4, 4), (3, 3)} <= seen  # empty, one, equal to another size


def test_where_something_is_written_no_layout_overlaps_itself() -> None:
    specs = [_spec([3, 4]), _spec([2, 3, 4, 5])]
    changed = [relaid(RandomDraw(seed), specs, writes=True) for seed in range(60)]
    found = [tensor for drawn in changed if drawn is not None for tensor in _built(drawn)]
    assert found
    assert not any(overlaps_itself(tensor) for tensor in found)
    assert any(not tensor.is_contiguous() for tensor in found)


def test_where_nothing_is_written_layouts_may_be_expanded() -> None:
    changed = [relaid(RandomDraw(seed), [_spec([3, 4])], writes=False) for seed in range(60)]
    assert any(overlaps_itself(_built(drawn)[0]) for drawn in changed if drawn is not None)


def test_a_layout_that_is_drawn_again_is_no_variation() -> None:
    for seed in range(40):
        changed = relaid(RandomDraw(seed), [_spec([3, 4])], writes=True)
        if changed is not None:
            assert any(name in changed[0] for name in ("stride", "offset", "memory_format"))


def test_another_dtype_is_of_the_same_kind() -> None:
    specs = [
        _spec([2]),
        _spec([2], "int64", fill={"kind": "integers", "seed": 1}),
        _spec([2], "bool", fill={"kind": "bool", "seed": 1}),
    ]
    for seed in range(40):
        changed = cast(RandomDraw(seed), specs)
        assert changed is not None
        floats, integers, flags = _built(changed)
        assert floats.is_floating_point()
        assert integers.dtype in (torch.int64, torch.int32, torch.int16)
        assert flags.dtype is torch.bool
        assert (floats.dtype, integers.dtype) != (torch.float32, torch.int64)


def test_requires_grad_changes_for_floats_only() -> None:
    specs = [_spec([2]), _spec([2], requires_grad=True), _spec([2], "bool", fill={"kind": "bool", "seed": 1})]
    seen = set()
    for seed in range(40):
        changed = regraded(RandomDraw(seed), specs)
        assert changed is not None
        seen.add(tuple(tensor.requires_grad for tensor in _built(changed)))
    assert seen == {(True, True, False), (False, False, False)}


def test_other_values_leave_everything_else() -> None:
    specs = [_spec([2], stride=[3]), 5]
    changed = refilled(RandomDraw(0), specs)
    assert changed is not None
    assert not torch.equal(_built(changed)[0], _built(specs)[0])
    assert {**changed[0], "fill": None} == {**specs[0], "fill": None}
    assert refilled(RandomDraw(0), [5]) is None


def test_a_number_becomes_another_number_or_of_another_type() -> None:
    kinds = {type(renumbered(RandomDraw(seed), [_spec([2]), True], {})[1]) for seed in range(40)}  # type: ignore[index]
    assert kinds == {bool, int}
    for seed in range(40):
        changed = renumbered(RandomDraw(seed), [3], {})
        assert changed is not None
        assert type(changed[0]) is not int or changed[0] != 3


def test_an_argument_of_another_kind_has_the_alternatives_of_its_rule() -> None:
    for seed in range(20):
        assert renumbered(RandomDraw(seed), ["sin"], {0: ("sin", "cos")}) == ["cos"]
    assert renumbered(RandomDraw(0), ["sin"], {}) is None


def test_arguments_become_one_tensor_or_share_memory() -> None:
    specs = [_spec([3, 4]), _spec([3, 4]), _spec([2])]
    kinds = set()
    for seed in range(60):
        changed = realiased(RandomDraw(seed), specs)
        assert changed is not None
        tensors = _built(changed)
        pairs = [(i, j) for i in range(3) for j in range(i)]
        shared = [
            (i, j) for i, j in pairs if tensors[i].untyped_storage()._cdata == tensors[j].untyped_storage()._cdata
        ]
        assert len(shared) == 1
        (i, j) = shared[0]
        kinds.add("same" if tensors[i] is tensors[j] else "shared")
    assert kinds == {"same", "shared"}


def test_arguments_that_were_one_tensor_are_apart() -> None:
    specs = [{**_spec([3]), "id": "t"}, {"$": "same", "id": "t"}]
    changed = realiased(RandomDraw(0), specs)
    assert changed is not None
    first, second = _built(changed)
    assert first is not second
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["t", "t0"])
def test_a_name_that_is_left_behind_is_not_given_twice(name: str) -> None:
    """The second tensor of that name was exchanged for another one since."""
    specs = [_spec([3], id=name), _spec([3]), _spec([3])]
    for seed in range(40):
        changed = realiased(RandomDraw(seed), specs)
        assert changed is not None
        names = [spec["id"] for spec in changed if "id" in spec and spec["$"] == "tensor"]
        assert len(names) == len(set(names))
        assert all(spec["id"] in names for spec in changed if spec["$"] == "same")
