"""The parts of torch.export that can be left out: how it captures, inputs that share memory, constants, overloads in the graph.

Each is replaced by another way to the same program. Example inputs that share memory become copies that do not. A constant that
is the module's state becomes that state. A node that calls an overload calls the function of Python's torch with its name, as the
program does. A program captured by Dynamo is captured without it, and the other way round.

Counterpart: torch/export/_trace.py
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from oracle.localisation.capture_parts import replaced
from oracle.program.clone import clone_tree
from oracle.subjects.export import Export

INPUTS = "example inputs that share memory"
CONSTANTS = "constants in place of state"
STRICT = "capture by Dynamo"
NOT_STRICT = "capture without Dynamo"
EXPORT = (INPUTS, CONSTANTS, STRICT, NOT_STRICT)


@dataclass(slots=True, kw_only=True)
class SeenInExport:
    """Parts of an export that a culprit may be among."""

    shares_memory: bool = False  # some example inputs do
    constants: dict[str, None] = field(default_factory=dict)  # those that are state, in words
    operators: dict[str, None] = field(
        default_factory=dict
    )  # overloads in the graphs that also have a function in Python


@contextlib.contextmanager
def exporting(
    seen: SeenInExport,
    left_out: frozenset[str] = frozenset(),
    by_function: Callable[[Any], bool] = lambda overload: False,
) -> Iterator[None]:
    """A context that records what torch.export does, without these of EXPORT.

    Nodes that call an overload for which `by_function` holds call Python's function instead.
    """
    original = Export.export

    @functools.wraps(original)
    def export(self: Export, module: torch.nn.Module, args: Any, kwargs: Any, **options: Any) -> ExportedProgram:
        seen.shares_memory |= _shares_memory((args, kwargs))
        if INPUTS in left_out:
            args, kwargs = pytree.tree_map_only(torch.Tensor, clone_tree, (args, kwargs))
        if (STRICT if options.get("strict", True) else NOT_STRICT) in left_out:
            options["strict"] = not options.get("strict", True)
        program = original(self, module, args, kwargs, **options)
        state = _state_among_constants(program, module)
        seen.constants.update({f"{spec.target} is {kind.name.lower()} {name}": None for spec, kind, name in state})
        for spec, kind, name in state if CONSTANTS in left_out else ():
            spec.kind, spec.target = kind, name
            spec.persistent = True if kind is InputKind.BUFFER else None
        _call_functions(program.graph_module, seen.operators, by_function)
        return program

    with replaced(Export, "export", export):
        yield


def _shares_memory(inputs: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
    return len({tensor.untyped_storage()._cdata for tensor in strided}) < len(strided)


def _state_among_constants(program: ExportedProgram, module: torch.nn.Module) -> list[tuple[InputSpec, InputKind, str]]:
    """The inputs of the graph that are said to be constants, and are a parameter or buffer of the module; which one that is.

    A constant that is a fake tensor has no memory. It is the only state with its dtype, shape and strides, or is left out.
    """
    named = [
        *((InputKind.PARAMETER, name, parameter) for name, parameter in module.named_parameters()),
        *((InputKind.BUFFER, name, buffer) for name, buffer in module.named_buffers()),
    ]
    # The program has no place for a buffer that is not persistent, other than among its constants.
    state = [(kind, name, tensor) for kind, name, tensor in named if name in program.state_dict]
    found = []
    for spec in program.graph_signature.input_specs:
        constant = program.constants.get(spec.target or "")
        if spec.kind is InputKind.CONSTANT_TENSOR and isinstance(constant, torch.Tensor):
            alike = [(kind, name) for kind, name, tensor in state if _are_alike(constant, tensor)]
            found += [(spec, *alike[0])] if len(alike) == 1 else []
    return found


def _are_alike(constant: torch.Tensor, tensor: torch.Tensor) -> bool:
    if constant.layout is not torch.strided or tensor.layout is not torch.strided:
        return False
    layouts = [(one.dtype, one.device, tuple(one.shape), one.stride()) for one in (constant, tensor)]
    is_same_memory = isinstance(constant, FakeTensor) or constant.data_ptr() == tensor.data_ptr()
    return layouts[0] == layouts[1] and is_same_memory


def _call_functions(module: GraphModule, seen: dict[str, None], by_function: Callable[[Any], bool]) -> None:
    """Let nodes call Python's functions, in this graph and in those in it."""
    for node in module.graph.nodes:
        function = _function_of(node.target) if node.op == "call_function" else None
        if function is None:
            continue
        seen[str(node.target)] = None
        if by_function(node.target):
            node.target = function
    module.recompile()
    for child in module.children():
        if isinstance(child, GraphModule):
            _call_functions(child, seen, by_function)


def _function_of(overload: Any) -> Callable[..., Any] | None:
    """The function of torch, or the method of a tensor, with the name of an aten operator."""
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
        return None
    name = overload.overloadpacket.__name__
    owners: Mapping[str, Any] = vars(torch)
    return owners.get(name) or getattr(torch.Tensor, name, None)
