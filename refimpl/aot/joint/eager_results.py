"""A function mode that gives calls of a traced program eager's results where fake kernels give others.

It also refuses calls that a graph cannot represent: `detach_` of a tensor with views, `retain_grad` of a non-leaf.

Counterpart: none; torch's traces keep the results of the fake kernels, whose copies and strides differ from eager's, and have
products of the other factors as gradients of `prod`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    DispatchMode,
    function_of,
    is_functorch_wrapped,
    pytree,
    running_autograd_node,
)
from refimpl.aot.analysis.autograd_graph import history_of, steps_behind
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.decompositions.layouts import LAID_OUT, is_pooled_without_gradient, laid_out
from refimpl.trace.eager_facts import is_known
from refimpl.trace.layouts import Layout, elementwise_strides, empty_like_strides
from refimpl.trace.tracker import TrackerState

_FUNCTIONAL_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_TENSOR_SPLIT = (torch.tensor_split, torch.Tensor.tensor_split)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
# Functions whose results may have other strides than in eager, or be views where eager's own their memory.
_UNLIKE_EAGER = frozenset([*LAID_OUT, *_PRODUCTS, _FUNCTIONAL_ATTENTION])
_ASSIGN = torch.Tensor.__setitem__
_GRADIENTS = (torch.autograd.grad, torch.Tensor.backward)
_DETACHING = (torch.detach_, torch.Tensor.detach_)
_STORAGE = torch.Tensor.untyped_storage

_STEPS_OF_EXTREMA = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")  # of whole tensors


class EagerResultsMode(TorchFunctionMode):
    """Gives calls of torch functions eager's results.

    `tensor_split` reads the numbers in its tensor of indices. Strides are those of refimpl.trace.decompositions.layouts.

    on_own: called with results that own their memory in eager and are views in a trace.
    tracker: of the trace; it knows the views of a tensor. `detach_` of a tensor with views raises UnsupportedByRefimpl: whether
    a view keeps its history in eager depends on when its `grad_fn` was last read.
    reads_storages: whether the program asked for the storage of a tensor so far, which no operator does.
    """

    def __init__(self, on_own: Callable[[torch.Tensor], None], tracker: TrackerState) -> None:
        super().__init__()
        self._on_own = on_own
        self._tracker = tracker
        self.reads_storages = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _STORAGE:
            self.reads_storages = True
        if func in _DETACHING and args:
            _refuse_detached_base(args[0], self._tracker)
        if func in _TENSOR_SPLIT and any(isinstance(value, torch.Tensor) for value in (*args[1:2], *kwargs.values())):
            args, kwargs = _with_numbers(*args, **kwargs)
        if func in _GRADIENTS:
            with eager_gradients(_differentiated(*args, **kwargs)):
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func not in _UNLIKE_EAGER:
            return result
        result = laid_out(func, args, kwargs, result)
        if _is_computed(func, args, result):
            self._on_own(result)
        return result


def _is_computed(func: Any, args: Any, result: Any) -> bool:
    """Whether eager's kernel returns a new tensor where the fake kernel returns a view."""
    if func is _FUNCTIONAL_ATTENTION and isinstance(result, torch.Tensor):
        return result.device.type == "cpu"
    if func in _PRODUCTS and len(args) == 2:
        return [value.dim() for value in args if isinstance(value, torch.Tensor)] == [1, 2]
    return is_pooled_without_gradient(func, result)


def _differentiated(outputs: Any = (), *_: Any, **named: Any) -> list[torch.Tensor]:
    """The tensors among the first argument of torch.autograd.grad, or of Tensor.backward."""
    return [value for value in pytree.tree_leaves(outputs) if isinstance(value, torch.Tensor)]


