"""Run eager by its other kernels: scalar loops instead of vector loops or the reverse, and native kernels instead of mkldnn.

Kernels of one operator may disagree on the sign of a zero: the vector loop of softshrink returns +0 for -0, the scalar loop -0,
and an element's position decides which loop computes it. They may disagree on more: the vector loop of a float64 remainder
returns NaN where the quotient overflows, the scalar loop the remainder; mkldnn's bfloat16 products flush denormals to zero;
the gradient of hardswish at NaN is NaN by the vector loop, and the tangent by the scalar loop; attention on a CPU returns 0 for
two scores that are NaN, and NaN for sixteen.

Scalar loops compute operands with gaps in memory, operands that are broadcast along the last dimension, and the elements behind
the last whole vector, which are all elements of a short tensor. So copies of the operands with other strides, or padded to whole
vectors, select the other loop.

For gradients only the loops of elementwise operators are exchanged. Eager has a known bug in a reduction there: a kernel of the
backward of batch norm reads the gaps of a strided weight as numbers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracle.program.inputs import map_tensors
from oracle.reruns.composite import call_parts, is_composite

_NEEDS_ITS_STRIDES = frozenset(["aten::_unsafe_view"])  # a view, although its schema does not declare that
_UNDECLARED_WRITES = {
    "aten::native_batch_norm": (3, 4)
}  # positions of mutated arguments that the schema does not declare
_WHOLE_VECTORS = 128  # a multiple of the elements that a vector loop takes at once, at most two vectors of 64 bytes


class StridedOperands(TorchDispatchMode):
    """Under this mode, functional aten operators, all or the elementwise ones, read copies of their operands with gaps in memory.

    So do elementwise operators that mutate. Views, other mutating operators and random ones get the tensors themselves. Results
    have the strides that they have without the mode, since `as_strided` or `is_contiguous` would otherwise change the program.
    The mode affects the backward pass too if that runs in it.
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
    """Under this mode, elementwise aten operators read contiguous copies of their operands, expanded and padded to whole vectors.

    As with StridedOperands, results have the strides that they have without the mode, and the backward pass is affected. Foreach
    operators get the tensors themselves.
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
    """The operator's result, and the arguments it mutates, with the values that it computes from copies of its operands.

    `restored` turns a result for copies into one of the shape for the operands.

    The values for the operands themselves are kept if a mutated argument shares memory with another one or is not plain, or if
    the operator raises for the copies: `_linalg_check_errors` needs a contiguous batch.
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
    """Within it, eager uses scalar loops, PyTorch's own matrix products and convolutions, and the math backend of attention."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="TF32 acceleration on top of oneDNN"
        )  # the flag is set to what it was
        flags = torch.backends.mkldnn.flags(enabled=False, allow_tf32=False)
        with flags, sdpa_kernel(SDPBackend.MATH), StridedOperands():
            yield


def scalar_loops() -> StridedOperands:
    """Within it, eager's elementwise operators use scalar loops."""
    return StridedOperands(elementwise=True)


# By name, in the order in which witnesses use them.
OTHERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "other kernels": other_kernels,
    "scalar loops": scalar_loops,
    "vector loops": DenseOperands,
}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each argument of a call, with its declaration in the schema."""
    arguments = func._schema.arguments
    yield from zip(arguments, args, strict=False)
    yield from ((argument, kwargs[argument.name]) for argument in arguments if argument.name in kwargs)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    unsaid = [args[position] for position in _UNDECLARED_WRITES.get(func._schema.name, ())]
    said = [value for argument, value in _arguments(func, args, kwargs) if _is_written(argument)]
    return _tensors([*unsaid, *said])


def _are_apart(written: Mapping[int, torch.Tensor], operands: list[torch.Tensor]) -> bool:
    """Whether all operands are plain tensors or parameters, and no mutated one shares its storage with another one."""
    if not all(_is_plain(tensor.detach()) for tensor in operands):
        return False
    everything = {id(tensor): tensor.untyped_storage().data_ptr() for tensor in operands}
    return all(key == other or everything[key] != place for key in written for other, place in everything.items())


def _common_shape(tensors: list[torch.Tensor]) -> tuple[int, ...] | None:
    """The tensors' broadcast shape, or None."""
    steps = itertools.zip_longest(*(reversed(tensor.shape) for tensor in tensors), fillvalue=1)
    sizes = [set(step) - {1} for step in steps]
    return None if any(len(step) > 1 for step in sizes) else tuple(next(iter(step), 1) for step in reversed(sizes))


def _is_of_lists(func: Any) -> bool:
    return func._schema.name.startswith("aten::_foreach_")


