"""Place: where a graph's node comes from, as a user names it: module path, source line, operator."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from oracle.program.build import Instance

# One frame of the text that Dynamo keeps with a node. The source line is missing if Python does not have it.
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<number>\d+), in .*\n(?:    (?P<text>.*)\n)?', re.MULTILINE)
_PROGRAM = re.compile(r"^<program (?P<name>.*)>$")  # how oracle.program.build names the file of a program's source
_ROOT = re.compile(r"^[LG]\['(?P<name>\w+)'\]\.?")  # how Dynamo writes a local or global variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place where an operator is called. Unknown texts are ""."""

    module: str  # "encoder.layers.3.norm2"; "" in a function, and in the forward of the whole model
    source: str  # "model.py:41", the innermost line of the user's code
    line: str  # the text of that line
    operator: str  # "layer_norm"


def place_of(node: fx.Node, *, names: Mapping[int, str], inside: str) -> Place:
    """The place of a node of a graph that Dynamo captured.

    `names` has the path of every module by its `id`. `inside` is the module whose code runs the graph.
    """
    source, line = _source_of(str(node.meta.get("stack_trace") or ""))
    stack = node.meta.get("nn_module_stack") or {}
    key, (text, _) = list(stack.items())[-1] if stack else ("", ("", None))
    number = str(key).partition("@")[0]  # "140270111144336@1" in the second call of a module
    module = names.get(int(number)) if number.isdigit() else None
    if module is None:
        module = _ROOT.sub(lambda found: "" if found["name"] == "self" else f"{found['name']}.", text).rstrip(".")
    return Place(module=module if stack else inside, source=source, line=line, operator=operator_of(node))


def operator_of(node: fx.Node) -> str:
    """The name of the operator that a node calls: "layer_norm", "add", "T"."""
    target: Any = node.target
    if isinstance(target, str):  # a method
        return target
    if target is getattr:  # `x.T` and other attributes
        return str(node.args[1])
    if isinstance(target, torch._ops.OpOverload):
        return target._opname
    return str(getattr(target, "__name__", target))


def module_names(instance: Instance) -> dict[int, str]:
    """The path of every module that the program has, by `id`. Modules in globals begin with the name of the variable."""
    return {id(module): path for prefix, root in _roots(instance) for path, module in root.named_modules(prefix=prefix)}


def state_names(instance: Instance) -> dict[int, str]:
    """The path of every parameter and buffer of these modules, by `id`."""
    return {
        id(tensor): path
        for prefix, root in _roots(instance)
        for path, tensor in (*root.named_parameters(prefix=prefix), *root.named_buffers(prefix=prefix))
    }


def input_name(node: str) -> str:
    """The variable that an input of a graph is: "tokens" for Dynamo's "l_tokens_"."""
    return re.sub(r"^[lg]_(\w+)_$", r"\1", node)


def _roots(instance: Instance) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, value in (*instance.namespace.items(), ("", instance.target)):
        if isinstance(value, torch.nn.Module):
            yield name, value


def module_that_calls(frames: Iterator[Mapping[str, Any]], names: Mapping[int, str]) -> str:
    """The path of the module whose method is the innermost of these frames, given by their local variables."""
    return next((names[id(found)] for local in frames if id(found := local.get("self")) in names), "")


def _source_of(trace: str) -> tuple[str, str]:
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return "", ""
    last = frames[-1]
    found = _PROGRAM.match(last["file"])
    name = found["name"] if found is not None else os.path.basename(last["file"])
    return f"{name}:{last['number']}", (last["text"] or "").strip()
