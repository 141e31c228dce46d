"""Eager by its other kernels: its scalar loops read what its vector loops read before, and mkldnn computes nothing.

Kernels of one operator need not agree on the sign of a zero: the vector loop of softshrink gives +0 for -0, the scalar one
-0, and which of the two an element falls to is its position. Nor on more than that: the vector loop of a float64 remainder gives
NaN where the quotient overflows, the scalar one the remainder; mkldnn's products of bfloat16 take denormal numbers for zero.
Operands with gaps in memory are read by the scalar loops, and so are those that are broadcast where no element has a neighbour
in memory, which copies without gaps are not: clamp gives another zero for these where bounds are zeros. The numbers behind the
last whole vector are computed by scalar loops as well, all of them in a short tensor: the gradient of hardswish is NaN where a
vector loop reads NaN, and the incoming gradient where a scalar one does. The kernel of attention on a CPU loses NaN so: of two
scores that are, the output is 0, of sixteen NaN.

Of gradients only the loops of elementwise operators count. Kernels of reductions differ in what they read, and eager has a known
bug there: its backward of a batch norm takes the gaps of a strided weight for numbers in one of them, and not in the others.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracle.program.inputs import map_tensors
from oracle.reruns.composite import call_parts, is_composite

_NEEDS_ITS_STRIDES = frozenset(["aten::_unsafe_view"])  # a view, though its schema does not say so
_WRITES_UNSAID = {
    "aten::native_batch_norm": (3, 4)
}  # positions of what is written to, though the schema does not say so
# Those that are not tagged as such.
_ELEMENTWISE = {"aten::hardswish", "aten::_prelu_kernel"} | {
    f"aten::{name}_backward"
    for name in (
        "_prelu_kernel",
        "binary_cross_entropy",
        "elu",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "huber_loss",
        "leaky_relu",
        "log_sigmoid",
        "mish",
        "mse_loss",
        "smooth_l1_loss",
        "softplus",
        "softshrink",
    )
}

# Elements that vector loops take at once divide it: two vectors of 64 bytes at most.
_WHOLE_VECTORS = 128

# Operators of lists that are not.
_NOT_ELEMENTWISE = {f"aten::_foreach_{name}" for name in ("max", "mm", "norm", "powsum")}


class StridedOperands(TorchDispatchMode):
    """Within it, functional aten operators, all or the elementwise ones, read copies of their operands that have gaps in memory.

    Elementwise operators that write do so, too; views, others that write, and random ones see the tensors themselves. Results lie
    in memory as they do without the mode, or what reads memory by its layout (as_strided, is_contiguous) would make another
    program of it. Active in the backward pass as well, if that runs inside.
    """

    def __init__(self, *, elementwise: bool = False) -> None:
        super().__init__()
        self.elementwise = elementwise

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_composite(func):
            with self:
                return call_parts(func, args, kwargs or {})
        if _is_elementwise(func) or (_is_functional(func) and not self.elementwise):
            return _by_copies(func, args, kwargs or {}, strided_copy)
        return func(*args, **(kwargs or {}))


class DenseOperands(TorchDispatchMode):
    """Within it, elementwise aten operators read dense copies of their operands, of the shape that these have together, and
    nothing but whole vectors: numbers are added behind the last one.

    As with StridedOperands results lie in memory as they do without the mode, and the backward pass is part of it. Operators of
    lists see the tensors themselves.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return call_parts(func, args, kwargs)
        if _is_elementwise(func) and not _is_of_lists(func):
            read = [value for argument, value in _arguments(func, args, kwargs) if not argument.is_out]
            shape = _common_shape(_tensors(read))
            if shape is not None and _counts_its_elements(func):
                return _by_copies(func, args, kwargs, functools.partial(_dense_copy, shape=shape))
            if shape is not None:
                copied = functools.partial(_whole_vectors, shape=shape)
                return _by_copies(func, args, kwargs, copied, functools.partial(_without_padding, shape=shape))
        return func(*args, **kwargs)


def _by_copies(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    copied: Callable[[torch.Tensor], torch.Tensor],
    restored: Callable[[torch.Tensor], torch.Tensor] = lambda result: result,
) -> Any:
    """What an operator gives, and writes, where it does so, with the values that it gives for copies of its operands.

    `restored` of what it gives for these has the shape of what it gives for the operands.

    Of the operands themselves if what is written lies in the memory of another one, or is not plain, or if the operator refuses
    the copies: `_linalg_check_errors` wants the numbers of a batch without gaps.
    """
    written = {id(tensor): tensor for tensor in _written(func, args, kwargs)}
    if written and not _are_apart(written, _tensors((args, kwargs))):
        return func(*args, **kwargs)
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in written:
            return copied(tensor)
        plain = tensor.detach()
        made = copied(plain)
        copies[id(tensor)] = plain.clone() if made is plain else made
        return copies[id(tensor)]

    operands = (args, kwargs) if written else _converted(func, args, kwargs)
    other_args, other_kwargs = map_tensors(operands, copy)
    result = func(*args, **kwargs)
    try:
        other = func(*other_args, **other_kwargs)
    except RuntimeError:
        return result
    pairs = [(tensor, copies[key]) for key, tensor in written.items()]
    for mine, its in (*pairs, *zip(tree_leaves(result), tree_leaves(other), strict=True)):
        if id(mine) not in written and not _is_plain(mine):
            continue
        if _is_plain(its) and mine.shape == restored(its).shape:
            mine.copy_(restored(its))
    return result


