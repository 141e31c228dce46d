"""Runs ops on fake tensors, corrects strides and errors that differ from eager's, and caches the results.

Ops whose output shapes follow from the arguments although upstream's fake kernels raise or ask for data have rules of their own
(`known_result`). A rule returns NotImplemented for calls whose shapes do depend on data; then upstream's kernel runs.

Counterpart: torch/_subclasses/fake_tensor.py FakeTensorMode._cached_dispatch_impl; torch/_decomp/decompositions.py
  mse_loss_backward, smooth_l1_loss_backward, huber_loss_backward, native_group_norm_backward; torch/_meta_registrations.py
  meta_index_put, _meta_grouped_mm_common; torch/_subclasses/fake_impls.py (its refusals of ops with
  Tag.dynamic_output_shape)
Differs: the key of the cache is made of signatures that the tracer computes once per tensor, not once per use. Symbolic sizes
are in it by their expressions, so that the cache serves symbolic traces as well.

A cached result is metadata only: whether an output is an argument, a view of one, or a new tensor, and its geometry. The guards
that the first call recorded cover the second, because its key has the same expressions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch

from refimpl._torch import (
    SYMBOLIC_TYPES,
    DispatchMode,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    WeakTensorKeyDictionary,
    inside_fake_kernel,
    pytree,
    registered_effect,
    set_bits,
    storage_key,
)
from refimpl.errors import WrongFakeKernel
from refimpl.trace.dtypes import without_float8_scalars
from refimpl.trace.eager_facts import hint_of, is_known, kernel_results, result_strides
from refimpl.trace.layouts import expanded_strides, expression_of, is_same_shape, viewed_strides
from refimpl.trace.tracker import TrackerState

aten = torch.ops.aten
_UNREPEATABLE_TAGS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view)
_NAMESPACES = ("aten", "prims")  # fake kernels of custom ops may do anything
_NATIVE_DROPOUT = aten.native_dropout.default
# Backward ops of means. Their fake kernels divide by a number of elements, which is 0 for empty tensors; eager's do not divide.
_OF_MEANS = frozenset(
    getattr(aten, name).default for name in ("huber_loss_backward", "mse_loss_backward", "smooth_l1_loss_backward")
)
_GROUPS = aten.native_group_norm_backward.default  # its fake kernel divides as well
_REDUCTION, _MEAN, _SUM = 3, 1, 2
_LIMIT = 50_000  # most cached results for static shapes, over all traces of a process

_MISS = object()


def _dropped_out(result: tuple[FakeTensor, FakeTensor], given: FakeTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and mask of native_dropout as in eager: values are a new tensor, and the CPU's mask of an empty input is no bool."""
    values, mask = result
    if values is given:
        values = aten.empty_like.default(given)
    if given.fake_device.type == "cpu" and type(given.numel()) is int and given.numel() == 0:
        mask = aten.empty_like.default(given)
    return values, mask


def _without_division(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with reduction "sum" in place of "mean", whose fake gradient is the same."""
    if func in _OF_MEANS and len(args) > _REDUCTION and args[_REDUCTION] == _MEAN:
        return (*args[:_REDUCTION], _SUM, *args[_REDUCTION + 1 :])
    return args


def _of_empty_groups(func: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor | None, ...] | None:
    """The gradients of a group norm's input (N, C, *), weight (C,) and bias (C,), by its output_mask, if the input is empty;
    None for other inputs and other ops."""
    if func is not _GROUPS:
        return None
    _, x, _, _, weight, _, channels, _, _, mask = args
    if not isinstance(x, FakeTensor) or not all(map(is_known, x.shape)) or x.numel() != 0:
        return None
    dtype = x.dtype if weight is None else weight.dtype
    results = ((x.shape, x.dtype), ((channels,), dtype), ((channels,), dtype))
    return tuple(
        x.new_empty(shape, dtype=dtype) if is_asked else None
        for (shape, dtype), is_asked in zip(results, mask, strict=True)
    )


@functools.cache
def _has_effect(func: Any) -> bool:
    return registered_effect(func) is not None


@functools.cache
def _out_names(func: Any) -> tuple[str, ...]:
    """Names of the `out=` arguments."""
    if not isinstance(func, OpOverload) or not func._schema.is_mutable:
        return ()
    return tuple(a.name for a in func._schema.arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write)


@functools.cache
def _names_in_place(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments that an op writes to without changing their sizes."""
    if not isinstance(func, OpOverload) or not func._schema.is_mutable or torch.Tag.inplace_view in func.tags:
        return ()
    if _is_about_storage(func):
        return ()
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (place, a.name)
        for place, a in arguments
        if not a.kwarg_only and a.alias_info and a.alias_info.is_write and str(a.type) == "Tensor"
    )


