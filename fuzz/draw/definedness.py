"""Finds operations of an eager run whose result is undefined, which a reduced program or a later call must not contain.

Examples: two writes to one element, an index that occurs twice in a scatter, a float out of the integer's range. A difference in
such a program is no bug, even with the same symptom. The grammar never draws them, but a step of the reducer could make one, and
so could a call in which arguments share memory and one gets the other's numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.draw.geometry import overlaps_itself, partly_overlap, share_memory

_INTEGER_DIVISIONS = frozenset(
    ["div", "floor_divide", "remainder", "fmod", "div_", "floor_divide_", "remainder_", "fmod_"]
)
_SHIFTS = frozenset(["__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift"])
_SCATTERS = {"scatter": 2, "scatter_": 2, "index_copy": 2, "index_copy_": 2, "index_fill": 2, "index_fill_": 2}
_UNINITIALISED = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"])


OF_VALUES = frozenset(["float out of an integer's range", "shift out of range", "index twice", "index out of range"])


class Definedness(TorchDispatchMode):
    """A dispatch mode that adds a word to `kinds` for each kind of undefined operation, and changes nothing."""

    supports_higher_order_operators = True  # no check of their own operands: the operators in their bodies are checked

    def __init__(self, kinds: set[str]) -> None:
        super().__init__()
        self._kinds = kinds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None:
            return func(*args, **kwargs)
        name = schema.name.partition("::")[2]
        if schema.is_mutable:
            self._look_at_writes(schema, args, kwargs)
        self._look_at_values(name, args, kwargs)
        return func(*args, **kwargs)

    def _look_at_writes(self, schema: Any, args: Any, kwargs: Any) -> None:
        written, read = [], []
        for position, argument in enumerate(schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            into = written if argument.alias_info is not None and argument.alias_info.is_write else read
            into += [t for t in (value if isinstance(value, (list, tuple)) else [value]) if _is_plain(t)]
        if any(overlaps_itself(tensor) for tensor in written):
            self._kinds.add("write to overlapping memory")
        if any(share_memory(one, other) for at, one in enumerate(written) for other in written[at + 1 :]):
            self._kinds.add("two writes to one place")
        if any(partly_overlap(one, other) for one in written for other in read):
            self._kinds.add("read of partly overwritten memory")

    def _look_at_values(self, name: str, args: Any, kwargs: Any) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if not all(map(_is_plain, tensors)):
            return
        plain = name.rstrip("_") if not name.startswith("__") else name
        if name in _UNINITIALISED:
            self._kinds.add("uninitialised memory")
        elif name in _INTEGER_DIVISIONS and len(args) > 1:
            if _is_integer(args[0]) and _is_integer(args[1]) and _has(args[1], lambda t: t == 0):
                self._kinds.add("integer division by zero")
        elif name in _SHIFTS and len(args) > 1 and tensors:
            bits = 8 * tensors[0].element_size()
            if _has(args[1], lambda t: (t < 0) | (t >= bits)):
                self._kinds.add("shift out of range")
        elif name in ("_to_copy", "copy_"):
            source = args[0] if name == "_to_copy" else args[1]
            dtype = kwargs.get("dtype") if name == "_to_copy" else args[0].dtype
            if _loses_range(source, dtype):
                self._kinds.add("float out of an integer's range")
        elif name in _SCATTERS and len(args) > _SCATTERS[name]:
            index = args[_SCATTERS[name]]
            if _is_plain(index) and _repeats(index, args[1], along_dim=plain == "scatter"):
                self._kinds.add("index twice")
        elif name == "embedding_dense_backward":  # it does not check indices, and may write out of bounds
            if _has(args[1], lambda t: (t < 0) | (t >= args[2])):
                self._kinds.add("index out of range")
        elif plain in ("index_put", "_unsafe_index_put", "_index_put_impl"):
            accumulates = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
            if not accumulates and _positions_repeat(args[0], args[1]):
                self._kinds.add("index twice")


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type == "cpu"
    )


def _is_integer(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return isinstance(value, int)


def _has(value: Any, condition: Any) -> bool:
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return bool(condition(tensor).any())


def _loses_range(source: Any, dtype: Any) -> bool:
    if (
        not isinstance(dtype, torch.dtype)
        or not _is_plain(source)
        or not (source.is_floating_point() or source.is_complex())
    ):
        return False
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return False
    info = torch.iinfo(dtype)
    values = (source.real if source.is_complex() else source).double()
    return bool((~(values > info.min - 1.0) | ~(values < info.max + 1.0)).any())


def _repeats(index: torch.Tensor, dim: Any, *, along_dim: bool) -> bool:
    """Whether an index occurs twice: anywhere, or (scatter) along one dimension."""
    if index.numel() < 2:
        return False
    if not along_dim or index.dim() < 2:
        return index.unique().numel() < index.numel()
    rows = index.movedim(dim, -1).reshape(-1, index.shape[dim]).sort(dim=-1).values
    return bool((rows[:, 1:] == rows[:, :-1]).any())


def _positions_repeat(target: torch.Tensor, indices: Any) -> bool:
    """Whether `target[indices]` names an element twice."""
    if not _is_plain(target) or not any(_is_plain(index) for index in indices):
        return False
    places = torch.arange(target.numel()).reshape(target.shape)
    try:
        found = torch.ops.aten.index(places, indices).reshape(-1)
    except (RuntimeError, IndexError):
        return False
    return found.unique().numel() < found.numel()
