"""The subject `export`: torch.export.export, strict or not, and the exported program's module run.

Counterpart: torch/export/_trace.py export
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from oracle.build import PROGRAM_MODULE
from oracle.clone import clone_tree
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.signature import value_key
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.traced import copy_of_target, unchanged_rng

# Leaves that export takes as inputs; it is its user's part to close over anything else.
_INPUTS = (torch.Tensor, bool, int, float, complex, str, bytes, type(None))


class FunctionModule(torch.nn.Module):
    """export takes modules only, and only inputs of some types: the others, by their position among the leaves, are fixed."""

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
    """Exports on the first call, on copies of its inputs and of the module; the exported parameters and buffers are then
    the original's. Another shape than the exported one is refused by export's own guards. Training mode has none, nor has
    what is closed over (dtypes, devices, ...): there it is exported again, as its user would.
    """

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._exports = 0

    def reset(self) -> None:
        self._exports = 0
        torch._dynamo.reset()
        # Dynamo leaves the modules that a traced function uses among the globals of the frame it starts from: this file's.
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
                exported[key] = self._export(target, args, kwargs, fixed, dynamic=dynamic)
            return exported[key](*args, **kwargs)

        return call

    def counters(self) -> Counters:
        return Counters(graphs=self._exports, graph_breaks=0, recompiles=max(self._exports - 1, 0))

    def runnable(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any
    ) -> torch.nn.Module:
        """What is called in the module's place; its state is the module's."""
        return torch.export.export(module, args, kwargs, **options).module()

    def _export(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fixed: Mapping[int, Any],
        *,
        dynamic: bool | None,
    ) -> torch.nn.Module:
        copied, originals = copy_of_target(target)
        module = copied if isinstance(copied, torch.nn.Module) and not fixed else FunctionModule(copied, fixed)
        example_args, example_kwargs = clone_tree((args, kwargs))
        with unchanged_rng():
            runnable = self.runnable(
                module,
                example_args,
                example_kwargs,
                dynamic_shapes=_all_dynamic(module, example_args, example_kwargs) if dynamic else None,
                strict=self.spec.options.get("strict", True),
            )
        for owner in runnable.modules():
            for name, value in {**owner._parameters, **owner._buffers, **owner.__dict__}.items():
                original = originals.get(id(value)) if isinstance(value, torch.Tensor) else None
                if original is not None:
                    setattr(owner, name, original)
        self._exports += 1
        return runnable


def _without_fixed(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, Any]]:
    """The inputs with None for every leaf export does not take, and those leaves by position."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    fixed = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, _INPUTS)}
    if not fixed:
        return args, kwargs, fixed
    args, kwargs = pytree.tree_unflatten([None if i in fixed else leaf for i, leaf in enumerate(leaves)], spec)
    return args, kwargs, fixed


def _all_dynamic(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every dimension of every tensor may vary, as far as export finds that it can. By the parameters of `forward`."""

    def dims(leaf: Any) -> Any:
        return dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, torch.Tensor) else None

    if isinstance(module, FunctionModule):  # whose parameters are *args and **kwargs
        return pytree.tree_map(dims, (args, kwargs) if kwargs else (args,))
    return pytree.tree_map(dims, (*args, *kwargs.values()))