def _written_in_place(func: Any, args: Any, kwargs: Any) -> list[Any]:
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in _names_in_place(func)]


def _layouts(tensors: list[Any]) -> list[tuple[FakeTensor, Any, Any, Any]]:
    """Sizes, strides and offset of each strided fake tensor."""
    strided = [t for t in tensors if type(t) is FakeTensor and t.layout is torch.strided and not t.is_nested]
    return [(tensor, tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in strided]


def _without_values(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """Call an op that has side effects on fakes without their constants, with which the op would really run."""
    known = [t for t in tensors if isinstance(t, FakeTensor) and t.constant is not None]
    values = [t.constant for t in known]
    try:
        for tensor in known:
            tensor.constant = None
        return func(*args, **kwargs)
    finally:
        for tensor, value in zip(known, values, strict=True):
            tensor.constant = value


@dataclass(frozen=True, slots=True)
class _Argument:
    """The output is the tensor argument at this position."""

    position: int


@dataclass(frozen=True, slots=True)
class _Made:
    """The output is a view of the tensor argument at `base`, or a fresh tensor if that is None."""

    base: int | None
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    is_conj: bool
    is_neg: bool


# Results for static shapes, shared by all traces. Results for symbolic sizes belong to one shape env, and so to one trace.
_STATIC_RESULTS: dict[Hashable, Any] = {}


class FakeKernelsState:
    """The fake kernels of one trace. `is_caching` is off if other dispatch modes are to see every call."""

    def __init__(self, fake_mode: FakeTensorMode, *, is_caching: bool = True) -> None:
        self.fake_mode = fake_mode
        self.is_caching = is_caching
        self._symbolic_results: dict[Hashable, Any] = {}
        self._repeatable: dict[Any, bool] = {}
        self._fakes = WeakTensorKeyDictionary()  # captured real tensor -> its fake and the signature of that

    def signature(self, tensor: torch.Tensor) -> Hashable:
        """The metadata of a tensor that a fake kernel can see; None if results of ops on it are not to be cached."""
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or tensor.is_quantized:
            return None
        if tensor.constant is not None or tensor.is_nested or tensor.fake_mode is not self.fake_mode:
            return None
        shape, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        is_symbolic = False
        numbers = (*shape, *stride, offset)
        for number in numbers:
            if type(number) is not int:
                is_symbolic = True
                numbers = tuple(expression_of(n) for n in numbers)
                break
        return is_symbolic, len(shape), numbers, tensor.dtype, tensor.fake_device, tensor.is_conj(), tensor.is_neg()

    def run(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], tracker: TrackerState) -> Any:
        """The op's result, from the cache if possible. `tensors` are the tensors among the arguments, in order."""
        if _has_effect(func):
            return _without_values(func, args, kwargs, tensors)
        if not self.is_caching or not self._is_repeatable(func):
            return self._call(func, args, kwargs)
        return self._cached(func, args, kwargs, tensors, tracker)

    def run_uncached(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The op's result, without the cache."""
        return func(*args, **kwargs) if _has_effect(func) else self._call(func, args, kwargs)

    def run_below_autograd(self, func: Any, args: Any, kwargs: Any, tracker: TrackerState) -> Any:
        """The result of an op called by autograd or by a composite op, whose tensors may not be tracked."""
        if not self._is_repeatable(func):
            return self._call(func, args, kwargs)
        tensors: list[torch.Tensor] = []
        append_tensors(args, tensors)
        append_tensors(kwargs, tensors)
        return self._cached(func, args, kwargs, tensors, tracker, is_below=True)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The fake kernel's result, with eager's strides."""
        check_sizes(func, args, kwargs)
        layouts = _layouts([kwargs.get(name) for name in _out_names(func)])
        empty = _of_empty_groups(func, args)
        if empty is not None:
            return empty
        written = _layouts(_written_in_place(func, args, kwargs))
        result = func(*without_float8_scalars(func, _without_division(func, args)), **kwargs)
        for tensor, shape, _, _ in written:
            if tensor.dim() != len(shape) or not is_same_shape(tensor.shape, shape):
                raise WrongFakeKernel(func, [tensor], [tensor.new_empty(shape)])
        for out, shape, stride, offset in layouts:
            if is_same_shape(out.shape, shape) and not is_same_shape(out.stride(), stride):
                out.as_strided_(shape, stride, offset)  # eager keeps the strides of an `out=` tensor of the right shape
        if func is _NATIVE_DROPOUT and type(result[0]) is FakeTensor:
            result = _dropped_out(result, args[0])
        if not layouts:
            asked = kernel_results(func, args, kwargs, result)
            if asked.real is not None:
                return self._corrected(func, result, asked.real)
            if asked.strides is not None:
                return self._with_all_strides(result, asked.strides)
        if type(result) is not FakeTensor or result.constant is not None:
            return result
        if (strides := viewed_strides(func, result.shape, args)) is not None:
            return self._view_with_strides(result, args[0], strides)
        is_given = any(result is argument for argument in (*args, *kwargs.values()))
        if not is_given and result.requires_grad and result.grad_fn is None:
            # Some Python kernels (pad) set requires_grad on their result; autograd does that.
            result = cast("FakeTensor", result.detach())
        if (strides := expanded_strides(func, result, args)) is not None:
            return self._view_with_strides(result, args[0], strides)
        return result

    def with_eager_strides(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """The result with the strides of the real kernel, if that can be run on trial operands (refimpl.trace.eager_facts)."""
        asked = result_strides(func, args, kwargs, result)
        return result if asked is None else self._with_all_strides(result, asked)

    def _corrected(self, func: Any, result: Any, real: Sequence[torch.Tensor]) -> Any:
        """The result with the shapes, strides and dtypes of the kernel's own, where the fake kernel is wrong about them.

        Raises WrongFakeKernel if a size is symbolic: the kernel's own size holds for this call only.
        """
        fakes = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if any(type(size) is not int for fake in fakes for size in fake.shape):
            raise WrongFakeKernel(func, fakes, real)
        remaining = iter(real)

        def corrected(fake: Any) -> Any:
            made = next(remaining)
            with inside_fake_kernel(self.fake_mode):
                meta = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
            return FakeTensor(self.fake_mode, meta, fake.fake_device)

        return pytree.tree_map_only(torch.Tensor, corrected, result)

    def _with_all_strides(self, result: Any, strides: Sequence[Any]) -> Any:
        """The result with these strides, one item for each tensor in it."""
        if type(result) in (tuple, list):
            remaining = iter(strides)
            return type(result)(
                self._with_strides(item, next(remaining)) if isinstance(item, torch.Tensor) else item for item in result
            )
        if type(result) is not FakeTensor or result.constant is not None:
            return result
        if result.requires_grad and result.grad_fn is None:  # set by a Python kernel, see _call
            result = result.detach()
        return self._with_strides(result, strides[0])

    def _with_strides(self, result: Any, strides: Any) -> Any:
        if strides is None or type(result) is not FakeTensor or strides == result.stride():
            return result
        with inside_fake_kernel(self.fake_mode):
            meta = torch.empty_strided(result.shape, strides, dtype=result.dtype, device="meta")
        return FakeTensor(self.fake_mode, meta, result.fake_device)

    def _view_with_strides(self, result: FakeTensor, base: torch.Tensor, strides: Any) -> FakeTensor:
        if type(base) is not FakeTensor or result.requires_grad or is_same_shape(strides, result.stride()):
            return result
        made = _Made(
            base=0, shape=tuple(result.shape), stride=strides, offset=result.storage_offset(), dtype=result.dtype,
            device=result.fake_device, is_conj=result.is_conj(), is_neg=result.is_neg(),
        )  # fmt: skip
        return self._make(made, [base])

    def _cached(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        tensors: list[torch.Tensor],
        tracker: TrackerState,
        *,
        is_below: bool = False,
    ) -> Any:
        signatures: list[Hashable] = []
        replaced: dict[int, FakeTensor] = {}
        for index, tensor in enumerate(tensors):
            if type(tensor) is FakeTensor:
                tracked = tracker.find(tensor)
                if tracked is None:
                    signature = self.signature(tensor) if is_below else None
                else:
                    signature = tracked.signature
            else:
                fake, signature = self._fake_of(tensor)
                if fake is not None:
                    replaced[id(tensor)] = tensors[index] = fake
            if signature is None:
                return self._call(func, args, kwargs)
            signatures.append(signature)
        if len(tensors) > 1:
            signatures.append(_sharing(tensors))
        if replaced:
            args, kwargs = _replace((args, kwargs), replaced)
        try:
            key, is_symbolic = _call_key(func, args, kwargs, signatures)
            results = self._symbolic_results if is_symbolic else _STATIC_RESULTS
            remembered = results.get(key, _MISS)
        except TypeError:  # an argument that has no hash, such as a generator
            return self._call(func, args, kwargs)
        if remembered is _MISS:
            result = self._call(func, args, kwargs)
            # A call that changed a signature (`out=` was resized) is not cached: it has to resize each time.
            is_kept = all(map(operator.eq, map(self.signature, tensors), signatures))
            remembered = _recipe(result, tensors) if is_kept else None
            if not is_symbolic and len(results) >= _LIMIT:
                results.clear()
            results[key] = remembered
            return result
        if remembered is None:  # no recipe could be made for the first result
            return self._call(func, args, kwargs)
        return self._repeat(remembered, tensors)

    def _fake_of(self, tensor: torch.Tensor) -> tuple[FakeTensor | None, Hashable]:
        """A captured tensor's fake, made once per trace, and its signature; None for types that the fake mode itself handles."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not self.fake_mode.allow_non_fake_inputs:
            return None, None
        known = self._fakes.get(tensor)
        if known is None:
            fake = self.fake_mode.from_tensor(tensor, static_shapes=True)
            known = self._fakes[tensor] = (fake, self.signature(fake))
        return known

    def _is_repeatable(self, func: Any) -> bool:
        known = self._repeatable.get(func)
        if known is None:
            known = self._repeatable[func] = (
                isinstance(func, OpOverload)
                and func.namespace in _NAMESPACES
                and not _is_about_storage(func)
                and not any(tag in func.tags for tag in _UNREPEATABLE_TAGS)
            )
        return known

    def _repeat(self, recipe: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if type(recipe) is _Argument:
            return tensors[recipe.position]
        if type(recipe) is _Made:
            return self._make(recipe, tensors)
        if recipe is None or type(recipe) is _Nothing:
            return None
        return type(recipe)(self._repeat(item, tensors) for item in recipe)

    def _make(self, made: _Made, tensors: Sequence[torch.Tensor]) -> FakeTensor:
        with inside_fake_kernel(self.fake_mode):
            base = None if made.base is None else tensors[made.base]
            if base is not None and base.dtype is made.dtype:
                meta = torch.as_strided(base, made.shape, made.stride, made.offset)
            elif base is not None:
                with torch.inference_mode(base.is_inference()):  # a view of an inference tensor is one
                    meta = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
                    meta.set_(base.untyped_storage(), made.offset, made.shape, made.stride)
            else:
                meta = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
            set_bits(meta, is_conj=made.is_conj, is_neg=made.is_neg)
        return FakeTensor(self.fake_mode, meta, made.device)


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The output is None."""


class CachingMode(DispatchMode):
    """Serves ops that arrive below autograd from the cache, while a pre-dispatch trace runs a call above autograd."""

    def __init__(self, kernels: FakeKernelsState, tracker: TrackerState) -> None:
        super().__init__()
        self._kernels = kernels
        self._tracker = tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._kernels.run_below_autograd(func, args, kwargs or {}, self._tracker)


class EagerLayoutsMode(DispatchMode):
    """Gives the results of ops on fake tensors, below autograd, the strides of eager's kernels.

    A higher-order operator runs as it does without this mode: its own fake implementation knows its results.
    """

    supports_higher_order_operators = True

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self._kernels = FakeKernelsState(fake_mode, is_caching=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            return func(*args, **(kwargs or {}))
        return self._kernels.run_uncached(func, args, kwargs or {})


def append_tensors(value: Any, tensors: list[torch.Tensor]) -> None:
    """Append all tensors in an op's arguments, in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            append_tensors(item, tensors)
    elif type(value) is dict:
        for item in value.values():
            append_tensors(item, tensors)


def _call_key(func: Any, args: Any, kwargs: Any, signatures: list[Hashable]) -> tuple[Hashable, bool]:
    key: list[Hashable] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    is_symbolic = _append_literals(args, key)
    for name, value in kwargs.items():
        key.append(name)
        is_symbolic |= _append_literals(value, key)
    key.extend(signatures)
    return tuple(key), is_symbolic or any(signature[0] for signature in signatures)  # type: ignore[index]


def _sharing(tensors: Sequence[torch.Tensor]) -> Hashable:
    """Which arguments are the same tensor, and which share a storage: a recipe names arguments and bases by position.

    The first item is the `is_symbolic` that all signatures in a key begin with.
    """
    objects = [id(tensor) for tensor in tensors]
    storages = [storage_key(tensor) for tensor in tensors]
    return False, tuple(map(objects.index, objects)), tuple(map(storages.index, storages))


def _append_literals(value: Any, key: list[Hashable]) -> bool:
    """Append all arguments but tensors to the key, with their types (1 == 1.0 == True). Returns whether any is symbolic."""
    if isinstance(value, torch.Tensor):
        key.append(torch.Tensor)
        return False
    if isinstance(value, (tuple, list)):
        key.append(len(value))
        is_symbolic = False
        for item in value:
            is_symbolic |= _append_literals(item, key)
        return is_symbolic
    if isinstance(value, SYMBOLIC_TYPES):
        key.append((type(value), value.node.expr))
        return True
    key.append((type(value), value))
    return False


def _replace(value: Any, replaced: dict[int, FakeTensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return replaced.get(id(value), value)
    if type(value) in (tuple, list):
        return type(value)(_replace(item, replaced) for item in value)
    if type(value) is dict:
        return {key: _replace(item, replaced) for key, item in value.items()}
    return value


def _recipe(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A description from which `_repeat` makes the result again; None if that is not possible."""
    if result is None:
        return _Nothing()
    if isinstance(result, (tuple, list)):
        items = [_recipe(item, tensors) for item in result]
        fresh = [r for r, item in zip(result, items, strict=True) if type(item) is _Made and item.base is None]
        if None in items or len({storage_key(tensor) for tensor in fresh}) < len(fresh):
            return None
        return type(result)(items) if type(result) in (tuple, list) else tuple(items)
    if type(result) is not FakeTensor:
        return None
    for position, tensor in enumerate(tensors):
        if tensor is result:
            return _Argument(position)
    if result.layout is not torch.strided or result.is_quantized or result.is_nested or result.constant is not None:
        return None
    key = storage_key(result)
    base = next((i for i, tensor in enumerate(tensors) if storage_key(tensor) == key), None)
    offset = result.storage_offset()
    if base is None and not (type(offset) is int and offset == 0):
        return None
    return _Made(
        base=base,
        shape=tuple(result.shape),
        stride=tuple(result.stride()),
        offset=offset,
        dtype=result.dtype,
        device=result.fake_device,
        is_conj=result.is_conj(),
        is_neg=result.is_neg(),
    )


def _is_about_storage(func: OpOverload) -> bool:
    """Whether an op reads or changes the storage itself, which a signature does not describe.

    It takes an offset into it (as_strided), its in-place form is an in-place view that no view op computes (set, resize), or it
    may keep the argument's storage (lift).
    """
    name = func.overloadpacket.__name__
    if any("storage_offset" in argument.name or "increment" in argument.name for argument in func._schema.arguments):
        return True
    in_place = getattr(aten, f"{name}_", None)
    tags = [] if in_place is None else [getattr(in_place, overload).tags for overload in in_place.overloads()]
    is_view = any(
        returned.alias_info is not None and not returned.alias_info.is_write for returned in func._schema.returns
    )
    return name.startswith(("lift", "_resize")) or (not is_view and any(torch.Tag.inplace_view in one for one in tags))


# Shape checks of `slice_scatter` and `index_put` that eager makes and fake kernels do not. For symbolic sizes a check is a guard,
# so that a graph never runs on sizes that do not fit.


def check_sizes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises eager's error if the shapes do not fit. Unbacked sizes are not checked."""
    check = _CHECKS.get(func)
    if check is not None:
        check(*args, **kwargs)


def _slice_scatter(
    x: torch.Tensor, source: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> None:
    if not all(map(is_known, (*x.shape, *source.shape, start, end, step))):
        return
    shape = aten.slice.Tensor(x, dim, start, end, step).shape
    if len(source.shape) != len(shape) or any(map(operator.ne, source.shape, shape)):
        found, expected = list(map(hint_of, source.shape)), list(map(hint_of, shape))
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {found}, slice size = {expected}"
        )


def _index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> None:
    """Masks are not checked: how many elements they select depends on data."""
    given = [index for index in indices if index is not None]
    sizes = [size for tensor in (x, values, *given) for size in tensor.shape]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given) or not all(map(is_known, sizes)):
        return
    shape = aten.index.Tensor(x, indices).shape if given else x.shape
    own = values.shape
    pairs = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or not all(size == 1 or size == place for size, place in pairs):
        found, expected = list(map(hint_of, own)), list(map(hint_of, shape))
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {found} cannot be broadcast to indexing result of shape {expected}"
        )


_CHECKS: Mapping[Any, Callable[..., None]] = MappingProxyType(
    {
        aten.slice_scatter.default: _slice_scatter,
        aten.index_put.default: _index_put,
        aten.index_put_.default: _index_put,
    }
)


# ---------------------------------------------------------------------------------------------- shapes without a fake kernel


def _linalg_lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The residuals' shape depends on the rank found, but not with `gelsy` (no residuals) and `gels` (assumes full rank)."""
    if a.dim() < 2 or b.dim() < 1:
        return NotImplemented
    driver = driver or ("gelsy" if a.device.type == "cpu" else "gels")
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    is_plain = is_vector or (b.dim() == a.dim() and b.shape[-2] == rows)
    if not is_plain or (driver in ("gelsd", "gelss") and rows > columns):
        return NotImplemented
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-1] if is_vector else b.shape[:-2])
    if is_vector:
        batch = a.shape[:-2]
    count = 1 if is_vector else b.shape[-1]
    # LAPACK returns (*batch, count, max(rows, columns)) in column-major order; the solution is its first rows.
    solution = b.new_empty((*batch, count, max(rows, columns))).mT.narrow(-2, 0, columns)
    real = a.dtype.to_real()
    has_residuals = driver == "gels" and rows > columns
    has_values = driver in ("gelsd", "gelss")
    return (
        solution.squeeze(-1) if is_vector else solution,
        a.new_empty((*batch, count) if has_residuals else (0,), dtype=real),
        a.new_empty((0,) if driver == "gels" else a.shape[:-2], dtype=torch.int64),
        a.new_empty((*a.shape[:-2], min(rows, columns)) if has_values else (0,), dtype=real),
    )


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """The number of states follows from the longest target, whose length is an int argument."""
    if log_probs.dim() != 3 or not target_lengths:
        return NotImplemented
    steps, batch, _ = log_probs.shape
    states = 2 * max(target_lengths) + 1
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, states))


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """The CPU kernel takes other dtypes than bfloat16 as well."""
    if a.device.type != "cpu" or a.dtype is torch.bfloat16 or a.dtype is not b.dtype or bias is not None:
        return NotImplemented
    match a.dim(), b.dim():
        case 2, 2 if offs is not None:
            return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]))
        case (2, 3) | (3, 2) if offs is not None:
            return a.new_empty((a.shape[-2], b.shape[-1]))
        case 3, 3:
            return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))
        case _:
            return NotImplemented


