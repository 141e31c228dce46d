"""`dynamic_shapes` as plain data that can be saved as JSON, and back.

Counterpart: torch/_export/serde/dynamic_shapes.py DynamicShapesSpec, RootDim, _dump_dynamic_shapes, _load_dynamic_shapes
Differs: a derived size is read by its form `a*name + b`, and by no computer algebra.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.export.errors import invalid_input
from refimpl.export.shapes.dims import NO_LIMIT, DerivedDim, Dim, DimHint
from refimpl.export.shapes.policies import map_arguments

_HINT = "_DimHint."
_DERIVED = re.compile(r"(?:(?P<scale>\d+) ?\* ?)?(?P<root>\w+)(?: (?P<sign>[+-]) (?P<offset>\d+))?")


@dataclasses.dataclass
class RootDim:
    """A Dim: its bounds (no `max` for no limit), and the names of the sizes that derive from it."""

    min: int
    max: int | None
    derived: list[str]


@dataclasses.dataclass
class DynamicShapesSpec:
    """`dynamic_shapes` has a list for each tensor, with names for Dims and hints; `dims` has the Dims by name."""

    dynamic_shapes: Any
    dims: dict[str, RootDim]


def _dump_dynamic_shapes(
    dynamic_shapes: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, to_dict: bool = False
) -> Any:
    """The `dynamic_shapes` of these arguments as plain data; with `to_dict` without classes."""
    if dynamic_shapes is None:
        return {"dynamic_shapes": None, "dims": {}}
    dims: dict[str, RootDim] = {}

    def named(size: Any) -> Any:
        if isinstance(size, DimHint):
            return f"{_HINT}{size.type.name}"
        if not isinstance(size, Dim):
            return size
        root = size.root if isinstance(size, DerivedDim) else size
        limit = None if root.max == NO_LIMIT else root.max
        known = dims.setdefault(root.__name__, RootDim(root.min, limit, []))
        if root is not size and size.__name__ not in known.derived:
            known.derived.append(size.__name__)
        return size.__name__

    def sizes(value: Any, said: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if said is None:
            return [named(Dim.STATIC)] * value.dim()
        items = said if isinstance(said, Mapping) else dict(enumerate(said))
        return [named(size if items.get(dim) is None else items[dim]) for dim, size in enumerate(value.shape)]

    given = dynamic_shapes.values() if isinstance(dynamic_shapes, Mapping) else dynamic_shapes
    values = (*args, *(kwargs or {}).values())
    found = tuple(_paired(sizes, value, said) for value, said in zip(values, given, strict=True))
    ordered = {name: dataclasses.replace(dims[name], derived=sorted(dims[name].derived)) for name in sorted(dims)}
    spec = DynamicShapesSpec(found, ordered)
    return (
        {"dynamic_shapes": found, "dims": {k: dataclasses.asdict(v) for k, v in ordered.items()}} if to_dict else spec
    )


def _paired(function: Any, value: Any, said: Any) -> Any:
    """The function of each leaf of an argument and of its shapes. None for a container is None for its leaves."""
    if pytree.tree_is_leaf(value):
        return function(value, said)
    if said is None:
        return map_arguments(lambda leaf: function(leaf, None), value)
    children = pytree.tree_leaves(value, is_leaf=lambda inner: inner is not value)
    is_fit = said.keys() == value.keys() if isinstance(value, Mapping) else len(said) == len(children)
    if not is_fit:
        raise invalid_input(
            f"Detected mismatch between the structure of `inputs` and `dynamic_shapes`: {said} for {len(children)} inputs"
        )
    if isinstance(value, Mapping):
        return {key: _paired(function, item, said[key]) for key, item in value.items()}
    made = [_paired(function, *pair) for pair in zip(children, said, strict=True)]
    return tuple(made) if isinstance(value, tuple) else made


def _load_dynamic_shapes(spec: Any, from_dict: bool = False) -> Any:
    """The `dynamic_shapes` of saved data. Raises UserError for data of another form."""
    if from_dict:
        spec = _read(spec)
    elif not isinstance(spec, DynamicShapesSpec):
        raise invalid_input(f"Expected `spec` to be a DynamicShapesSpec, got {type(spec)}")
    known: dict[str, Any] = {}
    for name, info in spec.dims.items():
        if not name.isidentifier():
            raise invalid_input(f"Expected `spec['dims']` keys to be symbols, got {name}")
        known[name] = Dim(name, min=info.min, max=info.max)
        known.update({text: _derived(text, known[name]) for text in info.derived})

    def size(said: Any) -> Any:
        if said is None or isinstance(said, int):
            return said
        if not isinstance(said, str):
            raise invalid_input(
                "Expected leaves in `spec['dynamic_shapes']` to be ints, None, Dim.AUTO/STATIC, symbols, "
                f" or derived expressions, got {said}"
            )
        if said.startswith(_HINT):
            return getattr(Dim, said.removeprefix(_HINT))
        if said not in known:
            raise invalid_input(
                "Expected dims in `spec['dynamic_shapes']` to be tracked in `spec['dims']`, "
                f"got {said} which is not in {spec.dims.keys()}"
            )
        return known[said]

    return pytree.tree_map(size, spec.dynamic_shapes)


def _derived(text: str, root: Dim) -> Dim:
    """The size that derives from `root` by its name."""
    read = _DERIVED.fullmatch(text)
    if read is None:
        raise invalid_input(f"Expected derived expressions to be linear expressions, got {text}")
    if read["root"] != root.__name__:
        raise invalid_input(
            f"Expected derived expressions in to have {root.__name__} as the only free symbol, got {text}"
        )
    scaled = root if read["scale"] is None else int(read["scale"]) * root
    offset = int(f"{read['sign'] or ''}{read['offset'] or 0}")
    return scaled + offset if offset > 0 else scaled - -offset if offset < 0 else scaled


def _read(spec: Any) -> DynamicShapesSpec:
    """The data without classes as a DynamicShapesSpec."""
    if not isinstance(spec, dict):
        raise invalid_input(f"With from_dict=True, expected `spec` to be a dict, got {type(spec)}")
    if sorted(spec) != ["dims", "dynamic_shapes"]:
        raise invalid_input(
            "With from_dict=True, expected `spec` to have keys `dims` and `dynamic_shapes`, "
            f"instead found {spec.keys()}"
        )
    for name, info in spec["dims"].items():
        if not isinstance(name, str):
            raise invalid_input(f"Expected `spec['dims']` keys to be strings for symbols, got key {type(name)}")
        if sorted(info) != ["derived", "max", "min"]:
            raise invalid_input(
                f"Expected `spec['dims']` values to have keys `derived`, `max`, and `min`, instead found {info.keys()}"
            )
        for bound in ("min", "max"):
            if not isinstance(info[bound], int) and not (bound == "max" and info[bound] is None):
                raise invalid_input(
                    f"Expected dims in `spec['dims']` to map `{bound}` to an int, got {name}: {info[bound]}"
                )
        if not isinstance(info["derived"], list) or not all(isinstance(text, str) for text in info["derived"]):
            raise invalid_input(
                "Expected dims in `spec['dims']` to map `derived` to a list of derived expressions, "
                f"got {name}: {info['derived']}"
            )
    return DynamicShapesSpec(spec["dynamic_shapes"], {name: RootDim(**info) for name, info in spec["dims"].items()})
