"""Marks that users set and capture reads. No imports, so that any part of capture can read them.

Counterpart: attributes that torch/_dynamo/decorators.py sets; torch/_dynamo/trace_rules.py _allowed_callable_ids and its like
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

# By identity, for functions of C have no attributes; the function itself is held, so that the number stays its own.
ALLOWED: dict[int, Any] = {}  # a call is a node
BREAKING: dict[int, Any] = {}  # the graph ends before a call
FORBIDDEN: dict[int, Any] = {}  # a call is an error

_FORBIDDEN_BY_TORCH = "_dynamo_forbidden"  # of a function that torch's own decorator marked


def is_forbidden(function: Any) -> bool:
    """Whether capturing a call of it is an error."""
    if id(function) in FORBIDDEN:
        return True
    return type(function) is FunctionType and function.__dict__.get(_FORBIDDEN_BY_TORCH) is True


LEFT_OUT_ALONE = "_refimpl_left_out_alone"  # of a function that is not captured, and calls others that are
CONSTANT_RESULT = "_dynamo_marked_constant"  # of a function
# Of a tensor: sets of dimensions.
DYNAMIC = "_dynamo_dynamic_indices"
WEAKLY_DYNAMIC = "_dynamo_weak_dynamic_indices"
UNBACKED = "_dynamo_unbacked_indices"
STATIC = "_dynamo_static_indices"
RANGES = "_dynamo_dynamic_range"
