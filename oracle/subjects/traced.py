"""Base class of subjects that trace a program on example inputs and run the trace: make_fx, jit.trace, refimpl.make_fx.

Such an API returns the graph of one run without guards, and its user must trace again if anything that the trace depends on
changes. So this class traces once for each *signature* of a call, which consists of

- the structure of the arguments, and of every tensor among them: class, shape, strides, offset, dtype, device, layout,
  `requires_grad`, conjugate and negative bits, which arguments are one object and which share a storage;
- the values of other arguments (the identity of objects that do not compare by value);
- of a module: the training flags of its submodules, and its parameters and buffers (by identity);
- grad mode, inference mode and autocast.

Tracing uses copies of the arguments and of a module, and a forked random generator, so that the caller sees no effect of it. The
copy's parameters and buffers are then replaced by the original's in the trace.

Known limits of these APIs, which show as findings: side effects on Python objects, and reads of globals and attributes, happen
while tracing and not when the trace runs. Tensors that a function closes over are not copied, so tracing in real mode mutates
them once more. `no_grad` regions, `autograd.Function`s and hooks of the program are not in an aten graph, so gradients may
differ.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.types import py_sym_types
from torch.utils import _pytree as pytree

from oracle.program.clone import clone_tree
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.signature import signature_of
from oracle.subjects.spec import SubjectSpec

# Types of output values that are the same in every run of one signature.
CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    slice,
    range,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
)
_FROM_GRAPH = (torch.Tensor, *py_sym_types)


class FlatTrace(Protocol):
    """A traced program: tensors in, tensors (and symbolic numbers) out."""

    def __call__(self, *tensors: torch.Tensor) -> Any: ...


class TracedSubject(ABC):
    """Base class of subjects that trace. A subclass traces one flat function."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._traces = 0

    @abstractmethod
    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        """Trace `flat(*tensors)`; both are copies, which the trace may change."""

    @abstractmethod
    def replace_state(self, traced: FlatTrace, originals: dict[int, torch.Tensor], flat: FlatProgram) -> None:
        """Replace the copy's tensors by the original module's; `originals` maps the id of a copy to the original."""

    def reset(self) -> None:
        self._traces = 0

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        """Traces on the first call, in its grad mode and training mode."""
        runs: dict[Any, _Run] = {}
        target = request.target

        def call(*args: Any, **kwargs: Any) -> Any:
            signature = signature_of(target, args, kwargs)
            run = runs.get(signature)
            if run is None:
                runs[signature] = run = self._trace_call(target, args, kwargs)
            return run(args, kwargs)

        return call

    def counters(self) -> Counters:
        return Counters(graphs=self._traces, graph_breaks=0, recompiles=max(self._traces - 1, 0))

    def _trace_call(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Run:
        traced_target, originals = copy_of_target(target)
        flat = FlatProgram(traced_target, clone_tree((args, kwargs)))
        with unchanged_rng():
            traced = self.trace(flat, flat.tensors)
        if originals:
            self.replace_state(traced, originals, flat)
        self._traces += 1
        return _Run(traced, flat)


class FlatProgram:
    """A program as a function of its tensors only; other arguments are fixed to the example's."""

    def __init__(self, target: Callable[..., Any], example: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self.target = target
        self._leaves, self._in_spec = pytree.tree_flatten(example)
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        self._out_spec: pytree.TreeSpec | None = None
        self._out_leaves: list[Any] = []

    def __call__(self, *tensors: torch.Tensor) -> list[Any]:
        """The tensors and symbolic numbers of the output, in order. Raises TypeError for outputs that a trace cannot return."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._in_spec)
        out_leaves, self._out_spec = pytree.tree_flatten(
            self.target(*args, **kwargs), is_leaf=lambda value: isinstance(value, torch.Size)
        )
        for leaf in out_leaves:
            if not isinstance(leaf, (*_FROM_GRAPH, *CONSTANTS)):
                kind = type(leaf)
                raise TypeError(f"a traced program cannot return a {kind.__module__}.{kind.__qualname__}")
        self._out_leaves = [_HOLE if isinstance(leaf, _FROM_GRAPH) else _as_constant(leaf) for leaf in out_leaves]
        return [leaf for leaf in out_leaves if isinstance(leaf, _FROM_GRAPH)]

    def flatten_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]

    def unflatten_outputs(self, outputs: Any) -> Any:
        assert self._out_spec is not None, "outputs of a program that was never traced"
        remaining = iter(outputs)
        return pytree.tree_unflatten(
            [next(remaining) if leaf is _HOLE else leaf for leaf in self._out_leaves], self._out_spec
        )


class _Run:
    """A trace with the calling convention of the program."""

    def __init__(self, traced: FlatTrace, flat: FlatProgram) -> None:
        self._traced = traced
        self._flat = flat

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._flat.unflatten_outputs(self._traced(*self._flat.flatten_inputs(args, kwargs)))


_HOLE = object()  # placeholder for a value that the graph returns


def copy_of_target(target: Callable[..., Any]) -> tuple[Callable[..., Any], dict[int, torch.Tensor]]:
    """A deep copy of a module, and id of each copied tensor -> original. A function is returned as it is."""
    if not isinstance(target, torch.nn.Module):
        return target, {}
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(target, memo)
    kept_originals = memo.get(id(memo), [])  # deepcopy stores all copied originals here to keep them alive
    tensors = [value for value in kept_originals if isinstance(value, torch.Tensor)]
    return copied, {id(memo[id(tensor)]): tensor for tensor in tensors}


@contextlib.contextmanager
def unchanged_rng() -> Iterator[None]:
    """Restore the states of the random generators afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _as_constant(leaf: Any) -> Any:
    """The value with symbolic sizes replaced by integers, which are the same in every run of one signature."""
    return torch.Size(map(int, leaf)) if isinstance(leaf, torch.Size) else leaf
