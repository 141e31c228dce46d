"""Generates the Python function that runs after a segment's graph and rebuilds objects: the result, or the frame at a graph
break.

Counterpart: torch/_dynamo/codegen.py PyCodegen; torch/_dynamo/resume_execution.py
Differs: it is Python source of one function, not bytecode. Frames are data, so a graph break needs no resume function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import set_grad_enabled
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.guards.torch_state import ModesAtTheEnd
from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.state.side_effects import SideEffects, version_of
from refimpl.capture.values import (
    ConstantValue,
    FoundIteratorValue,
    Value,
)
from refimpl.capture.values.classes import maker_of
from refimpl.capture.values.value import DELETED

_LITERALS = (bool, type(None))  # there is one object of each value, as of small integers
_LARGE = 256


class Emitter:
    """Collects the lines of the function. Each value is rebuilt once, however many others refer to it.

    The function takes `out`, the graph's outputs, and `kept`, the objects that were read when the segment was entered.
    """

    def __init__(self) -> None:
        self.outputs: list[fx.Node] = []
        self.sources: list[Source] = []  # sources of `kept`, complete after `settle`
        self._kept_names: dict[Source, str] = {}
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._made: list[Any] = []  # keeps the objects alive whose ids are in `_names`
        self._constants: dict[str, Any] = {}
        self._constant_names: dict[int, str] = {}
        self.frames_made: set[int] = set()  # ids of frames
        self.settled: set[int] = set()  # ids of sets that existed before the segment and have received all its changes
        self.remade = 0  # how many sets were rebuilt as they were at an earlier step

    # ---------------------------------------------------------------------------------------------------------- values

    def expression(self, value: Any) -> str:
        """An expression for a value's object."""
        if value is UNBOUND:
            return self.constant(UNBOUND)
        known = self._names.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Value) and value.source is not None and not isinstance(value, ConstantValue):
            return self.named(value, self.kept(value.source))
        return value.rebuilt(self)

    def listed(self, values: Sequence[Any]) -> str:
        """The expressions of several values, with commas between."""
        return ", ".join(self.expression(value) for value in values)

    def kept(self, source: Source) -> str:
        """The name of an object that is read when the segment is entered."""
        return self._kept_names.setdefault(source, f"k{len(self._kept_names)}")

    def settle(self, inputs: Sequence[Source]) -> None:
        """Fixes the order of `kept`: first the graph's inputs, then the other objects."""
        first = {*inputs}
        self.sources = [*inputs, *(source for source in self._kept_names if source not in first)]

    def output(self, node: fx.Node) -> str:
        """An expression for the output of a node of the graph."""
        if node not in self.outputs:
            self.outputs.append(node)
        return f"out[{self.outputs.index(node)}]"

    def name_of(self, value: Any) -> str | None:
        """The name of a value that is rebuilt already; None for others."""
        return self._names.get(id(value))

    def line(self, text: str) -> None:
        """Adds a line to the function."""
        self._lines.append(text)

    def named(self, value: Any, expression: str) -> str:
        """Assigns the expression to a new name, which stands for the value from now on.

        A tuple that contains a list that contains the tuple is made as a part of the list, and is not made again.
        """
        known = self._names.get(id(value))
        if known is not None:
            return known
        name = self._names[id(value)] = f"v{len(self._names)}"
        self._made.append(value)
        self._lines.append(f"{name} = {expression}")
        return name

    def constant(self, found: Any) -> str:
        """An expression for an object that the segment keeps alive."""
        if type(found) in _LITERALS or (type(found) is int and abs(found) < _LARGE):
            return repr(found)
        if (make := maker_of(found)) is not None:
            return self.named(found, f"{self.constant(make)}()")
        name = self._constant_names.get(id(found))
        if name is None:
            name = self._constant_names[id(found)] = f"c{len(self._constants)}"
            self._constants[name] = found
        return name

    # --------------------------------------------------------------------------------------------------------- effects

    def advance(self, iterators: Sequence[FoundIteratorValue]) -> None:
        """Lines that advance iterators of the program as far as the segment did. They come before the containers are changed."""
        for iterator in iterators:
            if iterator.position or iterator.is_exhausted:
                name = self.expression(iterator)
                self._lines += [f"for _ in range({iterator.position}): next({name})"] if iterator.position else []
                self._lines += [f"next({name}, None)"] if iterator.is_exhausted else []

    def effects(self, log: SideEffects) -> None:
        """Lines that apply the segment's side effects to the program's objects."""
        for value in log.contents():
            changed = value.changed_source
            name = self.expression(value) if changed is None or value.source is not None else self.kept(changed)
            value.write_back(self, name, log)
        for value, attribute, new in log.attributes():
            if new is DELETED:
                self._lines.append(f"delattr({self.expression(value)}, {attribute!r})")
                continue
            self._lines.append(value.attribute_written(self, attribute, self.expression(new)))
        for namespace, variable, new in log.globals():
            self._lines.append(f"{self.constant(namespace)}[{variable!r}] = {self.expression(new)}")

    def later_calls(self, log: SideEffects) -> None:
        """Lines for the calls that were moved behind the graph. Breaks the graph before one whose argument has changed since."""
        for call in log.later_calls:
            if any(version_of(fake) != version for fake, version in call.versions):
                raise GraphBreak(
                    "unsupported_operation", what="a later call, before a write,", kind="tensor"
                ).restarting_at(call.at)
            given = [self.expression(arg) for arg in call.args]
            given += [f"{name}={self.expression(arg)}" for name, arg in call.kwargs.items()]
            self._lines.append(f"{self.expression(call.function)}({', '.join(given)})")

    def modes(self, ends: ModesAtTheEnd) -> None:
        """Sets grad mode and determinism, where the segment ends with other modes than it began with."""
        if ends.grad_mode is not None:
            self._lines.append(f"{self.constant(set_grad_enabled)}({ends.grad_mode})")
        if ends.determinism is not None:
            is_on, only_warns = ends.determinism
            setter = self.constant(torch.use_deterministic_algorithms)  # the program's call, with all that it sets
            self._lines.append(f"{setter}({is_on}, warn_only={only_warns})")

    # ---------------------------------------------------------------------------------------------------------- frames

    def state(self, frames: Sequence[FrameState]) -> str:
        """An expression for the slots and stack of each of the frames that continue after the segment."""
        self.frames_made.update(map(id, frames))
        return ", ".join(f"[{self.listed(frame.slots)}], [{self.listed(frame.stack)}]" for frame in frames)

    def frame(self, frame: FrameState) -> str:
        """An expression for the suspended frame of a generator."""
        self.frames_made.add(id(frame))
        slots = self.listed(frame.slots)
        stack = self.listed(frame.stack)
        code, globals_ = self.constant(frame.code), self.constant(frame.globals)
        made = f"{self.constant(FrameState)}(code={code}, slots=[{slots}], globals={globals_}"
        made += f", builtins={self.constant(frame.builtins)}, stack=[{stack}], offset={frame.offset}"
        return f"{made}, then={self.constant(frame.then)}, is_done={frame.is_done})"

    def function(self, result: str) -> Callable[[Any, Any], Any]:
        """Compiles the function of `out` and `kept` that returns `result`."""
        names = "".join(f"{self._kept_names.get(source, '_')}, " for source in self.sources)
        unpacked = [f"({names}) = kept"] if names else []
        body = "".join(f"    {line}\n" for line in [*unpacked, *self._lines, f"return {result}"])
        source = f"def rebuild(out, kept):\n{body}"
        namespace: dict[str, Any] = dict(self._constants)
        exec(compile(source, "<rebuild of a segment>", "exec"), namespace)
        made = namespace["rebuild"]
        made.source = source
        return made
