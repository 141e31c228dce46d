"""Names of call targets: operators of torch.ops, and a closed list of functions of Python and torch.

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
from refimpl.trace.triton_kernels import is_launch

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
    """The name of a call target. Raises ArchiveError for functions outside the list, and for launches of Triton kernels."""
    if is_launch(target):
        raise ArchiveError(
            seen=f"a launch of a Triton kernel, {target}",
            expected="operators that another process has as well",
            do="launch the kernel in an operator (torch.library.triton_op), and export again",
        )
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
    """The target of this name. Raises ArchiveError for other functions, and for operators that are not registered."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    found = _OPERATOR.fullmatch(name)
    if found is None:
        raise ArchiveError(
            seen=f"the program calls {name!r}", expected=f"an operator of torch.ops, or one of {sorted(FUNCTIONS)}"
        )
    namespace, base, overload = found.groups()
    known = _known(namespace, base)
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


def _known(namespace: str, base: str) -> Any:
    """The operator packet or higher-order operator of these names; None if there is none. torch.ops also has methods, such as
    load_library; only namespaces have operators."""
    owner = getattr(torch.ops, namespace)
    return (
        getattr(owner, base, None) if type(owner).__name__.endswith(("_OpNamespace", "_HigherOrderNamespace")) else None
    )


def packet_named(name: str) -> Any:
    """The packet of the operators `namespace.base`. Raises ArchiveError if there is none."""
    namespace, _, base = name.partition(".")
    known = _known(namespace, base) if namespace.isidentifier() and base.isidentifier() else None
    if not isinstance(known, OpOverloadPacket):
        raise ArchiveError(seen=f"the program was made of {name!r}", expected="operators of torch.ops")
    return known


def schema_of(target: Any) -> str | None:
    """The schema of an operator, to detect that a program was saved with another one."""
    return str(target._schema) if isinstance(target, OpOverload) else None
