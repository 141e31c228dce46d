"""What the nodes of a captured graph say of the program: its lines, the modules that ran, the functions that were called.

Counterpart: torch/_dynamo/output_graph.py SubgraphTracer.create_proxy
Differs: what a node needs is noted as frames' codes and lines; text is made once, when the graph is finished.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

import torch
from torch import fx

from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public.static_shapes import is_of_module
from refimpl.capture.symbolic.polyfills import is_polyfill
from refimpl.capture.symbolic.values import ObjectValue, UnreadValue


class _Place(NamedTuple):
    code: CodeType
    line: int
    module: tuple[str, type] | None  # the name of its source, and its class, where the frame is its `forward`


class NodeMeta:
    """Notes and texts for the nodes of one graph."""

    def __init__(self) -> None:
        self.frames: Sequence[FrameState] = ()  # of the machine that runs, lowest first
        self._places: dict[fx.Node, tuple[_Place, ...]] = {}

    def note(self, node: fx.Node) -> None:
        """The node is made by the instructions that the frames are at."""
        self._places[node] = tuple(
            _Place(frame.code.code, frame.line(), _module_of(frame))
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
                node.meta["nn_module_stack"] = {_key(name): (_plain(name), class_) for name, class_ in modules}
            node.meta["source_fn_stack"] = [(node.name, node.target)]
        for node in graph.nodes:
            source = node.meta.get("source")
            if node.op == "placeholder" and source is not None and is_of_module(source):
                stacks = (user.meta.get("nn_module_stack") for user in node.users)  # in which it is read
                found = next(filter(None, stacks), None)
                if found is not None:
                    node.meta["nn_module_stack"] = dict(found)


def _module_of(frame: FrameState) -> tuple[str, type] | None:
    code = frame.code.code
    if not code.co_argcount or code.co_name != "forward":
        return None
    found = frame.slots[0]
    if type(found) not in (ObjectValue, UnreadValue) or not issubclass(type(found.object), torch.nn.Module):
        return None
    source = found.way if type(found) is UnreadValue else found.source
    return None if source is None else (source.name, type(found.object))


def _text(place: _Place, texts: dict[tuple[CodeType, int], str]) -> str:
    key = (place.code, place.line)
    if key not in texts:
        file = place.code.co_filename
        line = linecache.getline(file, place.line).strip()
        texts[key] = f'  File "{file}", line {place.line}, in {place.code.co_name}\n' + (
            f"    {line}\n" if line else ""
        )
    return texts[key]


def _key(name: str) -> str:
    """`L['self']._modules['lin']` -> `L__self___lin`."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r"\._modules\['(\w+)'\]", r".\1", name)).replace(
        "L__self___", "L__self__"
    )


def _plain(name: str) -> str:
    """`L['self']._modules['lin']` -> `L['self'].lin`."""
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", name)
