"""Errors of refimpl. Each says what was seen, what was expected and what to do.

They derive from the types that callers of upstream catch, such as `RuntimeError` for a data-dependent read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from refimpl._torch import DataDependentOutputException, DynamicOutputShapeException

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_OUR_TESTS = str(Path(__file__).parent / "tests")


def user_line() -> str:
    """The innermost running line outside torch and refimpl, as " (file.py:12)". Empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_ours = file.startswith(_HERE) and not file.startswith(_OUR_TESTS)
        if not is_ours and not file.startswith((_TORCH, "<")):
            return f" ({file}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


class RefimplError(Exception):
    """Base of every error that refimpl raises on purpose."""


class UnsupportedByRefimpl(RefimplError, NotImplementedError):
    """A parameter value or construct that refimpl does not support. It raises rather than approximate."""

    def __init__(self, *, seen: str, supported: str, do: str) -> None:
        super().__init__(f"refimpl does not support {seen}\n  supported: {supported}\n  what to do: {do}")


class BadParameter(RefimplError, AssertionError, ValueError):
    """A parameter value that has no meaning. Also an AssertionError, which upstream raises."""

    def __init__(self, *, seen: str, expected: str) -> None:
        super().__init__(f"{seen}\n  expected: {expected}")


class DataDependentRead(RefimplError, RuntimeError):
    """The traced function reads a value out of a tensor, so its control flow may depend on data.

    Counterpart: the RuntimeError of torch/fx/experimental/proxy_tensor.py proxy_call
    """

    def __init__(self, func: object) -> None:
        super().__init__(func)
        # A subclass also derives from upstream's exception, whose __init__ only sets `func`.
        self.func = func
        self.args = (
            f"the traced function reads a value out of a tensor that depends on its inputs, by {func}{user_line()}\n"
            "  this is data-dependent control flow, or looks like it\n"
            "  expected: a course that does not depend on data (no .item(), bool(tensor), or shape found from values)\n"
            "  what to do: keep the value in tensors (torch.where, masks); with tracing_mode='symbolic' a value read may stay "
            "a symbol",
        )

    def __str__(self) -> str:
        return str(self.args[0])


class DataDependentFakeRead(DataDependentRead, DataDependentOutputException):
    """The same for fake tensors, which have no values to read. Also the exception that torch's fake tensors raise."""


class DynamicShapeInTrace(RefimplError, NotImplementedError, DynamicOutputShapeException):
    """The shape of an op's result depends on data (`nonzero`), and the trace may not use a symbol for it."""

    def __init__(self, func: Any) -> None:
        super().__init__(func)
        self.func = func
        self.args = (
            f"{func} under fake tensors: the shape of its result depends on data{user_line()}\n"
            "  expected: ops whose result has a shape that follows from the shapes of the inputs\n"
            "  what to do: trace with tracing_mode='real'",
        )

    def __str__(self) -> str:
        return str(self.args[0])


class NotTracked(RefimplError, RuntimeError):
    """A tensor or symbolic number that is neither an input of the trace nor computed in it.

    Counterpart: the RuntimeError of torch/fx/experimental/proxy_tensor.py get_proxy_slot
    """

    def __init__(self, value: object) -> None:
        # Printing a tensor runs operators: here they would go through the trace that has just failed.
        is_tensor = isinstance(value, torch.Tensor)
        seen = f"a tensor of {value.dtype} and shape {tuple(value.shape)}" if is_tensor else str(value)
        super().__init__(
            f"{seen} ({type(value).__name__}) is not tracked with proxy for the running trace\n"
            "  expected: inputs of the traced function and what it computes from them\n"
            "  what to do: pass it as an input; a number made while tracing was disabled cannot be used after"
        )


class NoTraceRunning(RefimplError, AssertionError):
    """Something that works only during a trace was used outside one."""

    def __init__(self, seen: str) -> None:
        super().__init__(f"{seen} outside of a trace\n  expected: a call from a function that make_fx is tracing")


class UncapturedHigherOrderOp(RefimplError, RuntimeError):
    """A call of a higher-order operator with functions that it does not take. The message ends with the operator.

    Counterpart: UncapturedHigherOrderOpError of torch/_dynamo/exc.py
    Differs: only capture's own errors are also graph breaks (refimpl.capture.public.errors).
    """


def _operator_line(name: str) -> str:
    known = {"cond": "torch.cond", "map": "torch.ops.higher_order.map_impl"}
    return f"\n  Higher Order Operator: {known.get(name, f'torch.ops.higher_order.{name}')}"


