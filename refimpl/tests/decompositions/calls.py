"""Calls of aten overloads to try decompositions on, out of PyTorch's operator database.

Each sample of the database is run forward and backward under a mode that sees every aten call below autograd; calls that
differ in shapes, strides, dtypes or other arguments are kept. From these come more: the same call with its tensors in other
memory layouts, with special values in them, and the in-place and out variants of the same op. Foreach calls are made here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from refimpl._torch import OpOverload, TorchDispatchMode, pytree
from refimpl.trace.decompositions.inplace_and_out import in_place_variant, out_variant


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an overload. Tensors are never handed out themselves: `arguments` copies them with their strides."""

    overload: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: str  # the operator of the database it comes from, and what was changed

    def arguments(self, dtypes: dict[torch.dtype, torch.dtype] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments, tensors and dtypes converted by the map. A tensor that comes twice stays one."""
        copies: dict[int, torch.Tensor] = {}

        def copy(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                if id(x) not in copies:
                    copies[id(x)] = duplicate(x, (dtypes or {}).get(x.dtype))
                return copies[id(x)]
            return (dtypes or {}).get(x, x) if isinstance(x, torch.dtype) else x

        return mapped(copy, self.args), mapped(copy, self.kwargs)

    def describe(self) -> str:
        """Shapes, types and numbers, for messages."""
        leaves = leaves_of((self.args, self.kwargs))
        return f"{self.overload}({', '.join(map(_brief, leaves))}) from {self.source}"


def leaves_of(value: Any) -> list[Any]:
    """The values in nested lists, tuples and dicts, the only containers of an operator's arguments and results.

    This and `mapped` take a third of the time of pytree's functions, which know every container. They are called for each call.
    """
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return leaves_of(list(value.values())) if isinstance(value, dict) else [value]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The same lists, tuples and dicts with the function's results for their leaves."""
    if isinstance(value, (list, tuple)):
        items = [mapped(function, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {name: mapped(function, item) for name, item in value.items()}
    return function(value)


def duplicate(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor with storage of its own and the same sizes, strides (zero ones too), offset and conjugation."""
    if x.layout is not torch.strided:
        return x.detach().clone() if dtype is None else x.detach().to(dtype)
    plain = x.detach()
    is_conj, is_neg = plain.is_conj(), plain.is_neg()
    if is_neg:
        plain = plain._neg_view()
    if is_conj:
        plain = plain.conj()
    length = plain.untyped_storage().nbytes() // plain.element_size()
    flat = torch.as_strided(plain, (length,), (1,), 0).clone()
    flat = flat if dtype is None else flat.to(dtype)
    out = torch.as_strided(flat, plain.shape, plain.stride(), plain.storage_offset())
    out = out.conj() if is_conj else out
    return out._neg_view() if is_neg else out


def _brief(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        dtype = str(x.dtype).removeprefix("torch.")
        return f"{dtype}{list(x.shape)}:{list(x.stride()) if x.layout is torch.strided else x.layout}"
    return repr(x)


@dataclass
class CallsBuilder:
    """Keeps up to `limit` calls per overload and dtype, no two alike in everything but values."""

    wanted: Collection[OpOverload]
    limit: int
    calls: list[Call] = field(default_factory=list)
    seen: set[Any] = field(default_factory=set)
    counts: dict[Any, int] = field(default_factory=dict)

    def offer(self, call: Call) -> None:
        """Keeps the call if it is wanted and new."""
        leaves = leaves_of((call.args, call.kwargs))
        key = (call.overload, tuple(map(_brief, leaves)))
        dtype = next((x.dtype for x in leaves if isinstance(x, torch.Tensor)), None)
        group = (call.overload, dtype)
        if key in self.seen or self.counts.get(group, 0) >= self.limit:
            return
        self.seen.add(key)
        self.counts[group] = self.counts.get(group, 0) + 1
        args, kwargs = call.arguments()
        self.calls.append(replace(call, args=args, kwargs=kwargs))


class CollectingMode(TorchDispatchMode):
    """Offers every wanted call to a builder, and runs it."""

    def __init__(self, builder: CallsBuilder, source: str) -> None:
        super().__init__()
        self.builder = builder
        self.source = source

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # wrapping every call in torch._dynamo.disable takes longer than the call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.builder.wanted and not any(
            isinstance(x, torch.Tensor) and (type(x) is not torch.Tensor or x.layout is not torch.strided)
            for x in leaves_of((args, kwargs))
        ):
            self.builder.offer(Call(overload=func, args=args, kwargs=kwargs, source=self.source))
        return func(*args, **kwargs)


def calls_of_database(
    wanted: Collection[OpOverload], dtypes: Sequence[torch.dtype], *, samples: int, limit: int
) -> list[Call]:
    """Calls that the first `samples` samples of every operator make, forward and backward."""
    builder = CallsBuilder(wanted=wanted, limit=limit)
    for op, dtype in itertools.product(op_db, dtypes):
        if dtype not in op.supported_dtypes("cpu") or op.name.startswith("jiterator"):  # that one is for GPUs
            continue
        has_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        torch.default_generator.manual_seed(0)
        # `op.sample_inputs` looks through the source of every caller, which takes longer than making the samples.
        made = op.sample_inputs_func(op, torch.device("cpu"), dtype, has_gradient)
        inputs = itertools.islice(made, samples)
        for sample in _until_refused(inputs):
            with CollectingMode(builder, op.formatted_name):
                _run(op, sample, has_gradient=has_gradient)
    return builder.calls


def _until_refused(inputs: Iterator[Any]) -> Iterator[Any]:
    """Some generators of samples need a library that is not there: they end where they raise."""
    while True:
        try:
            yield next(inputs)
        except (StopIteration, ImportError, RuntimeError):
            return


def _run(op: Any, sample: Any, *, has_gradient: bool) -> None:
    """Forward and backward. A sample the CPU has no kernel for has made the calls before it by then."""
    try:
        result = op(sample.input, *sample.args, **sample.kwargs)
        if not has_gradient:
            return
        outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        if outputs and inputs:
            gradients = [torch.linspace(0.5, 1.5, x.numel()).view(x.shape).to(x.dtype) for x in outputs]
            torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return


# ------------------------------------------------------------------------------------------------- calls out of calls


def variant_calls(call: Call, result: Any) -> Iterator[Call]:
    """The in-place and out variants of a functional call, given its result."""
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    in_place = in_place_variant(call.overload)
    if in_place is not None:
        args, kwargs = call.arguments()
        yield Call(overload=in_place, args=args, kwargs=kwargs, source=f"{call.source}, in place")
    into_out = out_variant(call.overload)
    if into_out is None or not all(isinstance(x, torch.Tensor) for x in results):
        return
    names = [a.name for a in into_out._schema.arguments if a.is_out]
    known = {a.name for a in into_out._schema.arguments}
    for what, make in (("into out", torch.empty_like), ("into an empty out", lambda x: torch.empty(0, dtype=x.dtype))):
        args, kwargs = call.arguments()
        kwargs = {name: value for name, value in kwargs.items() if name in known}
        outs = {name: make(x) for name, x in zip(names, results, strict=True)}
        yield Call(overload=into_out, args=args, kwargs={**kwargs, **outs}, source=f"{call.source}, {what}")


def foreach_calls(overload: OpOverload, dtype: torch.dtype) -> Iterator[Call]:
    """Two calls of a foreach op on lists of tensors, by the types in its schema."""
    torch.default_generator.manual_seed(0)
    name = overload._schema.name
    shapes: list[tuple[int, ...]] = [(3,), (2, 2), (), (4, 2)]
    if name.endswith("_mm"):
        shapes = [(2, 2), (3, 3)]
    numbers: Any = {"int": [2, 3, 1, 2], "float": [0.5, 1.5, 2.0, 0.25]}["float" if dtype.is_floating_point else "int"]
    for count in (len(shapes), 1):

        def value(kind: str, n: int = count) -> Any:
            if kind == "List[Tensor]":
                return [_sample_tensor(shape, dtype) for shape in shapes[:n]]
            if kind == "List[number]":
                return numbers[:n]
            return torch.tensor(numbers[0], dtype=dtype) if kind == "Tensor" else numbers[0]

        arguments = [a for a in overload._schema.arguments if not a.kwarg_only]
        args = tuple(value(str(a.type)) for a in arguments if not a.has_default_value())
        yield Call(overload=overload, args=args, kwargs={}, source="foreach")


def _sample_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Floats in (0, 1), where every function of a foreach op is defined, or small positive integers."""
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.rand(shape) * 0.75 + 0.125).to(dtype)
    return torch.randint(1, 5, shape).to(dtype)
