"""TS2EPConverter: a scripted or traced module, or function, as an exported program.

Counterpart: torch/_export/converter.py TS2EPConverter; _process_jit_trace_inputs_for_export, _WrapperModule, patch_forward,
_convert_ts_to_export_experimental of torch/export/_trace.py
Differs: a module runs the script and is exported like any other, which decides what is state, a constant or an update.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from refimpl._torch import is_opaque_object, wrap_script_module
from refimpl.export.entry_points import export
from refimpl.export.errors import invalid_input
from refimpl.export.exported_program import ExportedProgram
from refimpl.export.shapes.dims import Dim
from refimpl.export.shapes.policies import map_arguments, signature_of
from refimpl.export.torchscript.interpreter import ScriptInterpreterState, unknown_nodes
from refimpl.export.torchscript.values import ModulePath


class TS2EPConverter:
    """Converts one script. `convert()` gives the program; `explain()` says what of the script is not known."""

    def __init__(
        self, ts_model: Any, sample_args: tuple[Any, ...], sample_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """ts_model: a ScriptModule, a ScriptFunction or a method of a ScriptModule. Raises UserError for anything else."""
        self._module = scripted_module(ts_model)
        self.sample_args, self.sample_kwargs = process_inputs(sample_args, sample_kwargs)

    def convert(self, *, dynamic_shapes: Any = None) -> ExportedProgram:
        """The program, as `refimpl.export.export` gives it. Raises what that raises; UnsupportedByRefimpl with the line of the
        script for what is not known; ScriptRaised for what it raises itself.

        dynamic_shapes: by default every size may vary as far as the script allows, as it may for the script.
        """
        if dynamic_shapes is None:
            given = signature_of(self._module).bind(*self.sample_args, **self.sample_kwargs).arguments
            dynamic_shapes = {name: map_arguments(_any_sizes, value) for name, value in given.items()}
        return export(self._module, self.sample_args, self.sample_kwargs, dynamic_shapes=dynamic_shapes)

    def explain(self, print_output: bool = True) -> str:
        """What of the script cannot be converted, one line each. Nothing is run."""
        problems = [f"{node.kind()}: {_place(node)}" for node in unknown_nodes(self._module.script_graph)]
        text = "\n".join(problems) if problems else "Success: everything in the script can be converted."
        if print_output:
            print(text)
        return text


def _any_sizes(value: Any) -> list[Any] | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return None
    return [Dim.AUTO] * value.dim()


class _ScriptRunner(torch.nn.Module):
    """State of a script under its names, and a forward that runs its graph. The class of each has the signature of its script."""

    script_graph: Any

    def __init__(self, graph: Any, owner: torch.nn.Module | None) -> None:
        super().__init__()
        self.script_graph = graph
        self._owner = [owner]  # in a list: it is no submodule
        if owner is None:
            return
        parameters: dict[Any, torch.nn.Parameter] = {}
        for name, value in owner.named_parameters(remove_duplicate=False):
            parameter = parameters.setdefault(_place_in_memory(value), _parameter(value))
            _put(self, name, lambda place, last, value=parameter: place.register_parameter(last, value))
        saved = owner.state_dict().keys()
        for name, buffer in owner.named_buffers(remove_duplicate=False):
            _put(
                self, name, lambda place, last, n=name, b=buffer: place.register_buffer(last, b, persistent=n in saved)
            )
        for path in _attribute_paths(graph):
            value = _attribute(owner, path)
            if isinstance(value, torch.Tensor) or is_opaque_object(value):
                _put(self, path, lambda place, last, v=value: None if hasattr(place, last) else setattr(place, last, v))
        self.train(owner.training)

    def run_script(self, values: list[Any]) -> Any:
        """The graph on (itself, *values) where it is a module's."""
        state = _CallState(self, self._owner[0])
        first = [ModulePath("")] if self._owner[0] is not None else []
        return ScriptInterpreterState(self.script_graph, state).run([*first, *values])


def _place_in_memory(value: torch.Tensor) -> Any:
    """The same for two that are one: scripts hand out a new object for a parameter every time."""
    if not value.numel() or value.layout is not torch.strided:
        return id(value)
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def _parameter(value: torch.Tensor) -> torch.nn.Parameter:
    """Scripts that were loaded have tensors for parameters."""
    if isinstance(value, torch.nn.Parameter):
        return value
    return torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad)


