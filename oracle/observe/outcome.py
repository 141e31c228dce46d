"""Outcome: everything that was observed of one subject on one program, without judging it.

Tensors in it are detached copies made when they were observed, so nothing that runs later can change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BEFORE_BACKWARD = " before backward: "  # separates the two states in `CallObservation.rng_digest`


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """Metadata of a tensor as the caller of the program sees it."""

    type_name: str  # qualified class name: "torch.Tensor", "torch.nn.parameter.Parameter", a subclass
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None  # None for layouts without strides
    storage_offset: int | None
    dtype: str  # "float32"
    device: str  # "cpu", "cuda:0"
    layout: str  # "strided", "sparse_coo", ...
    requires_grad: bool
    is_leaf: bool
    is_conj: bool = False
    is_neg: bool = False
    is_inference: bool = False
    is_coalesced: bool | None = None  # sparse_coo only
    quantizer: str | None = None  # qscheme, scale and zero point as text; None for tensors that are not quantised


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """One leaf of a flattened value."""

    path: str  # "output", "output[1]", "output['loss']", "args[0]", "module.weight", "grad of args[0]"
    value: Any  # a detached copy of the tensor with its strides; or the Python value; or repr() text of anything else
    facts: TensorFacts | None  # None unless it is a tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasGraph:
    """Which arguments (after the call), outputs and module state share a storage or are one object.

    Groups and their members are sorted, so that equal relations are equal graphs.
    """

    storages: tuple[
        tuple[str, ...], ...
    ] = ()  # paths whose tensors share one non-empty storage; groups of two and more
    objects: tuple[tuple[str, ...], ...] = ()  # paths that are one and the same Python object
    overwritten: tuple[
        str, ...
    ] = ()  # "output of call 0": results that held other values before the calls that followed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionFacts:
    """An exception as seen from outside."""

    type_name: str  # qualified
    ancestry: tuple[str, ...]  # qualified names of its method resolution order, itself first, `object` last
    message: str
    traceback: str  # the tail, for the record
    call: int  # index in the call plan
    phase: str  # "compile" | "call" | "backward" | "double backward"
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallObservation:
    """The observation of one call of the plan."""

    structure: str  # of the output: "tuple(Tensor, dict('loss': Tensor, 'aux': None))"
    outputs: tuple[Leaf, ...]
    inputs_after: tuple[Leaf, ...]  # arguments after the call (before backward): mutation shows here
    gradients: tuple[
        Leaf, ...
    ]  # of inputs and module parameters; value None where there is none; empty without backward; then those of these gradients
    module_state: tuple[Leaf, ...]  # parameters, buffers, training flags, extra attributes, after the call
    aliases: AliasGraph
    rng_digest: str  # of all generator states after the call; if the backward draws, of those after it too
    seconds: float  # the call and its backward alone

    @property
    def rng_after_call(self) -> str:
        """Digest of all generator states after the call, before its backward."""
        after_backward, _, after_call = self.rng_digest.partition(BEFORE_BACKWARD)
        return after_call or after_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """Memory of an argument, a result or a gradient after the plan, when the caller has dropped all of them."""

    call: int
    path: str
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Returned:
    """Every call of the plan returned."""

    calls: tuple[CallObservation, ...]
    memory: tuple[InMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Raised:
    """A call raised; `calls` are those before it."""

    exception: ExceptionFacts
    calls: tuple[CallObservation, ...] = ()
    undifferentiated: CallObservation | None = None  # the call whose double backward raised, without its gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The process died."""

    signal: int | None
    exit_code: int | None
    stage: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The run did not end within the time limit."""

    seconds: float
    stage: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The process exceeded the memory limit."""

    bytes: int
    stage: str


Outcome = Returned | Raised | Crashed | TimedOut | OutOfMemory


def calls_of(outcome: Outcome | None) -> tuple[CallObservation, ...]:
    """The calls that returned."""
    return outcome.calls if isinstance(outcome, (Returned, Raised)) else ()
