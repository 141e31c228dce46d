"""Rules for single functions and classes: what a call of them becomes while a segment is captured.

Counterpart: torch/_dynamo/variables/builtin.py BuiltinVariable._call_function_handlers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState

Rule = Callable[[Any, FrameState, list[Any], dict[str, Any]], Any]
"""Of the domain, the frame that calls, and values of arguments: the value of the result, or a frame to enter."""


class RuleTable(dict[int, Rule]):
    """Rules by the id of what is called: the hash of an object is the user's code."""

    def of(self, *targets: Any) -> Callable[[Rule], Rule]:
        """A decorator: the rule of these functions or classes."""

        def note(rule: Rule) -> Rule:
            self.update(dict.fromkeys(map(id, targets), rule))
            return rule

        return note


def wrong(name: str) -> NoReturn:
    """Breaks the graph before a call with arguments that the function does not take: CPython raises TypeError."""
    raise GraphBreak("op_raises_on_fake", what=name, error="TypeError")