def _shrink_backward(x: torch.Tensor, y: torch.Tensor, lambd: float) -> Any:
    """For operands of one floating point dtype, where upstream's fake kernel raises."""
    if x.dtype is not y.dtype or not x.is_floating_point():
        return NotImplemented
    return x.new_empty(torch.broadcast_shapes(x.shape, y.shape))


def _upsample_backward(
    grad_output: torch.Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *others: Any
) -> Any:
    """For symbolic sizes, for which upstream's fake kernels fail or specialize."""
    if all(type(size) is int for size in (*grad_output.shape, *output_size, *input_size)):
        return NotImplemented
    return grad_output.new_empty(tuple(input_size))


def _upsample(x: torch.Tensor, output_size: Sequence[Any], *others: Any, **named: Any) -> Any:
    """For inputs without images or channels, for which some of upstream's fake kernels use a product of sizes as a bool."""
    if x.dim() != len(output_size) + 2 or not all(size > 0 for size in (*x.shape[2:], *output_size)):
        return NotImplemented
    if x.shape[1] == 0:
        raise RuntimeError(f"Non-empty {x.dim()}D data tensor expected but got a tensor with sizes {list(x.shape)}")
    if x.shape[0] != 0:
        return NotImplemented
    return x.new_empty((*x.shape[:2], *output_size))


