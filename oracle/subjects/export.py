"""The subject `export`: runs the module of the program that torch.export.export returns, in strict mode or not.

Options transform the exported program first, so that a wrong result names the stage: decompose it, and then save and load it,
export it again, or unflatten it.

Counterpart: torch/export/_trace.py export
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from oracle.errors import InternalError, UsageError
from oracle.program.build import PROGRAM_MODULE
from oracle.program.clone import clone_tree
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.signature import value_key
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.torch_export import to_torch
from oracle.subjects.traced import copy_of_target, unchanged_rng

# Transformations after which parameters are other tensors, with the same names.
_MAKES_NEW_STATE = ("saved", "unflattened")
# Types of leaves that export supports as inputs. Other leaves are closed over.
_INPUTS = (torch.Tensor, bool, int, float, complex, str, bytes, type(None))


class FunctionModule(torch.nn.Module):
    """A function as a module, since export takes modules only. `fixed` has the leaves that export does not take, by position."""

    def __init__(self, function: Callable[..., Any], fixed: Mapping[int, Any]) -> None:
        super().__init__()
        self._function = function
        self._fixed = dict(fixed)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._fixed:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            for position, value in self._fixed.items():
                leaves[position] = value
            args, kwargs = pytree.tree_unflatten(leaves, spec)
        return self._function(*args, **kwargs)


class Export:
    """Exports on the first call, from copies of its inputs and of the module, and then uses the original parameters and buffers.

    Export's own guards refuse other shapes. There are no guards on training mode and on values that are closed over (dtypes,
    devices ...): if they change, this exports again, as a user would.

    The sizes in `Program.sizes` vary; without these none, or with `dynamic` all that export supports.
    """

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._exports = 0

    def reset(self) -> None:
        self._exports = 0
        torch._dynamo.reset()
        # Dynamo stores modules that a traced function uses in the globals of the frame it starts from, which are this file's.
        for name in [name for name in globals() if name.startswith(f"__import_{PROGRAM_MODULE}")]:
            del globals()[name]

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        target = request.target
        exported: dict[Hashable, torch.nn.Module] = {}
        dynamic = self.spec.options.get("dynamic", request.dynamic)

        def call(*args: Any, **kwargs: Any) -> Any:
            training = tuple(m.training for m in target.modules()) if isinstance(target, torch.nn.Module) else ()
            args, kwargs, fixed = _without_fixed(args, kwargs)
            key = training, tuple((position, value_key(value)) for position, value in fixed.items())
            if key not in exported:
                exported[key] = self._export(target, args, kwargs, fixed, dynamic=dynamic, sizes=request.sizes)
            return exported[key](*args, **kwargs)

        return call

    def counters(self) -> Counters:
        return Counters(graphs=self._exports, graph_breaks=0, recompiles=max(self._exports - 1, 0))

    def export(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
        """The exported program."""
        return torch.export.export(module, args, kwargs, **options)

    def loaded(self, program: Any) -> Any:
        """The program after saving and loading it."""
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        return torch.export.load(file)

    def unflattened(self, program: Any) -> torch.nn.Module:
        """The program unflattened into a hierarchy of modules."""
        return torch.export.unflatten(program)

    def _runnable(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any
    ) -> torch.nn.Module:
        """The callable that replaces the module. Its state is the module's, or has the same names."""
        again = clone_tree((args, kwargs))
        program = self.export(module, args, kwargs, **options)
        decomposed = self.spec.options.get("decomposed", "no")
        if decomposed != "no":
            program = program.run_decompositions({} if decomposed == "functional" else None)
        match self.spec.options.get("through"):
            case None:
                return program.module()
            case "saved":
                return self.loaded(program).module()
            case "retraced":
                return self.export(program.module(), *again, **options).module()
            case "unflattened":
                return self.unflattened(program)
            case "torch":
                return to_torch(program).module()
            case other:
                raise InternalError(f"through={other!r} of subject {self.spec.name!r}")

    def _export(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fixed: Mapping[int, Any],
        *,
        dynamic: bool | None,
        sizes: Mapping[str, Mapping[str, Any]],
    ) -> torch.nn.Module:
        copied, originals = copy_of_target(target)
        module = copied if isinstance(copied, torch.nn.Module) and not fixed else FunctionModule(copied, fixed)
        named: dict[str, torch.Tensor] = {}
        if self.spec.options.get("through") in _MAKES_NEW_STATE:
            state = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
            named = {name: originals[id(tensor)] for name, tensor in state if id(tensor) in originals}
        example_args, example_kwargs = clone_tree((args, kwargs))
        shapes = None
        if sizes:
            shapes = _varying(module, copied, example_args, example_kwargs, sizes)
        elif dynamic:
            shapes = _all_dynamic(module, example_args, example_kwargs)
        with unchanged_rng():
            runnable = self._runnable(
                module,
                example_args,
                example_kwargs,
                dynamic_shapes=shapes,
                strict=self.spec.options.get("strict", True),
            )
        _replace_state(runnable, originals, named)
        self._exports += 1
        return runnable


