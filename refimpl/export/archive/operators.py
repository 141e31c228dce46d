"""What a graph may call, by name: operators of torch.ops, and a closed list of functions of Python and torch.

Counterpart: torch/_export/serde/serialize.py serialize_operator, deserialize_operator
"""

from __future__ import annotations

import re
from typing import Any

import torch

from refimpl._torch import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    enter_autocast,
    exit_autocast,
    set_grad_enabled,
)
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.region_operators import wrap_with_autocast, wrap_with_set_grad_enabled
from refimpl.export.verifier import NUMBER_FUNCTIONS

_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.(\w+))?")

FUNCTIONS: dict[str, Any] = {
    # By where Python and torch have them: `operator.add`, `math.ceil`, `torch.sym_sqrt`, whose own name has an underscore.
    **{f"{f.__module__.lstrip('_')}.{f.__name__.lstrip('_')}": f for f in NUMBER_FUNCTIONS},
    "grad_mode.set_grad_enabled": set_grad_enabled,
    "autocast.enter": enter_autocast,
    "autocast.exit": exit_autocast,
    "grad_mode.region": wrap_with_set_grad_enabled,
    "autocast.region": wrap_with_autocast,
}
_FUNCTION_NAMES = {function: name for name, function in FUNCTIONS.items()}


def name_of(target: Any) -> str:
    """The name of what a node calls. Raises ArchiveError for what is not in the list."""
    if isinstance(target, OpOverload):
        return f"torch.ops.{target.namespace}.{target._schema.name.split('::')[1]}.{target._overloadname}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.higher_order.{target.name()}"
    name = _FUNCTION_NAMES.get(target)
    if name is None:
        raise ArchiveError(
            seen=f"a call of {target!r}",
            expected=f"an operator of torch.ops, or one of {sorted(FUNCTIONS)}",
            do="make it an operator (torch.library.custom_op), and export again",
        )
    return name


def named(name: str) -> Any:
    """What a name stands for. Raises ArchiveError for names outside the list, and for operators this process does not have."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    found = _OPERATOR.fullmatch(name)
    if found is None:
        raise ArchiveError(
            seen=f"the program calls {name!r}", expected=f"an operator of torch.ops, or one of {sorted(FUNCTIONS)}"
        )
    namespace, base, overload = found.groups()
    owner = getattr(torch.ops, namespace)
    # The type tells namespaces from methods of torch.ops, as load_library.
    known = (
        getattr(owner, base, None) if type(owner).__name__.endswith(("_OpNamespace", "_HigherOrderNamespace")) else None
    )
    if overload is None and isinstance(known, HigherOrderOperator):
        return known
    target = getattr(known, overload, None) if overload and isinstance(known, OpOverloadPacket) else None
    if not isinstance(target, OpOverload):
        raise ArchiveError(
            seen=f"the program calls {name}, which is not registered in this process",
            expected=f"an operator that torch {torch.__version__} or an imported library defines",
            do="import the library that defines it before loading; for an operator of torch use the version of the archive",
        )
    return target


def schema_of(target: Any) -> str | None:
    """The signature of an operator, by which a program saved for another one is known."""
    return str(target._schema) if isinstance(target, OpOverload) else None
