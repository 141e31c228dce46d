"""Arguments of a later call, made from those of an earlier one: other sizes, layouts, dtypes, values, numbers, aliasing.

It changes specs of `oracle.program.inputs` and builds no tensors. Each function returns new specs, or None if it does not apply
to the arguments. The caller must check that eager accepts them.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import COMPLEX, FLOATS, draw_spec, is_inexact

Specs: TypeAlias = list[Any]
_GEOMETRY = ("stride", "offset", "memory_format", "storage_size")
# Layouts on which all writes are defined; the others are used only if nothing is written.
DISJOINT_LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "channels_last", "gapped")
_INTEGERS = ("int64", "int32", "int16")  # each holds what the others are filled with
_CASTABLE_FILLS = ("normal", "uniform", "integers", "special")  # whose elements exist in every dtype of a kind
_LARGEST_SEED = (1 << 31) - 1


def resized(draw: Draw, specs: Specs, *, largest: int, numbers: Sequence[int] = ()) -> Specs | None:
    """Change one size everywhere: to 0, 1, a multiple, a prime, the size of another dimension, or one of `numbers`.

    `numbers` are integers in the program, with which sizes may be compared.
    """
    sizes = [size for spec in tensors_in(specs) for size in spec["shape"]]
    if not sizes:
        return None
    old = draw.choice(list(dict.fromkeys(sizes)))
    others = [size for size in dict.fromkeys(sizes) if size != old]
    weights = {
        "near": 4.0,
        "multiple": 3.0,
        "prime": 3.0,
        "one": 2.0,
        "equal": 3.0,
        "constant": 5.0,
        "zero": 1.0,
        "wide": 1.0,
    }
    weights["equal"] *= bool(others)
    weights["constant"] *= bool(numbers)
    kind = draw.weighted(weights)
    new = {
        "near": lambda: old + draw.choice((1, 2)),
        "multiple": lambda: old * draw.choice((2, 4)) or 4,
        "prime": lambda: draw.choice((7, 11, 13)),
        "one": lambda: 1,
        "equal": lambda: draw.choice(others),
        "constant": lambda: draw.choice(numbers),
        "zero": lambda: 0,
        "wide": lambda: draw.choice((32, 33)),
    }[kind]()
    if new == old:
        return None
    return with_size(specs, old, new, largest=largest)


def with_size(specs: Specs, old: int, new: int, *, largest: int) -> Specs | None:
    """Every dimension of size `old` is of size `new`. None where a tensor would get too large, or has listed values."""
    changed = copy.deepcopy(specs)
    shared = _partly_shared(changed)
    for spec in tensors_in(changed):
        fill = spec.get("fill", {})
        if fill.get("kind") == "integers" and fill.get("low") == 0 and fill.get("high") == old:
            spec["fill"] = {**fill, "high": max(1, new)}  # indices into a dimension that changed
        if old not in spec["shape"]:
            continue
        shape = [new if size == old else size for size in spec["shape"]]
        if math.prod(shape) > largest or fill.get("kind") in ("values", "raw"):
            return None
        if "stride" in spec:
            spec["stride"] = _restrided(spec["shape"], spec["stride"], shape)
        spec.pop("storage_size", None)
        if spec.get("storage") in shared:  # where in the memory of the others it would lie has no meaning any more
            del spec["storage"]
        spec["shape"] = shape
    return changed


def relaid(draw: Draw, specs: Specs, *, writes: bool) -> Specs | None:
    """Change the layout of one tensor."""
    changed = copy.deepcopy(specs)
    spec = _choose(
        draw, changed, lambda s: bool(s["shape"]) and "storage" not in s and s.get("fill", {}).get("kind") != "raw"
    )
    if spec is None:
        return None
    layouts = DISJOINT_LAYOUTS if writes else (*DISJOINT_LAYOUTS, "expanded", "overlapping")
    before = {name: spec.pop(name) for name in _GEOMETRY if name in spec}
    drawn = draw_spec(draw, tuple(spec["shape"]), spec["dtype"], layouts=layouts)
    after = {name: drawn[name] for name in _GEOMETRY if name in drawn}
    spec.update(after)
    return changed if after != before else None


def cast(draw: Draw, specs: Specs) -> Specs | None:
    """Change the dtype of one tensor, or of all with the same dtype, to another of the same kind."""
    changed = copy.deepcopy(specs)
    first = _choose(draw, changed, lambda s: bool(_same_kind(s["dtype"])) and "storage" not in s)
    if first is None:
        return None
    old, new = first["dtype"], draw.choice(_same_kind(first["dtype"]))
    everywhere = draw.chance(0.7)
    for spec in tensors_in(changed):
        if spec is first or (everywhere and spec["dtype"] == old and "storage" not in spec):
            if spec.get("fill", {}).get("kind", "normal") not in _CASTABLE_FILLS:
                return None
            spec["dtype"] = new
    return changed


def regraded(draw: Draw, specs: Specs) -> Specs | None:
    """Change requires_grad of one tensor, or of all."""
    changed = copy.deepcopy(specs)
    able = [spec for spec in tensors_in(changed) if is_inexact(spec["dtype"])]
    if not able:
        return None
    wanted = not draw.choice(able).get("requires_grad", False)
    for spec in (
        able if draw.chance(0.4) else [draw.choice([s for s in able if s.get("requires_grad", False) != wanted])]
    ):
        spec["requires_grad"] = wanted
    return changed


def refilled(draw: Draw, specs: Specs) -> Specs | None:
    """Draw other values of the same kind everywhere."""
    changed = copy.deepcopy(specs)
    filled = [spec for spec in tensors_in(changed) if "seed" in spec.get("fill", {})]
    for spec in filled:
        spec["fill"] = {**spec["fill"], "seed": draw.integer(0, _LARGEST_SEED)}
    return changed if filled else None


def renumbered(draw: Draw, specs: Specs, others: Mapping[int, Sequence[Any]]) -> Specs | None:
    """Change one argument that is not a tensor: numbers by rule, others to one of `others`, by position."""
    able = [i for i, spec in enumerate(specs) if i in others or isinstance(spec, (bool, int, float))]
    if not able:
        return None
    at = draw.choice(able)
    spec = specs[at]
    options = [*others.get(at, ())]
    if isinstance(spec, bool):
        options += [not spec, not spec, int(spec)]
    elif isinstance(spec, int):
        options += [spec + 1, 0, 1, -1, 2, 7, float(spec)]
    elif isinstance(spec, float):
        options += [spec * 2 + 1, 0.0, 1.0, -spec, {"$": "float", "value": "nan"}, 1e30, 2]
    # compare their text, since -0.0 == 0.0 and True == 1
    new = draw.choice([option for option in options if repr(option) != repr(spec)])
    return [*specs[:at], copy.deepcopy(new), *specs[at + 1 :]]


def realiased(draw: Draw, specs: Specs) -> Specs | None:
    """Make two separate tensor arguments one tensor, or let them share memory; or separate two that were one."""
    if any(isinstance(spec, Mapping) and spec.get("$") == "same" for spec in specs) or _shared(specs):
        return _apart(draw, specs)
    places = [i for i, spec in enumerate(specs) if isinstance(spec, Mapping) and spec.get("$") == "tensor"]
    pairs = [(i, j) for i in places for j in places if i < j and specs[i]["dtype"] == specs[j]["dtype"]]
    alike = [(i, j) for i, j in pairs if specs[i]["shape"] == specs[j]["shape"]]
    if not pairs:
        return None
    changed = copy.deepcopy(specs)
    if alike and draw.chance(0.6):
        first, second = draw.choice(alike)
        # An earlier change may have left a name behind whose second tensor is another one by now.
        taken = {spec.get("id") for spec in tensors_in(changed)}
        name = changed[first].setdefault(
            "id", next(name for name in map("t{}".format, itertools.count()) if name not in taken)
        )
        changed[second] = {"$": "same", "id": name}
        return changed
    first, second = draw.choice(pairs)
    for at in (first, second):
        changed[at] = {
            key: value for key, value in changed[at].items() if key not in ("offset", "storage_size", "requires_grad")
        }
        changed[at]["storage"] = "s"
        if changed[at].get("fill", {}).get("kind") in ("raw", "values"):
            return None
    if draw.chance(0.4):
        changed[second]["offset"] = draw.choice((1, math.prod(changed[first]["shape"])))
    return changed


def tensors_in(tree: Any) -> Iterator[dict[str, Any]]:
    """The tensor specs in a tree, in order."""
    if isinstance(tree, list):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        if tree.get("$") == "tensor":
            yield tree
        else:
            for item in tree.values():
                yield from tensors_in(item)


def _apart(draw: Draw, specs: Specs) -> Specs:
    """No tensor is another one, and none shares memory."""
    changed = copy.deepcopy(specs)
    by_id = {spec["id"]: spec for spec in tensors_in(changed) if "id" in spec}
    for i, spec in enumerate(changed):
        if isinstance(spec, dict) and spec.get("$") == "same" and spec["id"] in by_id:
            twin = copy.deepcopy(by_id[spec["id"]])
            del twin["id"]
            if "seed" in twin.get("fill", {}):
                twin["fill"]["seed"] = draw.integer(0, _LARGEST_SEED)
            changed[i] = twin
    for spec in tensors_in(changed):
        spec.pop("storage", None)
    return changed


def _shared(specs: Specs) -> list[str]:
    return [spec["storage"] for spec in tensors_in(specs) if "storage" in spec]


def _partly_shared(specs: Specs) -> set[str]:
    """Storages whose tensors are not all of one shape at one place."""
    places: dict[str, list[Any]] = {}
    for spec in tensors_in(specs):
        if "storage" in spec:
            places.setdefault(spec["storage"], []).append([spec["shape"], *(spec.get(name) for name in _GEOMETRY)])
    return {name for name, found in places.items() if any(place != found[0] for place in found)}


def _choose(draw: Draw, specs: Specs, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    able = [spec for spec in tensors_in(specs) if condition(spec)]
    return draw.choice(able) if able else None


def _same_kind(dtype: str) -> tuple[str, ...]:
    for kind in (FLOATS, COMPLEX, _INTEGERS):
        if dtype in kind:
            return tuple(other for other in kind if other != dtype)
    return ()


def _restrided(old_shape: Sequence[int], old_stride: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Strides for another shape: the same order of dimensions in memory, the same gaps, the same expanded dimensions."""
    stride = list(old_stride)
    before: int | None = None
    for dim in sorted(range(len(shape)), key=lambda d: (old_stride[d], -d)):
        if old_stride[dim] == 0:
            continue
        if before is not None:
            reached = old_stride[before] * max(1, old_shape[before])
            if old_stride[dim] < reached:  # overlaps itself, and keeps doing so
                return list(old_stride)
            stride[dim] = stride[before] * max(1, shape[before]) * (old_stride[dim] // reached)
        before = dim
    return stride
