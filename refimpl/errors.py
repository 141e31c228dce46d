"""Errors of refimpl: each says what was seen, what was expected and what to do.

Types follow upstream's where its callers catch them (`RuntimeError` for a data-dependent read).
"""

from __future__ import annotations


class RefimplError(Exception):
    """Base of every error refimpl raises on purpose."""


class UnsupportedByRefimpl(RefimplError, NotImplementedError):
    """A parameter value or construct that this version does not do. Never a silent approximation."""

    def __init__(self, *, seen: str, supported: str, do: str) -> None:
        super().__init__(f"refimpl does not support {seen}\n  supported: {supported}\n  what to do: {do}")


class BadParameter(RefimplError, AssertionError, ValueError):
    """A parameter value that has no meaning. An AssertionError too, as upstream's."""

    def __init__(self, *, seen: str, expected: str) -> None:
        super().__init__(f"{seen}\n  expected: {expected}")


class DataDependentRead(RefimplError, RuntimeError):
    """The traced function reads a value out of a tensor, so that its course depends on data.

    Counterpart: the RuntimeError of torch/fx/experimental/proxy_tensor.py proxy_call
    """

    def __init__(self, func: object) -> None:
        super().__init__(
            f"the traced function reads a value out of a tensor that depends on its inputs, by {func}.\n"
            "  expected: a course that does not depend on data (no .item(), bool(tensor), or shape found from values)\n"
            "  what to do: keep the value in tensors (torch.where, masks), or capture the function instead of tracing it"
        )


class UntraceableOutput(RefimplError, TypeError):
    """The traced function returns something that is neither a tensor nor a constant a graph can hold."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"the traced function returns a {type(value).__module__}.{type(value).__qualname__}\n"
            "  expected: tensors, numbers, strings, None, dtypes and devices in containers that torch.utils._pytree knows\n"
            "  what to do: return its tensors, or register its class with torch.utils._pytree.register_pytree_node"
        )