class _CallState:
    """Attributes as a script reads and writes them. What is no buffer keeps its new value for one call."""

    def __init__(self, runner: torch.nn.Module, owner: torch.nn.Module | None) -> None:
        self._runner, self._owner = runner, owner
        self._written: dict[str, Any] = {}

    def read(self, path: str) -> Any:
        if path in self._written:
            return self._written[path]
        try:
            return _attribute(self._runner, path)
        except AttributeError:
            assert self._owner is not None
            return _attribute(self._owner, path)

    def write(self, path: str, value: Any) -> None:
        owner, _, name = path.rpartition(".")
        module = self._runner.get_submodule(owner) if _has_module(self._runner, owner) else None
        if module is not None and name in module._buffers:
            setattr(module, name, value)
            return
        before = None if module is None else module.__dict__.get(name)
        if isinstance(before, torch.Tensor) and isinstance(value, torch.Tensor) and before.shape == value.shape:
            before.copy_(value)  # a constant that the script writes to: refused by what makes the program functional
            return
        self._written[path] = value
        warnings.warn(
            f"the script assigns to {path}, which is no buffer: the exported program starts every call from its value now",
            stacklevel=2,
        )


def scripted_module(script: Any) -> _ScriptRunner:
    """A module that runs the script, with its signature. Raises UserError for what is no script."""
    owner: torch.nn.Module | None = None
    if isinstance(script, torch.jit.ScriptModule):
        method: Any = script.forward
        owner, graph = script, script.inlined_graph
    elif isinstance(script, (torch.jit.ScriptFunction, torch.ScriptMethod)):
        method = script
        graph = method.inlined_graph
        owner = wrap_script_module(script.owner) if isinstance(script, torch.ScriptMethod) else None
    else:
        raise invalid_input(
            f"{type(script).__name__} is no script\n  expected: what torch.jit.script, torch.jit.trace or torch.jit.load give\n"
            "  what to do: export a module of Python's with refimpl.export.export"
        )
    signature = _signature(method.schema, skips_self=owner is not None)

    def forward(self: _ScriptRunner, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        return self.run_script(list(bound.arguments.values())[1:])

    forward.__signature__ = signature
    name = re.sub(r"\W", "", str(getattr(script, "original_name", None) or getattr(method, "name", None) or "Script"))
    kind = type(name or "Script", (_ScriptRunner,), {"forward": forward})
    return kind(graph, owner)


def _signature(schema: Any, *, skips_self: bool) -> inspect.Signature:
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for argument in schema.arguments[1 if skips_self else 0 :]:
        kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        parameters.append(inspect.Parameter(argument.name, kind, default=default))
    return inspect.Signature(parameters)


def process_inputs(args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as `torch.jit.trace` takes them: what is no tuple or list is one argument."""
    if isinstance(args, list):
        args = tuple(args)
    elif not isinstance(args, tuple):
        args = (args,)
    return args, dict(kwargs or {})


@contextlib.contextmanager
def patch_forward(obj: torch.nn.Module, new_method: Callable[..., Any]) -> Iterator[None]:
    """Within it the module's forward is another method. Put back whatever happens."""
    module: Any = obj
    had, before = "forward" in obj.__dict__, obj.__dict__.get("forward")
    module.forward = new_method
    try:
        yield
    finally:
        del module.forward
        if had:
            module.forward = before


def convert_script(script: Any, args: Any, kwargs: Mapping[str, Any] | None = None) -> torch.nn.Module:
    """The exported module of a script, or of a callable: a method of a module stands for its forward."""
    args, kwargs = process_inputs(args, kwargs)
    owner = getattr(script, "__self__", None)
    if isinstance(script, torch.nn.Module) and not isinstance(script, torch.jit.ScriptModule):
        return export(script, args, kwargs).module()
    if isinstance(owner, torch.nn.Module) and not isinstance(owner, torch.jit.ScriptModule):
        with patch_forward(owner, script):
            return export(owner, args, kwargs).module()
    if inspect.isfunction(script):
        calling = type("Calling", (torch.nn.Module,), {"forward": staticmethod(script)})
        return export(calling(), args, kwargs).module()
    return TS2EPConverter(script, args, kwargs).convert().module()


def _put(root: torch.nn.Module, path: str, place: Callable[[torch.nn.Module, str], None]) -> None:
    owner, _, last = path.rpartition(".")
    for part in owner.split(".") if owner else ():
        if part not in root._modules:
            root.add_module(part, torch.nn.Module())
        root = getattr(root, part)
    place(root, last)


def _attribute(root: torch.nn.Module, path: str) -> Any:
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _has_module(root: torch.nn.Module, path: str) -> bool:
    try:
        root.get_submodule(path)
    except AttributeError:
        return False
    return True


def _attribute_paths(graph: Any) -> list[str]:
    """Full names of attributes that the graph reads, submodules left out."""
    modules: dict[str, str] = {}
    found: dict[str, None] = {}
    inputs = list(graph.inputs())
    if inputs:
        modules[inputs[0].debugName()] = ""

    def look(block: Any) -> None:
        for node in block.nodes():
            if node.kind() == "prim::GetAttr" and node.input().debugName() in modules:
                owner = modules[node.input().debugName()]
                path = f"{owner}.{node.s('name')}" if owner else node.s("name")
                modules[node.output().debugName()] = path
                found[path] = None
            for inner in node.blocks():
                look(inner)

    look(graph)
    return list(found)


def _place(node: Any) -> str:
    return " ".join(str(node.sourceRange()).split())
