"""Constants of an exported program: tensors and script objects that are plain attributes of the module.

Counterpart: torch/_export/passes/lift_constants_pass.py ConstantAttrMap; torch/export/_trace.py _gather_constant_attrs
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch

from refimpl._torch import is_opaque_object


def identity(value: Any) -> Hashable:
    """A key that is equal for the same object. Script objects need one: torch wraps them in a new Python object every time."""
    return ("script object", hash(value)) if isinstance(value, torch.ScriptObject) else id(value)


def class_name(value: Any) -> str:
    """The full name of an object's class; for the fake of a script object, the name of the script object's class."""
    if isinstance(value, torch.ScriptObject):
        return value._type().qualified_name()
    return getattr(value, "script_class_name", f"{type(value).__module__}.{type(value).__qualname__}")


def constant_attributes(module: torch.nn.Module) -> dict[Hashable, tuple[Any, list[str]]]:
    """Attributes that are tensors or script objects, but no parameters or buffers: identity -> (value, full names)."""
    state = {id(value) for value in (*module.parameters(), *module.buffers())}
    found: dict[Hashable, tuple[Any, list[str]]] = {}
    for name, value in _attributes(module):
        if id(value) not in state:
            found.setdefault(identity(value), (value, []))[1].append(name)
    return found


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for path, submodule in module.named_modules(remove_duplicate=False):
        if isinstance(submodule, torch.jit.ScriptModule):
            continue
        for name, value in submodule.__dict__.items():
            if isinstance(value, torch.Tensor) or is_opaque_object(value):
                yield (f"{path}.{name}" if path else name), value
