"""Marks that users set and capture reads. It imports nothing, so that every part of capture can import it.

Counterpart: attributes that torch/_dynamo/decorators.py sets; torch/_dynamo/trace_rules.py _allowed_callable_ids and similar sets
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

# By id, because C functions have no attributes. The value keeps the function alive, so that its id stays unique.
ALLOWED: dict[int, Any] = {}  # a call is one node
BREAKING: dict[int, Any] = {}  # the graph breaks before a call
FORBIDDEN: dict[int, Any] = {}  # capturing a call is an error
SUBSTITUTED: dict[int, Any] = {}  # (the function, what is captured in its place)

_FORBIDDEN_BY_TORCH = "_dynamo_forbidden"  # attribute of a function that torch's own decorator marked


def is_forbidden(function: Any) -> bool:
    """Whether capturing a call of the function is an error."""
    if id(function) in FORBIDDEN:
        return True
    return type(function) is FunctionType and function.__dict__.get(_FORBIDDEN_BY_TORCH) is True


# Attribute of a function that is not captured although the functions it calls are.
LEFT_OUT_ALONE = "_refimpl_left_out_alone"
CONSTANT_RESULT = "_dynamo_marked_constant"  # attribute of a function
# Attributes of a tensor: sets of dimensions.
DYNAMIC = "_dynamo_dynamic_indices"
WEAKLY_DYNAMIC = "_dynamo_weak_dynamic_indices"
UNBACKED = "_dynamo_unbacked_indices"
STRICTLY_UNBACKED = "_dynamo_strict_unbacked_indices"
STATIC = "_dynamo_static_indices"
RANGES = "_dynamo_dynamic_range"