def _replace_state(
    runnable: torch.nn.Module, originals: Mapping[int, torch.Tensor], named: Mapping[str, torch.Tensor]
) -> None:
    """Replace the copy's tensors by the original's, found by identity, or by name if identity is lost."""
    for prefix, owner in [*runnable.named_modules(remove_duplicate=False)]:
        for name, value in {**owner._parameters, **owner._buffers, **owner.__dict__}.items():
            if not isinstance(value, torch.Tensor):
                continue
            original = originals.get(id(value), named.get(f"{prefix}.{name}" if prefix else name))
            if original is not None:
                setattr(owner, name, original)


def _without_fixed(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, Any]]:
    """The inputs with None for leaves that export does not take, and those leaves by position."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    fixed = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, _INPUTS)}
    if not fixed:
        return args, kwargs, fixed
    args, kwargs = pytree.tree_unflatten([None if i in fixed else leaf for i, leaf in enumerate(leaves)], spec)
    return args, kwargs, fixed


def _all_dynamic(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`dynamic_shapes` in which every dimension of every tensor may vary, by the parameters of `forward`."""

    def dims(leaf: Any) -> Any:
        return dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, torch.Tensor) else None

    if isinstance(module, FunctionModule):  # whose parameters are *args and **kwargs
        return pytree.tree_map(dims, (args, kwargs) if kwargs else (args,))
    return pytree.tree_map(dims, (*args, *kwargs.values()))


def _varying(
    module: torch.nn.Module,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sizes: Mapping[str, Mapping[str, Any]],
) -> Any:
    """`dynamic_shapes` of the program's `sizes`. Sizes of one name are one `Dim`."""
    dims: dict[str, Any] = {}

    def shape(parameter: str) -> Any:
        said = {
            int(dim): dims.setdefault(name, Dim(name, min=low, max=high))
            for dim, (name, low, high) in sizes.get(parameter, {}).items()
        }
        return said or None

    parameters = inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target).parameters
    positional = tuple(shape(name) for name, _ in zip(parameters, args, strict=False))
    if len(positional) < len(args):
        raise UsageError(
            seen=f"sizes {dict(sizes)} for a program that takes {len(args)} arguments by position as {list(parameters)}",
            expected="a name for each",
            do="name the parameters of the program, or give the arguments by name",
        )
    by_name = {name: shape(name) for name in kwargs}
    if isinstance(module, FunctionModule):  # whose parameters are *args and **kwargs
        return (positional, by_name) if kwargs else (positional,)
    collected = [parameter.name for parameter in parameters.values() if parameter.kind is parameter.VAR_KEYWORD]
    shapes = dict(zip(parameters, positional, strict=False))
    if collected and any(name not in parameters for name in kwargs):  # `**inputs` collects them in one argument
        shapes[collected[0]] = {name: by_name.pop(name) for name in kwargs if name not in parameters}
    return shapes | by_name
