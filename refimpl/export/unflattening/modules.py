"""The modules of an unflattened program: each runs a graph, and is called like the module that the graph was traced from.

Counterpart: torch/export/unflatten.py InterpreterModule, InterpreterModuleDispatcher, FlatArgsAdapter
Differs: a module's graph is compiled to Python; `finalize` compiles it again. Further graphs of a module are separate modules
that share the state of the first, which is in state dicts once.
"""

from __future__ import annotations

import itertools
import linecache
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import pytree
from refimpl.export.errors import StructureMismatch

_numbers = itertools.count()


def flatten_as(value: Any, spec: pytree.TreeSpec) -> list[Any]:
    """The leaves of a value with this spec. Raises StructureMismatch for another spec."""
    leaves, received = pytree.tree_flatten(value)
    if received != spec:
        raise StructureMismatch(received, spec)
    return leaves


def unflatten_as(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Any:
    """The leaves in the containers of `spec`."""
    return pytree.tree_unflatten(list(leaves), spec)


class FlatArgsAdapter(ABC):
    """Converts inputs in other containers to those that a program was exported with."""

    @abstractmethod
    def adapt(
        self,
        target_spec: pytree.TreeSpec,
        input_spec: pytree.TreeSpec,
        input_args: list[Any],
        metadata: dict[str, Any] | None = None,
        obj: Any = None,
    ) -> list[Any]:
        """Convert `input_args`, the leaves of a call's (args, kwargs) with `input_spec`, to the leaves for `target_spec`.

        metadata: the meta of the called module. obj: the module. An adapter need not have these two parameters.
        """

    def get_flat_arg_paths(self) -> list[str]:
        """Names of the inputs that the adapter uses, for information."""
        return []


class PrintableModule(torch.nn.Module):
    """A module with a graph, whose code can be printed. ty: the class name of the module that was exported."""

    graph: fx.Graph

    def __init__(self, ty: str | None = None) -> None:
        super().__init__()
        self._ty = ty

    def type_name(self) -> str | None:
        """The class name of the exported module."""
        return self._ty

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
    ) -> str:
        """The code of this module and of its children that have a graph."""
        verbose = self.graph.python_code(
            "self", verbose=True, include_stride=include_stride, include_device=include_device, colored=colored
        ).src
        parts = [f"class {self.type_name() or type(self).__name__}(torch.nn.Module):\n{_indented(verbose)}"]
        children: Any = self._modules.values()
        for child in children:
            if hasattr(child, "print_readable"):
                parts.append(_indented(child.print_readable(print_output=False)))
        text = "\n".join(parts)
        if print_output:
            print(text)
        return text


class InterpreterModule(PrintableModule):
    """Runs `graph` on its own parameters, buffers and children.

    graph: its placeholders are the arguments of `forward`. ty: the class name of the module it was traced from.
    """

    def __init__(self, graph: fx.Graph, ty: str | None = None) -> None:
        super().__init__(ty)
        self.graph = graph
        self.finalize()

    def finalize(self) -> None:
        """Compile `graph`. Call it again after a change of the graph."""
        self.forward = types.MethodType(compiled(self.graph), self)


class SameStateModule(InterpreterModule):
    """Another graph of the module `like`: reads its parameters, buffers, children and constants."""

    def __init__(self, graph: fx.Graph, like: InterpreterModule) -> None:
        super().__init__(graph, like.type_name())
        self.__dict__["_like"] = like  # not registered as a child: state dicts have the state once

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_like" not in self.__dict__:
                raise
            return getattr(self.__dict__["_like"], name)


class InterpreterModuleDispatcher(torch.nn.Module):
    """A module with several graphs: its n-th call in a run of the program runs the n-th graph.

    call_modules: one for every call. All share the state of the first, as does the dispatcher.
    """

    def __init__(self, call_modules: Sequence[InterpreterModule]) -> None:
        super().__init__()
        self.__dict__["_call_modules"] = list(call_modules)
        share_state(self, call_modules[0])
        self._next = 0

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_call_modules" not in self.__dict__:
                raise
            return getattr(self.call_modules[0], name)  # constants

    @property
    def call_modules(self) -> list[InterpreterModule]:
        """The modules in the order of the calls."""
        return self.__dict__["_call_modules"]

    def restart(self) -> None:
        """Let the next call run the first graph."""
        self._next = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        at = self._next
        self._next += 1
        return self.call_modules[at % len(self.call_modules)](*args, **kwargs)

    def type_name(self) -> str | None:
        """The class name of the exported module."""
        return self.call_modules[0].type_name()

    def print_readable(self, print_output: bool = True, **options: bool) -> str:
        """The code of all graphs."""
        text = "\n".join(module.print_readable(print_output=False, **options) for module in self.call_modules)
        if print_output:
            print(text)
        return text


def share_state(module: torch.nn.Module, like: torch.nn.Module) -> None:
    """Let `module` share the parameters, buffers and children of `like`, and their later changes."""
    for name in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
        module.__dict__[name] = like.__dict__[name]


def compiled(graph: fx.Graph) -> Callable[..., Any]:
    """Compile the graph to a function of (module, *placeholders). Tracebacks show its source."""
    code = graph.python_code("self")
    name = f"<exported module {next(_numbers)}>"
    namespace = dict(code.globals)
    exec(compile(code.src, name, "exec"), namespace)
    linecache.cache[name] = (len(code.src), None, code.src.splitlines(keepends=True), name)
    return namespace["forward"]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else line for line in text.splitlines())