def _margin_loss_backward(grad: torch.Tensor, x: torch.Tensor, *others: Any) -> Any:
    """Upstream has no fake kernel for symbolic sizes, only a C++ one for ints."""
    return x.new_empty(x.shape)


# Whether a fake kernel fails although the shapes follow from the arguments shows in no schema or tag, so each op is named.
_SHAPE_RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_lstsq.default: _linalg_lstsq,
        aten._ctc_loss.default: _ctc_loss,
        aten._grouped_mm.default: _grouped_mm,
        aten.hardshrink_backward.default: _shrink_backward,
        aten.softshrink_backward.default: _shrink_backward,
        aten.multi_margin_loss_backward.default: _margin_loss_backward,
        aten.multilabel_margin_loss_backward.default: _margin_loss_backward,
    }
)


@functools.cache
def _shape_rule_of(func: Any) -> Callable[..., Any] | None:
    """The op's rule; those of all upsampling follow from the schema."""
    if func in _SHAPE_RULES or not isinstance(func, OpOverload) or func.namespace != "aten":
        return _SHAPE_RULES.get(func)
    names = [argument.name for argument in func._schema.arguments if not argument.is_out]
    if len(names) < len(func._schema.arguments) or not any(name.startswith("scales") for name in names):
        return None
    if names[:3] == ["grad_output", "output_size", "input_size"]:
        return _upsample_backward
    return _upsample if names[:2] == ["self", "output_size"] else None


def known_result(func: Any, args: Any, kwargs: Any) -> Any:
    """The fake result by the op's rule; NotImplemented if it has none for this call. Called with the fake mode active."""
    rule = _shape_rule_of(func)
    return NotImplemented if rule is None else rule(*args, **kwargs)
