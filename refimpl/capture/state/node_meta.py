"""Metadata of graph nodes about the program: stack trace, module stack, called function.

Counterpart: torch/_dynamo/output_graph.py SubgraphTracer.create_proxy
Differs: during capture a node's codes and lines are noted; their text is made once, when the graph is finished.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

import torch
from torch import fx

from refimpl.capture.guards.static_shapes import is_of_module
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.values import LazyValue, ObjectValue
from refimpl.capture.values.polyfills import is_polyfill
from refimpl.trace.metadata import notes_of


class _Module(NamedTuple):
    name: str  # of the module's source
    kind: type
    call: int  # the number of this call, among calls of the module


class _Place(NamedTuple):
    code: CodeType
    line: int
    module: _Module | None  # if the frame is a module's `forward`


class NodeMeta:
    """Positions of the nodes of one graph, and the text made of them."""

    def __init__(self) -> None:
        self.frames: Sequence[FrameState] = ()  # of the running machine, lowest first
        self.body_names: set[str] = (
            set()
        )  # of functions of higher-order operators: each name is used once in all nested graphs
        self._places: dict[fx.Node, tuple[_Place, ...]] = {}
        self._calls: dict[str, list[FrameState]] = {}  # frames of `forward`, by the name of the module's source

    def note(self, node: fx.Node) -> None:
        """Notes the current instruction of each frame for the node."""
        self._places[node] = tuple(
            _Place(frame.code.code, frame.line(), self._module_of(frame))
            for frame in self.frames
            if not is_polyfill(frame.code.code)
        )

    def describe(self, graph: fx.Graph) -> None:
        """Writes `stack_trace`, `nn_module_stack` and `source_fn_stack` into the nodes."""
        texts: dict[tuple[CodeType, int], str] = {}
        for node in graph.nodes:
            places = self._places.get(node)
            if places is None:
                continue
            node.meta["stack_trace"] = "".join(_text(place, texts) for place in places)
            modules = [place.module for place in places if place.module is not None]
            if modules:
                node.meta["nn_module_stack"] = {_key(each): (_plain(each.name), each.kind) for each in modules}
            node.meta["source_fn_stack"] = [(node.name, node.target)]
        for node in graph.nodes:
            source = notes_of(node).source
            if node.op == "placeholder" and source is not None and is_of_module(source):
                stacks = (user.meta.get("nn_module_stack") for user in node.users)  # of the nodes that read it
                found = next(filter(None, stacks), None)
                if found is not None:
                    node.meta["nn_module_stack"] = dict(found)

    def release(self) -> None:
        """Releases the frames."""
        self.frames = ()
        self._calls.clear()

    def _module_of(self, frame: FrameState) -> _Module | None:
        code = frame.code.code
        if not code.co_argcount or code.co_name != "forward":
            return None
        found = frame.slots[0]
        if type(found) not in (ObjectValue, LazyValue) or not issubclass(type(found.object), torch.nn.Module):
            return None
        source = found.source
        if source is None:
            return None
        calls = self._calls.setdefault(source.name, [])
        number = next((n for n in reversed(range(len(calls))) if calls[n] is frame), len(calls))
        if number == len(calls):
            calls.append(frame)
        return _Module(source.name, type(found.object), number)


def _text(place: _Place, texts: dict[tuple[CodeType, int], str]) -> str:
    key = (place.code, place.line)
    if key not in texts:
        file = place.code.co_filename
        line = linecache.getline(file, place.line).strip()
        texts[key] = f'  File "{file}", line {place.line}, in {place.code.co_name}\n' + (
            f"    {line}\n" if line else ""
        )
    return texts[key]


def _key(module: _Module) -> str:
    """`L['self']._modules['lin']` -> `L__self___lin`; for its second call `L__self___lin@1`."""
    key = re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r"\._modules\['(\w+)'\]", r".\1", module.name)).replace(
        "L__self___", "L__self__"
    )
    return f"{key}@{module.call}" if module.call else key


def _plain(name: str) -> str:
    """`L['self']._modules['lin']` -> `L['self'].lin`."""
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", name)