class MismatchedBranches(UncapturedHigherOrderOp):
    """Functions of a higher-order operator, such as the branches of `cond`, do not match each other or the operands.

    Counterpart: CondOpArgsMismatchError, UncapturedHigherOrderOpError of torch/_dynamo/exc.py
    """

    def __init__(
        self, operator: str, a: str, b: str, names: tuple[str, str] = ("the true branch", "the false branch")
    ) -> None:
        super().__init__(
            f"{operator}: {names[0]} has {a}, {names[1]} has {b}{user_line()}\n"
            "  expected: the same containers, and in them tensors of one dtype, device and number of dimensions, "
            "in memory in one order without gaps; of one shape too where one is the next round's input of the other\n"
            "  what to do: return the same kind of result; .contiguous() brings strides in line"
            + _operator_line(operator)
        )


class NotFunctional(UncapturedHigherOrderOp):
    """A function of torch.cond, map, scan or while_loop writes to an input, or returns a view of it, or two views of one tensor.

    Counterpart: the UncapturedHigherOrderOpError of torch/_dynamo/variables/higher_order_ops.py
    """

    def __init__(self, operator: str, seen: str) -> None:
        super().__init__(
            f"{operator}: {seen}{user_line()}\n"
            "  expected: no mutation of inputs, and no aliasing of results with inputs or each other\n"
            "  what to do: write to a clone, and return `.clone()` of what is an input or another result"
            + _operator_line(operator)
        )


class MutatedRegionInput(RefimplError, RuntimeError):
    """A nested compile region writes to an operand while gradients are recorded.

    Counterpart: the RuntimeError of torch/_higher_order_ops/invoke_subgraph.py
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"invoke_subgraph does not currently support training with in-place input or buffer mutations: {name} writes to an "
            f"operand{user_line()}\n  expected: a region that computes new tensors\n"
            "  what to do: return the new value, or call the region under torch.no_grad()"
        )


class ForeignFakeInput(RefimplError, AssertionError):
    """Fake inputs that belong to two fake modes, or to a mode that cannot trace them (without a shape env, for symbols)."""

    def __init__(self, *, seen: str, do: str) -> None:
        super().__init__(
            f"{seen}\n  expected: fake inputs that all belong to one mode, with a shape_env if tracing is symbolic\n"
            f"  what to do: {do}"
        )


class WrongFakeKernel(RefimplError, RuntimeError):
    """torch's fake kernel of an operator gives another shape or dtype than the operator itself, and the sizes are symbols.

    With static sizes the trace goes on with what the operator gives. Raised too if the fake kernel changes the
    size of what it writes to.
    """

    def __init__(self, func: object, fake: Sequence[torch.Tensor], real: Sequence[torch.Tensor]) -> None:
        seen, expected = (", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors) for tensors in (fake, real))
        super().__init__(
            f"the fake kernel of {func} gives {seen}{user_line()}\n  expected: {expected}, as the operator does for these sizes\n"
            "  what to do: trace with static sizes; report the fake kernel to PyTorch"
        )


class BadDecomposition(RefimplError, TypeError):
    """A decomposition does not return what its op returns: another type, or another number of results."""

    def __init__(self, func: object, rule: object, *, seen: str, expected: str) -> None:
        name = getattr(rule, "__qualname__", repr(rule))
        code = getattr(rule, "__code__", None)
        place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        super().__init__(
            f"the decomposition {name}{place} of {func} returned {seen}{user_line()}\n  expected: {expected}, as the op returns\n"
            "  what to do: return the op's own structure, or NotImplemented to leave the op as it is"
        )


class UntracedSideEffect(UserWarning):
    """A warning: the traced function assigns a global variable, and its graph will not."""

    def __init__(self, name: str, place: str, *, is_tensor: bool) -> None:
        what = "a tensor of the trace, which means nothing outside of it," if is_tensor else "a value"
        super().__init__(
            f"the traced function assigns {what} to the global {name!r} at {place}\n"
            "  expected: a function of its inputs; the graph will not assign it when it runs\n"
            "  what to do: return the value"
        )


class UntraceableOutput(RefimplError, TypeError):
    """The traced function returns a value that is neither a tensor nor a constant that a graph can hold."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"the traced function returns a {type(value).__module__}.{type(value).__qualname__}\n"
            "  expected: tensors, numbers, strings, None, dtypes and devices in containers that torch.utils._pytree knows\n"
            "  what to do: return its tensors, or register its class with torch.utils._pytree.register_pytree_node"
        )