def _with_numbers(
    input: Any, places: Any = None, *others: Any, tensor_indices_or_sections: Any = None, **named: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `tensor_split` with numbers in place of the tensor of indices: the C++ kernel would read its memory."""
    given = tensor_indices_or_sections if places is None else places
    if isinstance(given, torch.Tensor) and given.dtype is torch.int64 and given.dim() < 2:
        given = given.item() if given.dim() == 0 else [place.item() for place in given.unbind()]
    return (input, given, *others), named


@contextlib.contextmanager
def eager_gradients(outputs: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within, a backward from these outputs is recorded with eager's gradients."""
    steps = steps_behind(outputs)
    has_extrema = any(step.name() in _STEPS_OF_EXTREMA for step in steps)
    with eager_layouts(steps), _EagerGradientsMode() if has_extrema else contextlib.nullcontext():
        yield


class _EagerGradientsMode(DispatchMode):
    """Fills the gradient of `x.max()`, `x.min()` or `x.median()` into contiguous zeros, as eager does on the CPU.

    On CUDA, and for fake tensors on any device, autograd multiplies it by a mask, which makes nan of an infinite gradient.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mul.Tensor and _is_masked_gradient(*args[:2]):
            mask, gradient = args
            return gradient.new_zeros(mask.shape).masked_fill(mask, gradient)
        return func(*args, **(kwargs or {}))


def _is_masked_gradient(mask: Any, gradient: Any) -> bool:
    running = running_autograd_node()
    is_mask = isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and mask.device.type != "cuda"
    return is_mask and running is not None and running.name() in _STEPS_OF_EXTREMA


class ScalarMasksMode(TorchFunctionMode):
    """`x[mask] = y`, where the mask is a 0-dimensional bool tensor, recorded as `x.copy_(torch.where(mask, y, x))`.

    Python's indexing reads the value of such a mask, which a trace does not know. A `y` of another dtype or device is left to
    Python's indexing, which raises the error.
    Counterpart: none; torch's dynamo sees such an assignment before Python's indexing reads the mask
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ASSIGN and _is_mask(args[1]):
            target, mask, value = args
            if not isinstance(value, torch.Tensor):
                value = torch.full_like(target.detach(), value)
            if value.dtype is target.dtype and value.device == target.device:
                target.copy_(torch.where(mask, _without_leading_ones(value, target.dim()), target))
                return None
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype is torch.bool and index.dim() == 0


def _without_leading_ones(value: torch.Tensor, rank: int) -> torch.Tensor:
    while value.dim() > rank and value.shape[0] == 1:
        value = value[0]
    return value


# Calls that a graph cannot represent. After `detach_` of a base its views keep their history, but views remade from the base
# have none. The retained gradient of a result sums over all its uses, and the graph does not see uses after the call.


def _refuse_detached_base(base: torch.Tensor, tracker: TrackerState) -> None:
    if _is_made_in_program(base) and any(t._base is base and t.requires_grad for t, _ in tracker.items()):
        raise UnsupportedByRefimpl(
            seen="detach_() of a tensor with a history, and with views that have it too",
            supported="detach_() of tensors without views",
            do="use detach(), or compile the code before it separately",
        )


def _is_made_in_program(tensor: torch.Tensor) -> bool:
    """Whether its history was made by the program, and not only by the caller."""
    step: Any = history_of(tensor)
    return step is not None and not getattr(function_of(step), "begins_history", False)


def refuse_retained(values: Iterable[Any]) -> None:
    """Raises UnsupportedByRefimpl for a non-leaf result or argument that retains its gradient."""
    if any(isinstance(value, torch.Tensor) and value.retains_grad for value in values):
        raise UnsupportedByRefimpl(
            seen="retain_grad() of a tensor with a history, in the program",
            supported="retain_grad() of leaves, and of results after the call",
            do="use refimpl.compile, which breaks the graph there, or return the tensor and compile what follows separately",
        )


# Backward formulas that autograd replaces under a dispatch mode: here the trace records eager's values and strides. In eager,
# `masked_select` and a few others write their gradient into a `zeros_like` of the argument, and `prod` divides by its factors
# unless one of them is 0. Under a dispatch mode, autograd composes other operators instead: it multiplies the other factors,
# which stays finite where eager's quotient does not. Whether a factor of `prod` is 0 is known only at run time, so the graph
# computes eager's values with `torch.where`; its strides are those of the quotient.

Gradients = tuple[torch.Tensor | None, ...]


def eager_product(step: Any, gradients: Gradients, incoming: Gradients) -> Gradients:
    """The gradient of `prod`: a quotient if no factor is 0, else the recorded gradient.

    If a product over all dimensions has two factors of 0, the gradient is zeros unless it is to be differentiated again.
    """
    x, result = saved(step, "self"), saved(step, "result")
    recorded, gradient = gradients[0], incoming[0]
    if x is None or result is None or recorded is None or gradient is None or x.dim() == 0 or is_functorch_wrapped(x):
        return gradients
    x, result, given = step._saved_self.to(gradient.dtype), step._saved_result, recorded.dtype  # these have a history
    dim = None if step.name() == "ProdBackward0" else signed(step._saved_dim)
    if dim is not None and not step._saved_keepdim:
        result, gradient = result.unsqueeze(dim), gradient.unsqueeze(dim)
    zeros = x == 0
    has_zeros = zeros.any()
    if torch.is_grad_enabled():  # the branch not taken computes with ones, so that its own gradient is finite
        flat, along = (x.reshape(-1), 0) if dim is None else (x, dim)
        others = _products_of_others(torch.where(has_zeros, flat, 1), along).view(x.shape)
        recorded = torch.where(has_zeros, gradient, 0) * others.conj()
        factors = torch.where(has_zeros, 1, step._saved_self)
        product = factors.prod(dtype=x.dtype) if dim is None else factors.prod(dim, keepdim=True, dtype=x.dtype)
        taken = torch.where(
            has_zeros, recorded, torch.where(has_zeros, 0, gradient) * (product / factors.to(x.dtype)).conj()
        )
    else:
        if dim is None:
            recorded = torch.where(zeros.sum() > 1, 0, recorded)
        taken = torch.where(has_zeros, recorded, gradient * (result / x).conj())
    return (taken.to(given),)


def eager_running_products(step: Any, gradients: Gradients, incoming: Gradients) -> Gradients:
    """The gradient of `cumprod` along its dimension.

    Before the first factor of 0 it is a sum divided by the factor; at that factor it is the product of the others; after it, 0.
    If the gradient is to be differentiated again: the sums if no factor is 0, else the recorded gradient.
    """
    x, result = saved(step, "self"), saved(step, "result")
    recorded, gradient = gradients[0], incoming[0]
    if x is None or result is None or recorded is None or gradient is None or is_functorch_wrapped(x):
        return gradients
    dim = signed(step._saved_dim)
    if x.dim() == 0 or x.shape[dim] == 1 or x.numel() == 0:
        return gradients
    x, result, gradient = step._saved_self, step._saved_result, gradient.to(x.dtype)
    zeros = x == 0
    if torch.is_grad_enabled():
        has_zeros = zeros.any()
        factors = torch.where(has_zeros, 1, x)
        products = factors.cumprod(dim, dtype=result.dtype).conj()
        total = _sums_from_behind(torch.where(has_zeros, 0, gradient) * products, dim)
        taken = torch.where(has_zeros, recorded, total / factors.conj())
    else:
        count = zeros.cumsum(dim)
        is_before, is_first = count == 0, zeros & (count == 1)
        products = torch.where((count == 1) & ~zeros, x.conj(), 1).cumprod(dim)
        one = result.new_ones(()).expand_as(result.narrow(dim, 0, 1))
        to_here = torch.cat([one, result.narrow(dim, 0, x.shape[dim] - 1)], dim).conj()
        of_first = (products * torch.where(count == 1, gradient, 0)).sum(dim, keepdim=True) * to_here
        total = _sums_from_behind(torch.where(is_before, result.conj() * gradient, 0), dim)
        taken = torch.where(is_before, total / x.conj(), torch.where(is_first, of_first, 0))
    return (taken.to(recorded.dtype),)


def _sums_from_behind(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


def _products_of_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """For every element, the product of all other elements along a dimension."""
    one, count = x.new_ones(()).expand_as(x.narrow(dim, 0, 1)), x.shape[dim] - 1
    before = torch.cat([one, x.narrow(dim, 0, count)], dim).cumprod(dim)
    behind = torch.cat([x.narrow(dim, 1, count), one], dim).flip(dim).cumprod(dim).flip(dim)
    return before * behind


def saved(step: Any, name: str) -> torch.Tensor | None:
    """A saved tensor of an autograd node; None if hooks have packed it."""
    kept = getattr(step, f"_raw_saved_{name}")
    is_packed = getattr(kept, "unpack_hook", None) is not None  # not every torch tells
    return None if is_packed or not isinstance(kept.data, torch.Tensor) else kept.data


def signed(dim: int) -> int:
    """A saved dimension as a signed integer. Autograd shows negative ones as unsigned 64-bit integers."""
    return dim - (1 << 64) if dim >> 63 else dim


Strides = tuple[int, ...] | None  # None: keep the recorded strides
Rule = Callable[[Any, Gradients, Gradients], Sequence[Strides]]


@contextlib.contextmanager
def eager_layouts(steps: Iterable[Any]) -> Iterator[None]:
    """Within, these autograd nodes return gradients with eager's values and strides."""
    known = [(step, _RULES[step.name()]) for step in steps if step.name() in _RULES]
    handles = [step.register_hook(functools.partial(_laid_out, step, rule)) for step, rule in known]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _laid_out(step: Any, rule: Rule, gradients: Gradients, incoming: Gradients) -> Gradients:
    if step.name() in _NUMBERS:
        gradients = _NUMBERS[step.name()](step, gradients, incoming)
    if not all(is_known(size) for gradient in gradients if gradient is not None for size in gradient.shape):
        return gradients
    return tuple(map(_in_layout, gradients, rule(step, gradients, incoming)))


def _in_layout(gradient: torch.Tensor | None, strides: Strides) -> torch.Tensor | None:
    if gradient is None or strides is None or gradient.numel() == 0 or gradient.stride() == strides:
        return gradient
    memory = torch.empty_strided(gradient.shape, strides, dtype=gradient.dtype, device=gradient.device)
    return memory.copy_(gradient)


def _of_selection(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """Those of `zeros_like(argument)`; unknown if the mask is larger, since autograd then sums the gradient."""
    left: list[Strides] = [None] * len(gradients)
    x, mask = saved(step, "self"), saved(step, "mask")
    if x is None or mask is None or not all(map(is_known, (*x.shape, *mask.shape))):
        return left
    if tuple(torch.broadcast_shapes(x.shape, mask.shape)) == tuple(x.shape):
        left[0] = empty_like_strides(tuple(x.shape), x.stride())
    return left


def _of_product(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """Those of `tangent * (result / x)`."""
    x, result, gradient = saved(step, "self"), saved(step, "result"), incoming[0]
    if x is None or result is None or gradient is None or x.dim() == 0:
        return (None,) * len(gradients)
    shape = tuple(x.shape)
    is_dropped = step.name() == "ProdBackward1" and not step._saved_keepdim
    dim = signed(step._saved_dim) if is_dropped else None
    steps = tuple(x.stride()) if x.dtype is gradient.dtype else empty_like_strides(shape, x.stride())
    quotient = elementwise_strides(shape, [_with_dim(result, dim, len(shape)), (shape, steps)])
    return (elementwise_strides(shape, [_with_dim(gradient, dim, len(shape)), (shape, quotient)]),)


def _of_running_products(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """Those of contiguous sums divided by the argument. Along a dimension of size 1 the tangent is returned unchanged."""
    x = saved(step, "self")
    if x is None or x.dim() == 0 or x.numel() == 0 or x.shape[signed(step._saved_dim)] == 1:
        return (None,) * len(gradients)
    shape = tuple(x.shape)
    sums = torch.empty(shape, device="meta").stride()
    return (elementwise_strides(shape, [(shape, sums), (shape, tuple(x.stride()))]),)


def _with_dim(x: torch.Tensor, dim: int | None, count: int) -> Layout:
    """The shape and strides with a dimension of size 1 put back at `dim`. `count`: the number of dimensions with it."""
    shape, strides = tuple(x.shape), tuple(x.stride())
    if dim is None:
        return shape, strides
    at = dim % count
    return (*shape[:at], 1, *shape[at:]), (*strides[:at], 1, *strides[at:])


def _of_reflections(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """Those of `zeros_like` of the arguments that hold the reflections; unknown for the matrix they are applied to."""
    is_product = step.name() == "LinalgHouseholderProductBackward0"
    arguments = [saved(step, name) for name in (("input", "tau") if is_product else ("self", "input2"))]
    strides = [None if x is None else empty_like_strides(tuple(x.shape), x.stride()) for x in arguments]
    return strides if is_product else [*strides, None]


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "MaskedSelectBackward0": _of_selection,
        "ProdBackward0": _of_product,
        "ProdBackward1": _of_product,
        "CumprodBackward0": _of_running_products,
        "LinalgHouseholderProductBackward0": _of_reflections,
        "OrmqrBackward0": _of_reflections,
    }
)
_NUMBERS: Mapping[str, Callable[[Any, Gradients, Gradients], Gradients]] = MappingProxyType(
    {"ProdBackward0": eager_product, "ProdBackward1": eager_product, "CumprodBackward0": eager_running_products}
)
