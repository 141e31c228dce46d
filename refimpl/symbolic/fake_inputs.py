"""Fake tensors with symbolic sizes for the inputs of a trace.

Counterpart: torch/_subclasses/meta_utils.py MetaConverter
Differs: a fake tensor is a meta tensor over a meta storage, one per real storage; bases of views are not rebuilt. Two inputs that
share a storage share the meta storage, so that writes to one are seen in the other.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import (
    FakeTensor,
    FakeTensorMode,
    WeakTensorKeyDictionary,
    inside_fake_kernel,
    is_functorch_wrapped,
    is_traceable_wrapper_subclass,
    set_bits,
    set_item_of_fake,
    storage_key,
)
from refimpl.errors import ForeignFakeInput, UnsupportedByRefimpl
from refimpl.symbolic.dynamic_shapes import ALL_STATIC, DimSpec, InputPolicy, Policy, dim_spec, marked_policy, policy_of
from refimpl.symbolic.shape_env import ShapeEnv, symbolic_geometry
from refimpl.symbolic.sources import Source, as_source

_TENSOR: Any = torch.Tensor
_NO_DISPATCH: Any = _TENSOR.__torch_dispatch__
Geometry = tuple[tuple[Any, ...], tuple[Any, ...], Any]


def symbolic_fake_mode(shape_env: ShapeEnv | None = None, **settings: Any) -> FakeTensorMode:
    """A fake mode with refimpl's ShapeEnv, without its cache, which costs more than it saves (see BypassedFakeCache)."""
    settings.setdefault("allow_fallback_kernels", False)
    mode = FakeTensorMode(shape_env=shape_env or ShapeEnv(), **settings)  # pyright: ignore[reportArgumentType]
    mode.cache_enabled = False
    return mode


