"""Flatten any Python value into leaves with paths, and describe its structure in one line.

Counterpart: torch/utils/_pytree.py tree_flatten_with_path
Differs: also flattens dataclasses and plain objects that hold tensors, supports cycles, and accepts every type.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from typing import Any

import torch
from torch.utils import _pytree as pytree

_SCALARS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_MAX_DEPTH = 12


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RawLeaf:
    """A leaf that is not copied: a tensor, a scalar, or an opaque object."""

    path: str
    value: Any
    is_opaque: bool = False


def flatten(value: Any, path: str) -> tuple[list[RawLeaf], str]:
    """Leaves in order, and the structure: "tuple(Tensor, dict('loss': Tensor, 'aux': None))"."""
    leaves: list[RawLeaf] = []
    structure = _visit(value, path, leaves, ())
    return leaves, structure


def _return_type_fields(kind: type) -> list[str]:
    """Field names of a torch.return_types class, in the order of its items."""
    names = [name for name, member in vars(kind).items() if isinstance(member, types.MemberDescriptorType)]
    return (
        names
        if len(names) >= getattr(kind, "n_sequence_fields", 0)
        else [f"<{i}>" for i in range(kind.n_sequence_fields)]
    )


def _visit(value: Any, path: str, leaves: list[RawLeaf], above: tuple[int, ...]) -> str:
    if isinstance(value, torch.Tensor):
        leaves.append(RawLeaf(path, value))
        return "Tensor"
    kind = type(value)
    if kind in _SCALARS or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        leaves.append(RawLeaf(path, value))
        return kind.__name__
    if id(value) in above or len(above) >= _MAX_DEPTH:
        return f"<cycle {kind.__name__}>"
    above = (*above, id(value))
    if isinstance(value, torch.Size):
        leaves.append(RawLeaf(path, tuple(value)))
        return "Size"
    if isinstance(value, tuple) and (hasattr(value, "_fields") or kind.__module__ == "torch.return_types"):
        names = getattr(value, "_fields", None) or _return_type_fields(kind)
        fields = zip(names, value, strict=False)  # some return_types have more fields than items
        parts = [f"{name}: {_visit(item, f'{path}.{name}', leaves, above)}" for name, item in fields]
        return f"{kind.__name__}({', '.join(parts)})"
    if isinstance(value, (list, tuple, collections.deque)):
        parts = [_visit(item, f"{path}[{i}]", leaves, above) for i, item in enumerate(value)]
        return f"{kind.__name__}({', '.join(parts)})"
    if isinstance(value, dict):
        parts = [f"{key!r}: {_visit(item, f'{path}[{key!r}]', leaves, above)}" for key, item in value.items()]
        return f"{kind.__name__}({', '.join(parts)})"
    if isinstance(value, (set, frozenset)):
        if all(isinstance(item, _SCALARS) for item in value):
            leaves.append(RawLeaf(path, repr(sorted(map(repr, value)))))
            return kind.__name__
        return f"{kind.__name__} of {len(value)}"
    if isinstance(value, enum.Enum):
        leaves.append(RawLeaf(path, str(value)))
        return kind.__name__
    if isinstance(value, slice):
        leaves.append(RawLeaf(path, repr(value)))
        return "slice"
    if isinstance(value, type) or callable(value):
        leaves.append(RawLeaf(path, f"<{kind.__name__}>", is_opaque=True))
        return kind.__name__
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _visit_attributes(value, names, path, leaves, above)
    if kind in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        parts = [_visit(item, f"{path}<{i}>", leaves, above) for i, item in enumerate(children)]
        return f"{kind.__name__}({', '.join(parts)})"
    if hasattr(value, "tolist") and kind.__module__ == "numpy":  # arrays and numpy scalars: dtype and values
        leaves.append(RawLeaf(path, f"{getattr(value, 'dtype', '')} {value.tolist()!r}"))
        return kind.__name__
    names = sorted(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module) else []
    names = [name for name in names if not name.startswith("__")]
    if names:
        inner: list[RawLeaf] = []
        structure = _visit_attributes(value, names, path, inner, above)
        if any(isinstance(leaf.value, torch.Tensor) for leaf in inner):
            leaves.extend(inner)
            return structure
    leaves.append(RawLeaf(path, f"<{kind.__name__}>", is_opaque=True))
    return kind.__name__


def _visit_attributes(value: Any, names: list[str], path: str, leaves: list[RawLeaf], above: tuple[int, ...]) -> str:
    parts = [
        f"{name}: {_visit(getattr(value, name), f'{path}.{name}', leaves, above)}"
        for name in names
        if hasattr(value, name)
    ]
    return f"{type(value).__name__}({', '.join(parts)})"
