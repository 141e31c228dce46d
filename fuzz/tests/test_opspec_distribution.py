"""How often calls of operators show what kernels go wrong on: dtypes, ranks, empty tensors, broadcasting, special values."""

from __future__ import annotations

import functools
from collections import Counter

import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.program.structure import OpCall, Ref
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.statements.ops import draw_op

_PROGRAMS = 1500


@functools.cache
def _operands() -> tuple[tuple[OpCall, tuple[torch.Tensor, ...]], ...]:
    """Calls by weight on fresh scenes, and the tensors each of them takes."""
    drawn = []
    for i in range(_PROGRAMS):
        draw = RandomDraw(f"distribution/{i}")
        scene = Scene(draw, Settings(), seed=i)
        call = draw_op(draw, scene)
        if isinstance(call, OpCall) and scene.add(call):
            drawn.append((call, tuple(scene.values[name] for name in call.uses if name in scene.values)))
    return tuple(drawn)


def _tensors() -> list[torch.Tensor]:
    return [tensor for _, tensors in _operands() for tensor in tensors]


def _share(count: float, total: float) -> float:
    return count / max(1, total)


def _fits(condition: str, share: float, low: float, high: float) -> str:
    return "" if low <= share <= high else f"{condition}: {share:.3f}, but should be {low} to {high}"


def test_most_draws_become_statements() -> None:
    assert _fits("accepted", _share(len(_operands()), _PROGRAMS), 0.85, 1) == ""


def test_every_dtype_is_drawn() -> None:
    dtypes = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in _tensors())
    total = sum(dtypes.values())
    assert _fits("float32", _share(dtypes["float32"], total), 0.3, 0.7) == ""
    rare = [name for name in ("float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")
            if dtypes[name] < 0.008 * total]  # fmt: skip
    assert rare == []


def test_every_rank_up_to_six_is_drawn() -> None:
    ranks = Counter(tensor.dim() for tensor in _tensors())
    assert {0, 1, 2, 3, 4, 5, 6} <= set(ranks)
    assert _fits("0-d", _share(ranks[0], sum(ranks.values())), 0.02, 0.2) == ""


def test_empty_tensors_and_sizes_of_one_are_drawn() -> None:
    tensors = _tensors()
    assert _fits("empty", _share(sum(t.numel() == 0 for t in tensors), len(tensors)), 0.01, 0.1) == ""
    assert _fits("size 1", _share(sum(1 in t.shape for t in tensors), len(tensors)), 0.1, 0.5) == ""


def test_strides_of_every_kind_are_drawn() -> None:
    tensors = [t for t in _tensors() if t.dim() and t.numel() > 1]
    share = _share(sum(not t.is_contiguous() for t in tensors), len(tensors))
    assert _fits("not contiguous", share, 0.15, 0.6) == ""
    assert any(0 in t.stride() and t.numel() > 1 for t in tensors)
    assert any(t.storage_offset() > 0 for t in tensors)


def test_special_values_are_drawn() -> None:
    floats = [t.detach() for t in _tensors() if t.is_floating_point() and t.numel() and t.element_size() > 1]
    assert _fits("NaN", _share(sum(bool(t.isnan().any()) for t in floats), len(floats)), 0.01, 0.12) == ""
    assert _fits("infinity", _share(sum(bool(t.isinf().any()) for t in floats), len(floats)), 0.01, 0.12) == ""
    assert any(bool(((t == 0) & t.signbit()).any()) for t in floats)


def test_operands_broadcast_and_differ_in_dtype() -> None:
    pairs = [
        tensors for call, tensors in _operands()
        if OPERATORS.get(call.target) is not None and OPERATORS[call.target].category in ("pointwise", "operator", "comparison")
        and len(tensors) >= 2
    ]  # fmt: skip
    assert len(pairs) > 50
    assert _fits("broadcast", _share(sum(len({t.shape for t in p}) > 1 for p in pairs), len(pairs)), 0.1, 0.6) == ""
    assert _fits("mixed dtypes", _share(sum(len({t.dtype for t in p}) > 1 for p in pairs), len(pairs)), 0.05, 0.5) == ""


def test_every_category_but_those_that_write_is_drawn() -> None:
    drawn = {call.target for call, _ in _operands()}
    reached = {spec.category for name, spec in OPERATORS.items() if name.split("(")[0] in drawn}
    wanted = {spec.category for spec in OPERATORS.values() if not spec.writes and not spec.is_random}
    assert wanted <= reached


def test_gradients_are_asked_for() -> None:
    floats = [t for t in _tensors() if t.is_floating_point()]
    assert _fits("requires grad", _share(sum(t.requires_grad for t in floats), len(floats)), 0.15, 0.5) == ""


def test_operands_are_shared_or_used_twice_now_and_then() -> None:
    twice = 0
    for call, _ in _operands():
        names = [arg.name for arg in call.args if isinstance(arg, Ref)]
        twice += len(names) != len(set(names))
    assert twice > 0