class InputFaker:
    """Makes the fake inputs of one trace: one fake per tensor, one meta storage per storage.

    takes_fakes: accept fake tensors of other modes with integer sizes as inputs; they are refused otherwise. takes_overriding:
    accept tensors of classes without `__torch_dispatch__`, whose fakes are plain.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        shape_env: ShapeEnv,
        *,
        takes_fakes: bool = False,
        takes_overriding: bool = False,
    ) -> None:
        self.fake_mode = fake_mode
        self.shape_env = shape_env
        self.takes_fakes = takes_fakes
        self.takes_overriding = takes_overriding
        self._fakes = WeakTensorKeyDictionary()
        # Key of a real storage -> a meta tensor over its meta storage, and a reference to a real tensor in it. Once that is gone,
        # the key may be another storage's. The reference is weak: a shape env outlives its trace, and must not keep inputs.
        self._storages: dict[int, tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = {}

    def tensor(self, tensor: torch.Tensor, source: Any, policy: Any = None) -> torch.Tensor:
        """The fake of a tensor. Raises UnsupportedByRefimpl for unsupported layouts and classes."""
        known = self._fakes.get(tensor)
        if known is None:
            chosen = policy if isinstance(policy, InputPolicy) else policy_of(policy)
            chosen = marked_policy(tensor) if chosen is None else chosen
            known = self._fakes[tensor] = self._make(tensor, as_source(source), chosen)
        return known

    def again(self, tensor: torch.Tensor, source: Any) -> torch.Tensor:
        """A second fake of a tensor, with static sizes, in the storage of the first, whose sizes may have changed since."""
        return self._make(tensor, as_source(source), ALL_STATIC)

    def number(self, tensor: torch.Tensor, number: torch.SymFloat) -> torch.Tensor:
        """A new fake of a tensor that holds one float, for which `item()` gives this number."""
        fake = self._make(tensor, as_source("number"), ALL_STATIC)
        assert isinstance(fake, FakeTensor)
        set_item_of_fake(fake, number)
        return fake

    def forget(self) -> None:
        """Drop the references to real tensors, once all inputs of the trace are made.

        `torch.utils.swap_tensors`, which `Module.to` calls on request, refuses tensors with weak references."""
        self._fakes = WeakTensorKeyDictionary()
        self._storages = {}

    def _make(self, tensor: torch.Tensor, source: Source, policy: InputPolicy | None) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is self.fake_mode:
                return tensor
            if not self.takes_fakes:
                raise ForeignFakeInput(
                    seen=f"{source.name} is a fake tensor of another mode", do="pass the real tensor"
                )
        if is_traceable_wrapper_subclass(tensor):
            return self._subclass(tensor, source, policy)
        _check_kind(tensor, source, takes_overriding=self.takes_overriding)
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled() and not tensor.is_inference():  # autograd does not track its tensors
                stack.enter_context(torch.inference_mode(False))
            stack.enter_context(self.shape_env.suppress_guards())
            stack.enter_context(self.shape_env.origins_off())
            fake = self._sparse(tensor, source, policy) if tensor.is_sparse else self._dense(tensor, source, policy)
            return self._with_autograd(fake, tensor, source, policy)

    @property
    def _default(self) -> Policy:
        return "STATIC" if self.shape_env.settings.assume_static_by_default else "DUCK"

    def _geometry(self, tensor: torch.Tensor, source: Source, policy: InputPolicy | None) -> Geometry:
        specs = [] if policy is ALL_STATIC else [dim_spec(policy, d, self._default) for d in range(tensor.dim())]
        if all(spec.is_plainly_static for spec in specs):
            return _static_geometry(tensor, source)
        return symbolic_geometry(
            self.shape_env, tensor.size(), tensor.stride(), int(tensor.storage_offset()), source, specs
        )

    def _dense(self, tensor: torch.Tensor, source: Source, policy: InputPolicy | None) -> FakeTensor:
        sizes, strides, offset = self._geometry(tensor, source, policy)
        key = storage_key(tensor)
        with inside_fake_kernel(self.fake_mode):
            meta = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
            shared = self._shared_storage(key)
            if shared is not None:
                set_to_storage(meta, shared, offset, sizes, strides)
            elif _covers_its_storage(tensor):
                self._storages[key] = (meta, weakref.ref(tensor))
            else:  # a part of its storage: other inputs may be views of the rest
                whole = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
                self._storages[key] = (whole, weakref.ref(tensor))
                set_to_storage(meta, whole.untyped_storage(), offset, sizes, strides)
            set_bits(meta, is_conj=tensor.is_conj(), is_neg=tensor.is_neg())
        return FakeTensor(self.fake_mode, meta, tensor.device)

    def _shared_storage(self, key: int) -> torch.UntypedStorage | None:
        known = self._storages.get(key)
        return None if known is None or known[1]() is None else known[0].untyped_storage()

    def _sparse(self, tensor: torch.Tensor, source: Source, policy: InputPolicy | None) -> FakeTensor:
        """A fake sparse tensor. Its sizes are static: the C++ class SparseTensorImpl holds no symbols."""
        _refuse_dynamic(tensor, source, policy, "a sparse tensor")
        with inside_fake_kernel(self.fake_mode):
            meta = torch.ops.aten._sparse_coo_tensor_with_dims(
                tensor.sparse_dim(), tensor.dense_dim(), tensor.size(),
                dtype=tensor.dtype, layout=torch.sparse_coo, device="meta",
            )  # fmt: skip
            meta._coalesced_(tensor.is_coalesced())
        return FakeTensor(self.fake_mode, meta, tensor.device)

    def _subclass(self, tensor: Any, source: Source, policy: InputPolicy | None) -> torch.Tensor:
        """A wrapper subclass around fakes of its inner tensors. Equal sizes of inner and outer tensors share symbols by duck
        sizing, so its dimensions cannot be DYNAMIC."""
        _refuse_dynamic(tensor, source, policy, f"a {type(tensor).__name__}")
        names, context = tensor.__tensor_flatten__()
        rows = rows_of(tensor) if tensor.is_nested else {}
        inner = {name: getattr(tensor, name) for name in names}
        for name, part in inner.items():
            own = policy
            if tensor.is_nested and policy is not ALL_STATIC:  # a nested int times a symbol has no value
                own = InputPolicy({rows[name]: DimSpec(self._default)} if name in rows else {}, default="STATIC")
            if isinstance(part, torch.Tensor):  # a DTensor's mesh is none
                inner[name] = self.tensor(part, Source(f"{source.name}.{name}", f"{source.name}.{name}"), own)
        with self.shape_env.suppress_guards(), self.shape_env.origins_off():
            if tensor.is_nested:
                sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
            else:
                sizes, strides, _ = self._geometry(tensor, source, policy)
            fake = type(tensor).__tensor_unflatten__(inner, context, sizes, strides)
            return fake.requires_grad_(tensor.requires_grad)

    def _with_autograd(
        self, fake: torch.Tensor, tensor: torch.Tensor, source: Source, policy: InputPolicy | None
    ) -> torch.Tensor:
        fake.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True  # isinstance(fake, Parameter) reads it
        if not tensor.requires_grad:
            return fake
        if not _is_leaf(tensor, source):
            with self.fake_mode, torch.enable_grad():  # a non-leaf with the same strides and storage
                viewed = fake.clone() if tensor.is_sparse else fake.view_as(fake)
                if tensor.layout is torch.strided and not tensor.numel():  # view_as changes strides of empty tensors
                    viewed = fake.as_strided(fake.shape, fake.stride(), fake.storage_offset())
                return viewed
        if tensor.grad is not None:
            whole = ALL_STATIC if policy is ALL_STATIC else None  # a gradient of a static tensor is static
            fake.grad = self.tensor(tensor.grad, Source(f"{source.name}.grad", f"{source.name}.grad"), whole)
        return fake


def rows_of(jagged: torch.Tensor) -> dict[str, int]:
    """The parts of a jagged tensor with a dimension that follows from the lengths of its rows, and which dimension that is.

    These are the values of all rows behind each other, and the empty tensors that keep the smallest and largest length.
    """
    wrapper: Any = jagged
    parts, context = wrapper.__tensor_flatten__()
    dims = {"_values": context["ragged_idx"] - 1, "_min_seqlen_tensor": 0, "_max_seqlen_tensor": 0}
    return {name: dim for name, dim in dims.items() if name in parts}


def set_to_storage(
    meta: torch.Tensor, storage: torch.UntypedStorage, offset: Any, sizes: Sequence[Any], strides: Sequence[Any]
) -> None:
    """Make a meta tensor a view of a storage, with symbolic sizes.

    `set_` computes whether the tensor is contiguous, and the tensor caches the answer. Under suppressed guards this adds no
    guard, so a program that reads it later would have none; `as_strided_` clears the cache.
    """
    meta.set_(storage, offset, sizes, strides)
    meta.as_strided_(sizes, strides, offset)


def _static_geometry(tensor: torch.Tensor, source: Source) -> Geometry:
    geometry = tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
    if not all(type(number) is int for number in (*geometry[0], *geometry[1], geometry[2])):
        raise ForeignFakeInput(
            seen=f"{source.name} is a fake tensor whose sizes are symbols of another mode", do="pass the real tensor"
        )
    return geometry


def _is_leaf(tensor: torch.Tensor, source: Source) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError as error:  # a view made under no_grad and written to since
        raise UnsupportedByRefimpl(
            seen=f"the input {source.name}, whose is_leaf raises: {str(error)[:120]}",
            supported="tensors whose is_leaf does not raise",
            do="create the view and write to it in the same grad mode",
        ) from error


def _refuse_dynamic(tensor: torch.Tensor, source: Source, policy: InputPolicy | None, kind: str) -> None:
    if policy is not None and any(spec.policy in ("DYNAMIC", "UNBACKED") for spec in policy.dims.values()):
        raise UnsupportedByRefimpl(
            seen=f"a dynamic dimension of {source.name}, {kind} of shape {tuple(tensor.shape)}",
            supported="dimensions with the default policy",
            do="leave its dimensions out of the policy",
        )


def _covers_its_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor covers its whole storage."""
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _check_kind(tensor: torch.Tensor, source: Source, *, takes_overriding: bool) -> None:
    kind: Any = type(tensor)
    is_plain = kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    is_plain |= takes_overriding and kind.__torch_dispatch__ is _NO_DISPATCH
    if tensor.is_nested:
        what = "a nested tensor"
    elif tensor.is_quantized:
        what = "a quantized tensor"
    elif is_functorch_wrapped(tensor):
        what = "a tensor inside of a torch.func transform"
    elif not is_plain:
        what = f"a {kind.__module__}.{kind.__qualname__}"
    elif tensor.layout not in (torch.strided, torch.sparse_coo):
        what = f"a tensor of layout {tensor.layout}"
    else:
        return
    raise UnsupportedByRefimpl(
        seen=f"{what} ({source.name}) as an input with symbolic sizes",
        supported="dense and sparse_coo tensors, parameters, and wrapper subclasses with __tensor_flatten__",
        do="trace it in real or fake mode",
    )


def fake_input(
    tensor: torch.Tensor, fake_mode: FakeTensorMode, shape_env: ShapeEnv, source_name: str, policy: Any = None
) -> torch.Tensor:
    """A fake of an input with symbolic sizes. One fake mode has one fake per tensor, and one meta storage per storage.

    tensor: the real input; source_name: its name in guards; policy: an InputPolicy, {dimension: DimSpec}, a sequence of DimSpec,
        or None for the marks on the tensor and the environment's default.
    Raises UnsupportedByRefimpl for a kind of tensor that has no symbolic fake, ConstraintViolationError for a size outside the
    policy's bounds.
    """
    faker = shape_env.fakers.get(id(fake_mode))
    if faker is None or faker.fake_mode is not fake_mode:
        faker = shape_env.fakers[id(fake_mode)] = InputFaker(fake_mode, shape_env)
    return faker.tensor(tensor, source_name, policy)


def fake_int(value: int, shape_env: ShapeEnv, source_name: str, policy: Policy | None = None) -> Any:
    """A backed SymInt for an int input; 0 and 1 remain ints if the shape env specialises them."""
    expr = shape_env.create_symbol(value, source_name, policy, positive=None)
    return shape_env.create_symintnode(expr, hint=value)