@contextlib.contextmanager
def other_kernels() -> Iterator[None]:
    """Within it, eager takes scalar loops, PyTorch's own products and convolutions, and attention by its formula. Flags are as
    before after it."""
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=False), sdpa_kernel(SDPBackend.MATH), StridedOperands():
        yield


def scalar_loops() -> StridedOperands:
    """Within it, eager's elementwise operators take scalar loops."""
    return StridedOperands(elementwise=True)


# By name, in the order in which they are asked.
OTHERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "other kernels": other_kernels,
    "scalar loops": scalar_loops,
    "vector loops": DenseOperands,
}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What the schema says of each argument that is given, and the argument."""
    arguments = func._schema.arguments
    yield from zip(arguments, args, strict=False)
    yield from ((argument, kwargs[argument.name]) for argument in arguments if argument.name in kwargs)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    unsaid = [args[position] for position in _WRITES_UNSAID.get(func._schema.name, ())]
    said = [value for argument, value in _arguments(func, args, kwargs) if _is_written(argument)]
    return _tensors([*unsaid, *said])


def _are_apart(written: Mapping[int, torch.Tensor], operands: list[torch.Tensor]) -> bool:
    """Whether all operands are plain, or parameters, and none lies in the memory of another one that is written."""
    if not all(_is_plain(tensor.detach()) for tensor in operands):
        return False
    everything = {id(tensor): tensor.untyped_storage().data_ptr() for tensor in operands}
    return all(key == other or everything[key] != place for key in written for other, place in everything.items())


def _common_shape(tensors: list[torch.Tensor]) -> tuple[int, ...] | None:
    """The shape to which all are broadcast, or None."""
    steps = itertools.zip_longest(*(reversed(tensor.shape) for tensor in tensors), fillvalue=1)
    sizes = [set(step) - {1} for step in steps]
    return None if any(len(step) > 1 for step in sizes) else tuple(next(iter(step), 1) for step in reversed(sizes))


def _is_of_lists(func: Any) -> bool:
    return func._schema.name.startswith("aten::_foreach_")


@functools.cache
def _is_elementwise(func: Any) -> bool:
    """Whether an operator, functional or with results that it writes to operands, computes each element by itself."""
    schema = getattr(func, "_schema", None)
    if schema is None or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if _is_of_lists(func):
        return schema.name.removesuffix("_") not in _NOT_ELEMENTWISE
    functional = func if _is_functional(func) else _without_writes(func)
    return functional is not None and (
        torch.Tag.pointwise in functional.tags or functional._schema.name in _ELEMENTWISE
    )


def _without_writes(func: Any) -> Any:
    """The functional operator of the arguments of one that writes to its first or to `out`; None if there is none."""
    own = [_declaration(argument) for argument in func._schema.arguments if not argument.is_out]
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
    for name in () if packet is None else packet.overloads():
        overload = getattr(packet, name)
        if _is_functional(overload) and [_declaration(argument) for argument in overload._schema.arguments] == own:
            return overload
    return None


def _declaration(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _converted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Real operands of an elementwise operator in the dtype that it computes in: what it converts itself has no gaps."""
    dtypes = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()}
    is_mixed = dtypes == {torch.float32, torch.float64}
    if not is_mixed or torch.Tag.pointwise not in func.tags:
        return args, kwargs
    return map_tensors((args, kwargs), lambda tensor: tensor.double() if tensor.dim() else tensor)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second one in memory; tensors that are not plain stay as they are."""
    if not _is_plain(tensor) or not tensor.dim():
        return tensor
    with torch.no_grad():
        copied = tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)
    return copied.detach().requires_grad_(tensor.requires_grad)


def _dense_copy(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The same values side by side in memory, broadcast where the shape asks for it. Numbers of no dimension stay."""
    if not _is_plain(tensor) or not tensor.dim():
        return tensor
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    if tensor.dim() <= len(shape) and all(size in (1, wanted) for size, wanted in sizes):
        tensor = tensor.expand(shape)
    return tensor.clone(memory_format=torch.contiguous_format)


def _whole_vectors(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """`_dense_copy` in one dimension, the last number repeated until all are in whole vectors."""
    dense = _dense_copy(tensor, shape)
    if not _is_plain(dense) or not dense.numel() or dense.shape != shape:
        return dense
    flat = dense.reshape(-1)
    return torch.cat([flat, flat[-1:].expand(-flat.numel() % _WHOLE_VECTORS)])


def _without_padding(result: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    is_padded = result.shape == (count + -count % _WHOLE_VECTORS,)
    return result[:count].reshape(shape) if is_padded else result


def _counts_its_elements(func: Any) -> bool:
    """Losses: their means have a share for each element."""
    return any(argument.name == "reduction" for argument in func._schema.arguments)


def _is_plain(value: Any) -> bool:
    is_strided = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested
    return is_strided and not value.is_quantized


def _is_functional(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and schema.name.startswith("aten::")
        and schema.name not in _NEEDS_ITS_STRIDES
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(value.alias_info is None for value in (*schema.arguments, *schema.returns))
    )
