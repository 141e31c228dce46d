"""Run eager in the widest dtype: the ground truth from which errors are measured.

Low-precision floats become float64 and complex numbers complex128, in the inputs (`widen_tree`), the module
(`widen_module`) and, inside the program, wherever a dtype is named (`Widened`).

Limits, which `Widened.meaning_changed` reports or which the caller must consider:

- Functions whose result depends on the dtype itself: bit casts, `element_size`, `nextafter`, rank decisions with a dtype's
  epsilon. Their results, and tensors computed from them, are in `Widened.unknown`; all others are ground truth.
- Random floats may depend on the dtype. Factories draw in the dtype they name and the result is widened; for `rand_like`,
  `normal_` and the like the narrow dtype must be known (`narrow`), else the meaning has changed. Compare
  `oracle.hygiene.rng_digest` after both runs: if it differs, other numbers were drawn.
- A program that branches on `x.dtype` takes the wide branch; constants such as `torch.finfo(torch.float16).max` stay.
- Tensors made at module level by the program's source, and tensors in closures, stay narrow. Some operators raise if they are
  mixed with wide tensors, and then there is no ground truth.
- Overflow: a number that is infinite in float16 is finite here. The judge uses eager's result too.
- Torch functions that are called from a torch function written in Python are not intercepted.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from oracle.dtypes import COMPLEX, FLOATS
from oracle.errors import TorchOracleError
from oracle.program.clone import has_plain_storage, keep_attributes, rebuild, view_of_storage
from oracle.reruns.unknowns import NoStorage, Unknowns, tensors_in

WIDE: dict[torch.dtype, torch.dtype] = {
    **dict.fromkeys(FLOATS - {torch.float64}, torch.float64),
    **dict.fromkeys(COMPLEX - {torch.complex128}, torch.complex128),
}
_WIDE_TENSOR_TYPES: dict[Any, Any] = {}
for _prefix in ("", "cuda."):
    for _narrow_name in ("FloatTensor", "HalfTensor", "BFloat16Tensor"):
        _narrow_text, _wide_text = f"torch.{_prefix}{_narrow_name}", f"torch.{_prefix}DoubleTensor"
        _WIDE_TENSOR_TYPES[_narrow_text] = _wide_text
        _owner = torch.cuda if _prefix else torch
        _WIDE_TENSOR_TYPES[getattr(_owner, _narrow_name)] = _wide_text


class CannotWiden(TorchOracleError):
    """The tensor has no wide form with the same meaning. The caller has to do without a ground truth."""


def widen_tree(value: Any) -> Any:
    """A copy of `value` with every narrow float or complex tensor in the wide dtype; other tensors are kept.

    Strides, offsets, aliases, `requires_grad` (as leaves), classes and identities are preserved. Python numbers stay.
    Raises CannotWiden for tensors of different dtypes in one storage, and for packed dtypes.
    """
    return rebuild(value, leaf=_Widener().widen, unknown=lambda other, memo: other)


def widen_module(module: torch.nn.Module) -> torch.nn.Module:
    """Widen parameters, buffers and tensors in plain attributes of `module` in place. Returns `module`.

    Tied parameters stay tied; gradients are dropped. Raises CannotWiden like `widen_tree`.
    """
    widener = _Widener()
    module._apply(lambda tensor: widener.widen(tensor) if tensor.dtype in WIDE else tensor)
    for child in module.modules():
        for name, value in list(vars(child).items()):
            if isinstance(value, (torch.Tensor, list, tuple, dict)) and not name.startswith("_"):
                child.__dict__[name] = rebuild(value, leaf=widener.widen, unknown=lambda other, memo: other)
    for parameter in module.parameters():
        parameter.grad = None
    return module


def narrow_dtype(value: Any) -> torch.dtype | None:
    """The narrow float or complex dtype of a tree's tensors; the default dtype if there is no such tensor.

    None if there are several, since a wide tensor's dtype before widening is then unknown.
    """
    found = [dtype for dtype in _dtypes_in(value) if dtype in WIDE]
    return None if len(found) > 1 else next(iter(found), torch.get_default_dtype())


def only_dtype(value: Any) -> torch.dtype | None:
    """The narrow dtype of all float and complex tensors of a tree; None if there are several dtypes or no such tensor."""
    found = [dtype for dtype in _dtypes_in(value) if dtype.is_floating_point or dtype.is_complex]
    return found[0] if len(found) == 1 and found[0] in WIDE else None


def _dtypes_in(value: Any) -> list[torch.dtype]:
    found: dict[torch.dtype, None] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.dtype] = None
        return tensor

    rebuild(value, leaf=note, unknown=lambda other, memo: other)
    return list(found)


class _Widener:
    """Widens tensors of one tree; remembers widened storages so that aliases stay aliases."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[torch.dtype, torch.UntypedStorage]] = {}
        self._originals: list[torch.Tensor] = []  # kept alive: their addresses are the keys

    def widen(self, tensor: torch.Tensor) -> torch.Tensor:
        wide = WIDE.get(tensor.dtype)
        if tensor.is_quantized:
            return tensor
        if wide is None:
            self._refuse_packed(tensor)
            return tensor
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and has_plain_storage(tensor):
            with torch._C.DisableTorchFunction():  # within Widened, `flat` would be read as float64
                result = self._widen_strided(tensor, wide)
        else:
            result = tensor.detach().to(wide)
        if isinstance(tensor, torch.nn.Parameter) and not isinstance(result, torch.nn.Parameter):
            result = torch.nn.Parameter(result, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            result.requires_grad_()
        return keep_attributes(tensor, result)

    def _widen_strided(self, tensor: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat.set_(storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))
            known = (tensor.dtype, flat.to(wide).untyped_storage())
            self._storages[storage._cdata] = known
            self._originals.append(tensor)
        if known[0] != tensor.dtype:
            raise CannotWiden(f"tensors of {known[0]} and {tensor.dtype} share one storage")
        return view_of_storage(known[1], like=tensor, dtype=wide)

    def _refuse_packed(self, tensor: torch.Tensor) -> None:
        if tensor.dtype.is_floating_point and tensor.dtype is not torch.float64:
            raise CannotWiden(f"{tensor.dtype} has no conversion to float64")
        if tensor.layout is torch.strided and has_plain_storage(tensor):
            known = self._storages.get(tensor.untyped_storage()._cdata)
            if known is not None and tensor.numel():
                raise CannotWiden(f"tensors of {known[0]} and {tensor.dtype} share one storage")


class Widened(TorchFunctionMode):
    """Under this mode, torch functions compute in the wide dtypes whatever dtypes the program names.

    dtype arguments, `Tensor.float()`, `.half()`, `.to(dtype)`, `.type(...)`, `.type_as(...)` and the default dtype are
    mapped to the wide ones; autocast is off. Run the backward pass under it as well. Everything is restored on exit.

    `narrow`: the float dtype of the program's tensors before widening, or None if there were several; see `narrow_dtype`.
    `rounded`: the dtype to which `unique` and the like round their operand first; see `only_dtype`. Otherwise two sums of the
    same terms, which differ by a rounding of float64, would count as different. Read `meaning_changed` (and `reason`) afterwards:
    if set, the result is not the program's ground truth. Tensors in `unknown` are not either: they depend on a function whose
    result depends on the dtype. One `unknown` serves all calls of a program. Observe tensors outside of the mode, since reading a
    storage counts as depending on the dtype.
    """

    def __init__(
        self,
        *,
        narrow: torch.dtype | None = None,
        rounded: torch.dtype | None = None,
        unknown: Unknowns | None = None,
    ) -> None:
        super().__init__()
        self.narrow = narrow
        self.rounded = rounded
        self.unknown = Unknowns() if unknown is None else unknown
        self.reason = ""
        self._outer_dtype = torch.get_default_dtype()

    @property
    def meaning_changed(self) -> bool:
        return bool(self.reason)

    def __enter__(self) -> Widened:
        self._outer_dtype = torch.get_default_dtype()
        super().__enter__()
        torch.set_default_dtype(torch.float64)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        try:
            if torch.get_default_dtype() is not torch.float64:
                self._note("the program set the default dtype")
        finally:
            super().__exit__(exc_type, exc_val, exc_tb)
            torch.set_default_dtype(self._outer_dtype)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        reason = _meaning_of(func, getattr(func, "__name__", ""), args, kwargs)
        if not reason and not self.unknown.reach((args, kwargs)):
            return self._run(func, types, args, kwargs)
        return self._run_unknown(func, types, args, kwargs, reason)

    def _run_unknown(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
        """Run a function whose results, and the tensors it writes, are unknown.

        If the program can branch on a result, or one requires grad, the whole run is no ground truth.
        """
        why = reason or "it computes with what has no wide form"
        given = [tensor for tensor in tensors_in((args, kwargs)) if not tensor.is_inference()]
        versions = [tensor._version for tensor in given]
        is_cast = reason == _BIT_CAST
        result = self._run(func, types, args, kwargs)
        if is_cast:
            result = result.detach().clone()  # in the program it shares memory with the operand, which stays known
        written = [tensor for tensor, version in zip(given, versions, strict=True) if tensor._version != version]
        made = tree_leaves(result)
        is_lost = (
            any(leaf is not None and not isinstance(leaf, torch.Tensor) for leaf in made)
            or any(tensor.requires_grad for tensor in (*tensors_in(made), *written))
            or any(tensor.is_inference() for tensor in tensors_in((args, kwargs, made)))
            or any(self.unknown.is_copy(tensor) for tensor in written)
        )
        if is_lost or self._cannot_mark([*tensors_in(made), *written], is_copy=is_cast):
            self._note(why)
        return result

    def _cannot_mark(self, tensors: list[torch.Tensor], *, is_copy: bool) -> bool:
        try:
            for tensor in tensors:
                self.unknown.add(tensor, is_copy=is_copy)
        except NoStorage:
            return True
        return False

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if not args and "tensor" in kwargs and draws_by_dtype(name):  # torch.nn.init passes all arguments by name
            kwargs = dict(kwargs)
            args = (kwargs.pop("tensor"),)
            with torch.no_grad():  # as torch.nn.init does
                return self._run(func, types, args, kwargs)
        if name in _SHORTHANDS and args:
            return args[0].to(_SHORTHANDS[name])
        if func in _RANDOM_FACTORIES:
            return self._draw_narrow(func, args, kwargs)
        if args and isinstance(args[0], torch.Tensor) and _is_wide(args[0]) and draws_by_dtype(name):
            return self._draw_like(func, name, args, kwargs)
        self._note_epsilons(name, args, kwargs)
        if name in _DOUBLES or any(arg is torch.float64 for arg in (*args, *kwargs.values())):
            self.rounded = None  # the program itself computes in float64
        if name in _TELL_APART and args:
            args = (self._as_held(args[0]), *args[1:])
        if (name == "type" and len(args) > 1) or ("dtype" in kwargs and not isinstance(kwargs["dtype"], torch.dtype)):
            args, kwargs = _widen_type_names(args, kwargs)
        return func(
            *[_widen_argument(arg) for arg in args], **{key: _widen_argument(arg) for key, arg in kwargs.items()}
        )

    def _note(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason

    def _as_held(self, value: Any) -> Any:
        """The numbers, rounded once to the program's dtype."""
        if self.rounded is None or not isinstance(value, torch.Tensor) or value.dtype is not WIDE[self.rounded]:
            return value
        return value.to(self.rounded).to(value.dtype)

    def _note_epsilons(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], torch.Tensor) and args[0].is_cuda and _may_draw_by_dtype_on_cuda(name):
            self._note(f"{name} on CUDA may draw numbers that depend on the dtype")
        elif name in _EPSILON_BY_DEFAULT and kwargs.get("eps", args[3] if len(args) > 3 else None) is None:
            self._supply_epsilon(kwargs)
        elif name in ("nan_to_num", "nan_to_num_"):
            self._supply_largest(args, kwargs)

    def _supply_epsilon(self, kwargs: dict[str, Any]) -> None:
        if self.narrow is None:
            self._note("rms_norm takes its epsilon from the dtype")
        else:
            kwargs["eps"] = torch.finfo(torch.float32 if self.narrow in WIDE else self.narrow).eps

    def _supply_largest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (args and isinstance(args[0], torch.Tensor) and _is_wide(args[0])):
            return
        if self.narrow is None:
            self._note("nan_to_num takes its largest numbers from the dtype")
            return
        info = torch.finfo(self.narrow)
        if len(args) < 3 and kwargs.get("posinf") is None:
            kwargs["posinf"] = info.max
        if len(args) < 4 and kwargs.get("neginf") is None:
            kwargs["neginf"] = info.min

    def _draw_narrow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw in the program's own dtype, and widen the numbers."""
        if kwargs.get("out") is not None:
            self._note("random numbers drawn into `out`")
            return func(*args, **kwargs)
        if any(isinstance(arg, torch.Tensor) for arg in args):  # torch.normal(mean, std) of tensors
            self._note("random numbers drawn in the dtype of a tensor")
            return func(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        drawn = widen_tree(func(*args, **{**kwargs, "dtype": kwargs.get("dtype") or self._outer_dtype}))
        return drawn.requires_grad_() if requires_grad else drawn

    def _draw_like(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        narrow = kwargs.get("dtype") or self.narrow
        if narrow is None:
            self._note(f"{name} draws numbers that depend on the dtype")
            return func(*args, **kwargs)
        if narrow not in WIDE:
            return func(*args, **kwargs)
        like = args[0].detach().to(narrow)
        if name.endswith("_"):
            func(like, *args[1:], **kwargs)
            return args[0].copy_(like)
        drawn = func(like, *args[1:], **({**kwargs, "dtype": narrow} if "dtype" in kwargs else kwargs))
        wide = drawn.detach().to(WIDE[narrow])
        if name == "bernoulli" and args[0].requires_grad:
            return wide + 0 * args[0]  # its gradient is zero, not absent
        return wide.requires_grad_(drawn.requires_grad)


def _meaning_of(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call's result depends on the dtype itself; "" if it does not."""
    if name == "view" and any(isinstance(arg, torch.dtype) for arg in (*args[1:], *kwargs.values())):
        return _BIT_CAST
    if name in _MEANS_ITS_DTYPE:
        return f"{name} depends on the dtype: {_MEANS_ITS_DTYPE[name]}"
    getter = _MEANS_ITS_DTYPE_GETTERS.get(func)
    return "" if getter is None else f"{getter} depends on the dtype"


def _is_wide(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.complex128)


def _widen_argument(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return WIDE.get(value, value)
    return value


def _widen_type_names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Legacy names of tensor types: "torch.FloatTensor", torch.HalfTensor."""
    wide = tuple(_WIDE_TENSOR_TYPES.get(arg, arg) if isinstance(arg, (str, type)) else arg for arg in args)
    return wide, {
        key: _WIDE_TENSOR_TYPES.get(arg, arg) if isinstance(arg, (str, type)) else arg for key, arg in kwargs.items()
    }


# Methods that convert to the dtype of their name, such as `x.half()`, with the wider dtype.
_SHORTHANDS = {
    name: WIDE[value]
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and value in WIDE and hasattr(torch.Tensor, name)
}
_BIT_CAST = "the program reinterprets bits: view(dtype)"
_RANDOM_FACTORIES = frozenset({torch.rand, torch.randn, torch.normal})
# These draw other numbers for other dtypes as well: `bernoulli` reads probabilities, `geometric_` does so on CUDA only, and the
# others draw inside a torch function written in Python.
_DRAW_BY_DTYPE = frozenset({"bernoulli", "geometric_", "kaiming_uniform_", "kaiming_normal_"})


@functools.cache
def draws_by_dtype(name: str) -> bool:
    """Whether a torch function fills a tensor with random numbers that depend on the dtype on the CPU, too.

    The kernel tells: it draws other numbers for float64 than for float32, and the same for zeros as for ones. Dropout, which
    has the tag of random operators as well, reads its argument.
    """
    return name in _DRAW_BY_DTYPE or any(map(_fills_by_dtype, _random_overloads(name)))


def _random_overloads(name: str) -> list[OpOverload]:
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, one) for one in packet.overloads()] if isinstance(packet, OpOverloadPacket) else []
    return [overload for overload in overloads if torch.Tag.nondeterministic_seeded in overload.tags]


def _fills_by_dtype(overload: OpOverload) -> bool:
    first, *others = overload._schema.arguments
    if str(first.type) != "Tensor" or not all(argument.has_default_value() for argument in others):
        return False
    zeros, ones, wide = (
        _drawn(overload, torch.full((64,), number, dtype=dtype, device="cpu"))
        for number, dtype in ((0, torch.float32), (1, torch.float32), (0, torch.float64))
    )
    return torch.equal(zeros, ones) and not torch.equal(zeros.to(torch.float64), wide)


def _drawn(overload: OpOverload, like: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return overload(like)


@functools.cache
def _may_draw_by_dtype_on_cuda(name: str) -> bool:
    """Whether a torch function draws random numbers, in another way than those of `draws_by_dtype`.

    CPU kernels draw the same numbers for all dtypes; CUDA kernels do not.
    """
    return bool(_random_overloads(name) and not draws_by_dtype(name)) or name == "gumbel_softmax"  # written in Python


_MEANS_ITS_DTYPE = {
    "element_size": "bytes per element",
    "storage": "the bytes of the storage",
    "untyped_storage": "the bytes of the storage",
    "nextafter": "the next number of the dtype",
    "nextafter_": "the next number of the dtype",
    "random_": "its range is the dtype's",
    **{
        f"{prefix}fractional_max_pool{dims}d{suffix}": "window positions are rounded in it"
        for prefix, suffix in (("", ""), ("_", ""), ("", "_with_indices"))
        for dims in (2, 3)
    },
    "matrix_rank": "its tolerance is the dtype's epsilon",
    "linalg_matrix_rank": "its tolerance is the dtype's epsilon",
    "pinverse": "its tolerance is the dtype's epsilon",
    "linalg_pinv": "its tolerance is the dtype's epsilon",
    "linalg_lstsq": "its tolerance is the dtype's epsilon",
}
_MEANS_ITS_DTYPE_GETTERS = {
    torch.Tensor.itemsize.__get__: "Tensor.itemsize",  # pyright: ignore
    torch.Tensor.nbytes.__get__: "Tensor.nbytes",  # pyright: ignore
}
_DOUBLES = frozenset({"double", "cdouble"})
_TELL_APART = frozenset({"unique", "unique_consecutive"})
_EPSILON_BY_DEFAULT = frozenset({"rms_norm"})
