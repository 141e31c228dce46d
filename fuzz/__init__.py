"""fuzz: draws random programs, finds those that a compiler gets wrong, reduces them, and counts each bug once.

This module exports strategies for your own property tests (`programs`, `tensors`, `op_calls`, `assert_agrees`,
`register_profiles`). The grammar is in `fuzz.vocabulary.statements` and `fuzz.vocabulary.operators`; `torch-oracle fuzz` runs
campaigns. The package may import `results` and `oracle`, and only `suites` imports it. Importing it is cheap: torch is loaded on
first use of a name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.properties import OpExample, assert_agrees, op_calls, programs, register_profiles, tensors

__all__ = ["OpExample", "assert_agrees", "op_calls", "programs", "register_profiles", "tensors"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("fuzz.properties"), name)
    raise AttributeError(f"module 'fuzz' has no attribute {name!r}; it has {', '.join(__all__)}")
