"""Nested containers of values as lists of what is in them, as torch.utils._pytree takes apart those of objects.

Counterpart: torch/_dynamo/variables/higher_order_ops.py _make_inlined(tx, pytree.tree_flatten)
Differs: tuples, lists, named tuples and dicts only; everything else is a leaf, containers of the user's registration too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from refimpl.capture.values import ConstantValue, DictValue, SequenceValue, Value
from refimpl.capture.values.classes import is_named_tuple

Tree = tuple[Any, ...]  # of a leaf: empty; else the class, what is said of the container, and the trees in it


def flatten(value: Any, see: Callable[[Any], Any]) -> tuple[list[Any], Tree]:
    """The leaves, in order, and the tree."""
    value = see(value)
    match value:
        case SequenceValue() if value.class_ in (tuple, list) or is_named_tuple(value.class_):
            note, parts = len(value.items), value.items
        case DictValue() if value.class_ is dict and all(
            isinstance(key, ConstantValue) for key, _ in value.items.values()
        ):
            note = tuple(getattr(key, "value") for key, _ in value.items.values())
            parts = [part for _, part in value.items.values()]
        case _:
            return [value], ()
    found = [flatten(part, see) for part in parts]
    return [leaf for leaves, _ in found for leaf in leaves], (value.class_, note, tuple(tree for _, tree in found))


def unflatten(leaves: Iterator[Any], tree: Tree, put: Callable[[DictValue, Any, Value], None]) -> Any:
    """The containers again, with other leaves. put: sets an item of a dict."""
    if not tree:
        return next(leaves)
    class_, note, trees = tree
    parts = [unflatten(leaves, inner, put) for inner in trees]
    if class_ is not dict:
        return SequenceValue(class_, parts)
    made = DictValue({})
    for key, part in zip(note, parts, strict=True):
        put(made, ConstantValue(key), part)
    return made
