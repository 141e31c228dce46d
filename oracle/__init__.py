"""oracle: run one program on many subjects, observe everything that eager does, judge, and record.

Importing this package is cheap: torch is loaded on first use of `check` or `assert_agrees`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oracle.checking import assert_agrees, check

__all__ = ["assert_agrees", "check"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("oracle.checking"), name)
    raise AttributeError(f"module 'oracle' has no attribute {name!r}; it has {', '.join(__all__)}")
