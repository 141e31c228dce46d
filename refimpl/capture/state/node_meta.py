"""Names and metadata of graph nodes that come from the program: variable, stack trace, module stack, called function.

Counterpart: torch/_dynamo/output_graph.py SubgraphTracer.create_proxy
Differs: during capture a node's codes and lines are noted; their text is made once, when the graph is finished.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import fx

from refimpl.capture.guards.sources import ItemSource, SlotSource, Source
from refimpl.capture.guards.static_shapes import is_of_module
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.values import ArrayValue, LazyValue, ObjectValue, TensorValue, Value
from refimpl.capture.values.polyfills import is_polyfill
from refimpl.trace.metadata import notes_of

_CALLS_MODULES = (
    "refimpl.capture.entry_points.contexts"  # defines the functions that call modules, with `*args, **kwargs`
)
_OPERATORS = str(Path(torch.__file__).parent / "_higher_order_ops")  # functions of torch around its operators


class _Module(NamedTuple):
    name: str  # of the module's source
    kind: type
    call: int  # the number of this call, among calls of the module


class _Place(NamedTuple):
    code: CodeType
    line: int
    module: _Module | None  # if the frame is a module's `forward`


class NodeMeta:
    """Positions of the nodes of one graph, the text made of them, and the variables that nodes are named after."""

    def __init__(self) -> None:
        self.frames: Sequence[FrameState] = ()  # of the running machine, lowest first
        self.body_names: set[str] = (
            set()
        )  # of functions of higher-order operators: each name is used once in all nested graphs
        self._places: dict[fx.Node, tuple[_Place, ...]] = {}
        self._made_as: dict[fx.Node, str] = {}  # the first names of the nodes that have another now
        self._named = set[Value]()  # what variables have held
        self._calls: dict[str, list[FrameState]] = {}  # frames of `forward`, by the name of the module's source

    def note(self, node: fx.Node) -> None:
        """Notes the current instruction of each frame for the node."""
        self._places[node] = tuple(
            _Place(frame.code.code, frame.line(), self._module_of(frame))
            for frame in self.frames
            if not is_polyfill(frame.code.code) and not frame.code.code.co_filename.startswith(_OPERATORS)
        )

    def name(self, value: TensorValue | ArrayValue, frame: FrameState, slot: int) -> None:
        """Names the node of a tensor after the variable that holds it, unless it is an input or a variable has held it before."""
        node = value.node
        if value in self._named or is_polyfill(frame.code.code):
            return
        self._named.add(value)
        if node.op != "placeholder":
            self._made_as.setdefault(node, node.name)
            variable = frame.code.slots[slot]
            node._rename("self_" if variable == "self" else variable)  # in the code of a graph `self` is its module

    def name_of_input(self, source: Source) -> str:
        """The name of a source in a graph: that of `forward`'s parameter for an argument of the function around a module."""
        argument = next((way for way in source.way() if isinstance(way, ItemSource)), None)
        frame = self.frames[0] if self.frames else None
        if argument is None or frame is None or frame.globals.get("__name__") != _CALLS_MODULES:
            return source.name
        module, given = frame.slots[0], argument.of
        if not isinstance(given, SlotSource) or given.frame or not isinstance(module, (ObjectValue, LazyValue)):
            return source.name
        known = _parameter_of(module.object, argument.key)
        return source.name if known is None else f"L{known}{source.name.removeprefix(argument.name)}"

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
            if node.op != "get_attr":
                node.meta["source_fn_stack"] = [(self._made_as.get(node, node.name), node.target)]
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
        self._named.clear()

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


def _parameter_of(module: Any, key: Any) -> str | None:
    """The parameter of a module's `forward` that gets an argument, which is given by its position or name."""
    forward = getattr(type(module), "forward", None)
    if not isinstance(forward, FunctionType) or "forward" in module.__dict__:
        return None
    code = forward.__code__
    names, by_name = code.co_varnames[1 : code.co_argcount], code.co_argcount + code.co_kwonlyargcount
    if isinstance(key, str):
        return f"['{key}']" if key in code.co_varnames[1:by_name] else None
    if key < len(names):
        return f"['{names[key]}']"
    return f"['{code.co_varnames[by_name]}'][{key - len(names)}]" if code.co_flags & inspect.CO_VARARGS else None


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