@functools.cache
def _is_elementwise(func: Any) -> bool:
    """Whether an operator (functional, in-place or out) is elementwise."""
    schema = getattr(func, "_schema", None)
    if schema is None or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if _is_of_lists(func):
        return _is_elementwise(_of_one_tensor(func))
    functional = func if _is_functional(func) else _without_writes(func)
    return functional is not None and (torch.Tag.pointwise in functional.tags or _computes_by_element(functional))


# Not all elementwise operators have the tag `pointwise`: the gradients of most activations and losses do not. Their schemas and
# shapes do not tell them from operators such as `_softmax_backward_data`, which reduce. So the kernel is asked.

_TRIED = (1, 2, 8)  # shape of the operands; `squeeze_copy` shows that it is not elementwise
_STEP = 0.125


def _computes_by_element(func: Any) -> bool:
    """Whether each element of each result is the same function of the operands' elements at its place, and no copy of one.

    The kernel runs on numbers from -1 to 1, without and with a reduction if it has that argument. Operators with other
    integers, which may be dimensions, and with lists are not asked: they are not elementwise.
    """
    if is_composite(func) or not func._schema.returns or any(str(one.type) != "Tensor" for one in func._schema.returns):
        return False
    try:
        with torch.no_grad():
            return all(_is_by_element(func, reduction) for reduction in (0, 1))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False


def _is_by_element(func: Any, reduction: int) -> bool:
    given = []
    for argument in func._schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor":
            given.append(_numbers(len(given)))
        elif argument.name == "reduction":
            given.append(reduction)
        elif kind in ("int", "SymInt", "List[int]", "List[SymInt]"):
            return False
        elif argument.has_default_value():
            break
        elif kind in ("float", "number", "bool"):
            given.append(False if kind == "bool" else 0.25 * len(given))  # different numbers, as bounds must be
        else:
            return False
    operands = [at for at, value in enumerate(given) if isinstance(value, torch.Tensor)]

    def results(*values: Any) -> list[torch.Tensor]:
        return _tensors(func(*values))

    first = results(*given)
    mirrored = results(*(value.flip(2) if isinstance(value, torch.Tensor) else value for value in given))
    if not all(one.shape == _TRIED and one.dtype is torch.float32 for one in first):
        return False
    if any(torch.equal(one, given[at]) for one in first for at in operands):
        return False
    if not all(torch.equal(one.flip(2), other) for one, other in zip(first, mirrored, strict=True)):
        return False
    changes = False
    for at in operands:
        for place in range(given[at].numel()):
            moved = given[at].clone()
            moved.view(-1)[place] += _STEP
            for one, other in zip(first, results(*given[:at], moved, *given[at + 1 :]), strict=True):
                changed = (one != other).flatten().nonzero().flatten().tolist()
                if changed not in ([], [place]):
                    return False
                changes = changes or bool(changed)
    return changes


def _numbers(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(_TRIED, generator=generator, dtype=torch.float32, device="cpu") * 2 - 1


def _of_one_tensor(func: Any) -> Any:
    """The operator that a foreach operator applies to each tensor; None if there is none that takes its arguments."""
    name = func._schema.name.removeprefix("aten::_foreach_").removesuffix("_")
    packet = getattr(torch.ops.aten, name, None)
    count = sum(not argument.is_out for argument in func._schema.arguments)
    for overload in () if packet is None else packet.overloads():
        found = getattr(packet, overload)
        least = sum(not argument.has_default_value() for argument in found._schema.arguments)
        if _is_functional(found) and least <= count <= len(found._schema.arguments):
            return found
    return None


def _without_writes(func: Any) -> Any:
    """The functional overload of an in-place or out operator; None if there is none."""
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
    """Operands of an elementwise operator, converted to its computation dtype: it would convert them to copies without gaps."""
    dtypes = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()}
    is_mixed = dtypes == {torch.float32, torch.float64}
    if not is_mixed or torch.Tag.pointwise not in func.tags:
        return args, kwargs
    return map_tensors((args, kwargs), lambda tensor: tensor.double() if tensor.dim() else tensor)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a plain tensor with a gap after each element; other tensors are returned as they are."""
    if not _is_plain(tensor) or not tensor.dim():
        return tensor
    with torch.no_grad():
        copied = tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)
    return copied.detach().requires_grad_(tensor.requires_grad)


def _dense_copy(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A contiguous copy of a plain tensor, expanded to the shape; 0-d and other tensors are returned as they are."""
    if not _is_plain(tensor) or not tensor.dim():
        return tensor
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    if tensor.dim() <= len(shape) and all(size in (1, wanted) for size, wanted in sizes):
        tensor = tensor.expand(shape)
    return tensor.clone(memory_format=torch.contiguous_format)


def _whole_vectors(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """`_dense_copy`, flattened, with the last number repeated until the length is a multiple of a vector's."""
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
    """Whether the operator is a loss with a `reduction`: its mean divides by the number of elements, so they are not padded."""
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
