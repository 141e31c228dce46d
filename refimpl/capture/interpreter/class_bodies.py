"""Class statements whose bodies are interpreted: what `__build_class__` does, with a body that is run by the caller."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def build_class(run_body: Callable[[Any], Any], name: str, bases: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The class. `run_body` fills a mapping of names and returns the cell of `__class__`, or None. Raises as `class` does."""
    resolved = types.resolve_bases(bases)
    meta, namespace, rest = types.prepare_class(name, resolved, keywords)
    if not hasattr(type(namespace), "__getitem__"):
        kind = meta.__name__ if isinstance(meta, type) else "<metaclass>"
        raise TypeError(f"{kind}.__prepare__() must return a mapping, not {type(namespace).__name__}")
    cell = run_body(namespace)
    if resolved is not bases:
        namespace["__orig_bases__"] = bases
    made = meta(name, resolved, namespace, **rest)
    if isinstance(made, type) and isinstance(cell, types.CellType):
        try:
            contents = cell.cell_contents
        except ValueError:
            raise RuntimeError(
                f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ propagated to type.__new__?"
            ) from None
        if contents is not made:
            raise TypeError(f"__class__ set to {contents!r} defining {name!r} as {made!r}")
    return made
