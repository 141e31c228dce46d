"""oracle: run one program on many subjects, observe everything that eager does, judge, and record.

Importing this package is cheap: torch is loaded on first use of a function.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oracle.checking import assert_agrees, check
    from oracle.localising import localise
    from oracle.watching import watch

__all__ = ["assert_agrees", "check", "localise", "watch"]
_MODULES = {
    "assert_agrees": "oracle.checking",
    "check": "oracle.checking",
    "localise": "oracle.localising",
    "watch": "oracle.watching",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'oracle' has no attribute {name!r}; it has {', '.join(__all__)}")
