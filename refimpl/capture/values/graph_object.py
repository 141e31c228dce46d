"""Objects that operators take: script objects (torchbind) and objects of classes registered as opaque.

A script object, and an opaque object of a reference type, is an input of the graph, and a fake stands for it during capture. An
opaque object of a value type is a literal of the graph. A method of a script object is called by `call_torchbind`, if the class
has a registered fake.

Counterpart: torch/_dynamo/variables/script_object.py TorchScriptObjectVariable
Differs: members of opaque objects that are not registered are read like those of any object, with guards on what they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import call_torchbind, fake_object, has_traced_method, is_opaque_literal
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.function import PartialValue
from refimpl.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


class GraphObjectValue(ObjectValue):
    """A script object or an opaque object."""

    __slots__ = ("_fake", "_node")

    def __init__(self, object_: Any, source: Source | None = None) -> None:
        super().__init__(object_, source)
        self._fake: Any = None
        self._node: Any = None

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        given: Any = self.object
        if not isinstance(given, torch.ScriptObject):
            return super().load_attr(domain, name)
        if not has_traced_method(given, name):
            raise GraphBreak("attribute_of_script_object", what=name, kind=str(given._type().qualified_name()))
        return PartialValue(ObjectValue(call_torchbind), [self, ConstantValue(name)], {})

    def as_fake(self, state: Any, what: str) -> Any:
        if is_opaque_literal(self.object):
            return self.object
        if self._fake is None:
            self._fake = fake_object(state.fake_mode, self.object)
        return self._fake

    def as_argument(self, state: Any) -> Any:
        if is_opaque_literal(self.object):
            return self.object
        if self._node is None:
            if self.source is None:
                raise GraphBreak("not_a_graph_argument", what=f"{self.kind} that was made in the graph")
            self._node = state.graph.input(self.source, self.as_fake(state, ""), self.object)
        return self._node
