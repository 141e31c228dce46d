"""fuzz: random programs that a compiler may get wrong, and what is done with those it does.

The public strategies for property tests of one's own backend are here (`programs`, `tensors`, `op_calls`, `assert_agrees`,
`register_profiles`); the grammar is in `fuzz.vocabulary.statements` and `fuzz.vocabulary.operators`, campaigns are
`torch-oracle fuzz`. The package may import `results` and `oracle`, and nothing imports it but `suites`. Importing it is cheap:
torch is loaded on first use of a name.
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
