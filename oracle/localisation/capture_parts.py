"""The parts of Dynamo and AOT autograd that can be left out as a whole, and the calls that Dynamo captures.

A call that is left out is made by eager, between two graphs. Only torch's own hooks and settings are used.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends import debugging
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables.higher_order_ops import TorchHigherOrderOperatorVariable
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch.partitioners import default_partition

from oracle.subjects.base import CompileRequest
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.torch_compile import TorchCompile

# Steps of Dynamo and AOT autograd for a whole program. Later ones are coarser: the partitioner without recomputation merges
# no equal computations, either, and code that is compiled for each call has no dynamic sizes.
MERGED = "common subexpressions"
REPLAY = "views replayed for results"
TANGENTS = "strides of tangents"
RECOMPUTATION = "recomputation in backward"
DYNAMIC = "dynamic sizes"
REUSE = "code used again"

_COPIES_TANGENT = "coerce_to_expected_memory_format"


@contextlib.contextmanager
def without_capture(names: frozenset[str]) -> Iterator[None]:
    """A context without these of RECOMPUTATION, DYNAMIC, REUSE, MERGED, REPLAY and TANGENTS."""
    with contextlib.ExitStack() as stack:
        if REPLAY in names:  # such results are then made by `as_strided`
            stack.enter_context(functorch_config.patch(view_replay_for_aliased_outputs=False))
        if TANGENTS in names:  # a tangent that arrives with other strides than the result's is then not copied
            stack.enter_context(replaced(runtime_wrappers, _COPIES_TANGENT, lambda tangent, expected: tangent))
        if MERGED in names:
            stack.enter_context(functorch_config.patch(cse=False))
        if RECOMPUTATION in names:
            stack.enter_context(replaced(debugging, "min_cut_rematerialization_partition", default_partition))
        if DYNAMIC in names:
            settings = {"automatic_dynamic_shapes": False, "specialize_float": True, "assume_static_by_default": True}
            stack.enter_context(torch._dynamo.config.patch(settings))
        if REUSE in names:
            stack.enter_context(replaced(TorchCompile, "compile", _compiled_for_each_call(TorchCompile.compile)))
        yield


def with_zero_tangents(spec: SubjectSpec) -> TorchCompile:
    """Dynamo with eager's graphs, whose results have one backward: as AOT autograd does, it gives zeros for missing tangents."""

    def backend(graph: Any, example_inputs: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            results = list(graph(*args))
            places = [i for i, one in enumerate(results) if isinstance(one, torch.Tensor) and one.requires_grad]
            joined = _OneBackward.apply(*(results[i] for i in places)) if places else ()
            for i, result in zip(places, joined, strict=True):
                results[i] = result
            return results

        return call

    return TorchCompile(spec, backend=backend)


class _OneBackward(torch.autograd.Function):
    """Copies of tensors that share one backward. A tangent that does not arrive is zeros there, and not undefined."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tangents


def _compiled_for_each_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(self: TorchCompile, request: CompileRequest) -> Callable[..., Any]:
        function = original(self, request)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            torch._dynamo.reset()
            return function(*args, **kwargs)

        return call

    return compiled


# ------------------------------------------------------------------------------------------------------------------- calls


@contextlib.contextmanager
def calls(seen: dict[str, None], left_out: frozenset[str]) -> Iterator[None]:
    """A context that records the names of calls on tensors which Dynamo captures; at those in `left_out` it breaks the graph.

    A name is that of a function ("addcdiv") or a tensor's method ("neg_"). Calls that Dynamo makes for another one, such as the
    products of an addcdiv, belong to that. Operators such as `a + b` are no calls: where Dynamo cannot capture one, it captures
    nothing of the function.
    """
    calls = _Calls(seen=seen, left_out=left_out)
    with calls.functions(), calls.higher_order(), calls.methods():
        yield


@dataclass(slots=True, kw_only=True)
class _Calls:
    """The replacements for Dynamo's handlers of calls."""

    seen: dict[str, None]
    left_out: frozenset[str]
    is_inside: bool = False  # of another call

    def captured(self, name: str, original: Callable[[], Any]) -> Any:
        """Capture a call by `original`, or break the graph. Raises Unsupported, which makes Dynamo break it."""
        if self.is_inside:
            return original()
        self.seen[name] = None
        if name in self.left_out:
            raise Unsupported(f"call of {name}, which is left out")
        self.is_inside = True
        try:
            return original()
        finally:
            self.is_inside = False

    def functions(self) -> AbstractContextManager[None]:
        original = TorchInGraphFunctionVariable.call_function

        @functools.wraps(original)
        def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            call = functools.partial(original, variable, tx, args, kwargs)
            name = getattr(variable.value, "__name__", str(variable.value))
            return self.captured(name, call) if _has_tensor(args, kwargs) else call()

        return replaced(TorchInGraphFunctionVariable, "call_function", call_function)

    def higher_order(self) -> AbstractContextManager[None]:
        """Handle higher-order operators. Calls in their function arguments count as part of them."""
        original = TorchHigherOrderOperatorVariable.call_function

        @functools.wraps(original)
        def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            name = getattr(variable.value, "__name__", str(variable.value))
            return self.captured(name, functools.partial(original, variable, tx, args, kwargs))

        return replaced(TorchHigherOrderOperatorVariable, "call_function", call_function)

    def methods(self) -> AbstractContextManager[None]:
        original = TensorVariable.call_method

        @functools.wraps(original)
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            return self.captured(name, functools.partial(original, variable, tx, name, args, kwargs))

        return replaced(TensorVariable, "call_method", call_method)


def _has_tensor(args: Any, kwargs: Any) -> bool:
    """Whether a variable of a call is a tensor, or a list or tuple with one."""
    waiting = [*args, *kwargs.values()]
    while waiting:
        variable = waiting.pop()
        realized = variable.realize()
        if isinstance(realized, TensorVariable):
            return True
        waiting.extend(realized.items if isinstance(realized, BaseListVariable) else ())
    return False


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which an attribute of a class or module has another value."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
