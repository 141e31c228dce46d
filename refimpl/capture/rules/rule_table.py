"""Rule tables: for each function or class, the rule that says what a call of it becomes during capture.

Counterpart: torch/_dynamo/variables/builtin.py BuiltinVariable._call_function_handlers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState

Rule = Callable[[Any, FrameState, list[Any], dict[str, Any]], Any]
"""Takes the domain, the calling frame and the values of the arguments; returns the value of the result, or a frame to enter."""


class RuleTable(dict[int, Rule]):
    """Rules, keyed by the id of the callable, because hashing an object may run code of the user's."""

    def of(self, *targets: Any) -> Callable[[Rule], Rule]:
        """A decorator that registers a rule for these functions or classes."""

        def note(rule: Rule) -> Rule:
            self.update(dict.fromkeys(map(id, targets), rule))
            return rule

        return note


def wrong(name: str) -> NoReturn:
    """Breaks the graph before a call whose arguments the function does not accept; CPython then raises TypeError."""
    raise GraphBreak("op_raises_on_fake", what=name, error="TypeError")
