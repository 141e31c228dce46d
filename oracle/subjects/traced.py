"""Base of the subjects that trace a program on example inputs and then run the trace: make_fx, jit.trace, refimpl.make_fx.

Such an API gives a graph of one run and guards nothing: whoever uses it must trace again when anything the trace depended on
is another. So does this base: it traces once per *signature* of a call, which is

- the structure of the arguments, and of every tensor among them: class, shape, strides, offset, dtype, device, layout,
  `requires_grad`, conjugate and negative bits, which arguments are one object and which share a storage;
- the value of everything among them that is not a tensor (objects that cannot be compared by value: their identity);
- of a module: which modules are in training mode, and which parameters and buffers it has (by identity);
- grad mode, inference mode and autocast.

The trace is made on copies, of the arguments and of a module, and under a forked random generator, so that tracing has no
effect on what the caller sees; the copy's parameters and buffers are then replaced by the original's in the trace.

Known limits, which are those of the APIs and show as findings: effects on Python objects happen while tracing and not when
the trace runs, so does whatever the program reads from globals and attributes; tensors that a function captures from outside
are used as they are, so tracing in real mode mutates them once more; `no_grad` regions, `autograd.Function`s and hooks inside
the program are not in an aten graph, so that gradients taken through it can differ.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from oracle.program.clone import clone_tree
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.signature import signature_of
from oracle.subjects.spec import SubjectSpec

# Values in an output that are the same at every run of one signature.
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
_FROM_GRAPH = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


class FlatTrace(Protocol):
    """A traced program: tensors in, tensors (and symbolic numbers) out."""

    def __call__(self, *tensors: torch.Tensor) -> Any: ...


class TracedSubject(ABC):
    """What the trace subjects share. A subclass says how one flat function is traced."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._traces = 0

    @abstractmethod
    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        """Trace `flat(*tensors)`; both are copies the trace may spend."""

    @abstractmethod
    def replace_state(self, traced: FlatTrace, originals: dict[int, torch.Tensor], flat: FlatProgram) -> None:
        """Put the original module's tensors in place of the copy's; `originals` maps the id of a copy."""

    def reset(self) -> None:
        self._traces = 0

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        """Traces on the first call, under the grad and training mode that hold there."""
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
    """A program as a function of its tensors alone; everything else is fixed by the example."""

    def __init__(self, target: Callable[..., Any], example: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self.target = target
        self._leaves, self._in_spec = pytree.tree_flatten(example)
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        self._out_spec: pytree.TreeSpec | None = None
        self._out_leaves: list[Any] = []

    def __call__(self, *tensors: torch.Tensor) -> list[Any]:
        """Tensors and symbolic numbers of the output, in order. Raises TypeError for an output no trace can give again."""
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


_HOLE = object()  # stands where the graph gives a value


def copy_of_target(target: Callable[..., Any]) -> tuple[Callable[..., Any], dict[int, torch.Tensor]]:
    """A deep copy of a module, and for the id of each tensor of the copy the original; a function as it is."""
    if not isinstance(target, torch.nn.Module):
        return target, {}
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(target, memo)
    kept_originals = memo.get(id(memo), [])  # deepcopy keeps every original it copied alive, here
    tensors = [value for value in kept_originals if isinstance(value, torch.Tensor)]
    return copied, {id(memo[id(tensor)]): tensor for tensor in tensors}


@contextlib.contextmanager
def unchanged_rng() -> Iterator[None]:
    """Random numbers drawn inside are drawn again afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _as_constant(leaf: Any) -> Any:
    """A size may hold symbolic numbers; within one signature they have one value."""
    return torch.Size(map(int, leaf)) if isinstance(leaf, torch.Size) else leaf
