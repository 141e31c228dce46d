"""The fake mode and shape env of draft export, which know the real values of the example run.

Counterpart: FakeTensorMode with propagate_real_tensors, as torch/export/_draft_export.py uses it
Differs: the fake kernels of custom operators are compared with the real ones here, so that differences are reported and not
logged. Programs run on copies of their state and inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from refimpl._torch import (
    SYMBOLIC_TYPES,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    OpProfile,
    TensorProfile,
    propagate_real_tensors,
    pytree,
    storage_key,
)
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.draft_report import FailureReport, FailureType
from refimpl.functionalize.geometry import is_dense
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.stacks import Stack

_NAMESPACES = ("aten", "prim", "prims", "higher_order")
_MISSING = (
    "unsupportedoperatorexception",
    "no fake impl",
    "could not run",
    "cannot be run",
    "not implemented for 'meta'",
    "meta backend",
)


class DraftFailuresState:
    """The failures without duplicates. Mutable; one per draft."""

    def __init__(self) -> None:
        self._failures: dict[Any, list[FailureReport]] = {}
        self.profiles: dict[str, set[OpProfile]] = {}

    @property
    def failures(self) -> list[FailureReport]:
        """One failure for each line and what failed there. A condition of a loop is one failure, with its `occurrences`."""
        return [
            replace(first, data={**first.data, "occurrences": len(equal) + 1}) if equal else first
            for first, *equal in self._failures.values()
        ]

    def add(self, failure_type: FailureType, **data: Any) -> None:
        """Add a failure at the current line of the program."""
        stack = Stack.capture()
        failure = FailureReport(failure_type=failure_type, place=stack.user_line(), data=data)
        depends_on_data = failure_type is FailureType.DATA_DEPENDENT_ERROR
        key: tuple[Any, ...] = (failure.place, stack.user_frames() if depends_on_data else str(data))
        if failure_type is FailureType.MISSING_FAKE_KERNEL:  # one kernel is missing, wherever it is called
            key = (data["op"],)
        found = self._failures.setdefault((failure_type, *key), [])
        if failure not in found or depends_on_data:
            found.append(failure)

    def add_profile(self, func: OpOverload, args: Any, result: Any) -> None:
        """Note the metadata of the arguments and of the real result of an operator."""
        described: Any = tuple(map(TensorProfile.maybe_from_tensor, args))
        out: Any = TensorProfile.maybe_from_tensor(result)
        if isinstance(result, (list, tuple)):
            out = tuple(map(TensorProfile.maybe_from_tensor, result))
        self.profiles.setdefault(str(func), set()).add(OpProfile(described, out))


class DraftShapeEnv(ShapeEnv):
    """Evaluates data-dependent conditions by the example run, and notes them."""

    def __init__(self, noted: DraftFailuresState, **settings: Any) -> None:
        super().__init__(**settings)
        self._noted = noted

    def set_real_tensor_prop_unbacked_vals(self, k: Any, v: Any) -> None:
        """Note the value of an unbacked symbol, also of a SymBool `u0 == 1`."""
        if isinstance(k, sympy.Eq):
            k, v = k.lhs, int(v)
        super().set_real_tensor_prop_unbacked_vals(k, v)

    def _maybe_evaluate_static(self, expr: Any, **settings: Any) -> Any:
        known = super()._maybe_evaluate_static(expr, **settings)
        if known is None and settings.get("compute_hint"):
            real = {**self.backed_var_to_val, **self.real_tensor_prop_unbacked_vals}
            if all(symbol in real for symbol in expr.free_symbols):
                return sympy.sympify(expr).subs(real)
        return known

    def _from_real_tensors(self, expr: Any, pytype: type) -> Any:
        value = super()._from_real_tensors(expr, pytype)
        if self.has_unbacked(expr):
            self._noted.add(FailureType.DATA_DEPENDENT_ERROR, expr=str(expr), value=value)
        return value


def mode_with_values(**settings: Any) -> FakeTensorMode:
    """A fake mode that knows the values of the example run, and checks operators by them as torch's does."""
    mode = symbolic_fake_mode(DraftShapeEnv(DraftFailuresState(), **settings), allow_non_fake_inputs=True)
    propagate_real_tensors(mode)
    return mode


def give_values(fakes: Sequence[Any], values: Sequence[Any]) -> None:
    """Set copies of the values as the real tensors of the fakes. Other fakes have none."""
    copies: dict[int, torch.Tensor] = {}
    for fake, value in zip(fakes, values, strict=True):
        if isinstance(fake, FakeTensor) and id(fake) not in copies:
            copies[id(fake)] = fake.real_tensor = value.detach().clone()


class DraftFakeMode(FakeTensorMode):
    """A fake mode with real values besides, which compares fake kernels of custom operators with the real ones."""

    def __init__(self, env: DraftShapeEnv, noted: DraftFailuresState) -> None:
        super().__init__(shape_env=env, allow_non_fake_inputs=True, allow_fallback_kernels=False)  # type: ignore[arg-type]
        self.cache_enabled = False
        self._env, self._noted = env, noted
        propagate_real_tensors(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the base class would wrap __torch_dispatch__ in torch._dynamo.disable, which runs dynamo's code

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and func.namespace not in _NAMESPACES and self.propagate_real_tensors:
            return self._compare_custom_op(func, types, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _maybe_infer_fake_kernel_from_pytree_out(
        self, func: Any, fake_in: Any, real_in: Any, fake_out: Any, real_out: Any
    ) -> Any:
        """Skip the base class's comparison of torch's own operators, which would add guards on sizes."""
        return fake_out

    def _compare_custom_op(self, func: OpOverload, types: Any, args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        values = [self._value(leaf) for leaf in leaves]
        if any(value is NotImplemented for value in values):
            return super().__torch_dispatch__(func, types, args, kwargs)
        given, given_kwargs = pytree.tree_unflatten(values, spec)
        before = list(self._env.pending_fresh_unbacked_symbols)
        self.propagate_real_tensors = False
        try:
            fake, reason = self._fake_result(func, types, args, kwargs)
            real = func(*given, **given_kwargs)
            if reason is None:
                reasons = self._differences(fake, real, leaves, values)
                if not reasons:
                    return pytree.tree_map(self._with_value, fake, real)
                for each in reasons:
                    self._noted.add(FailureType.MISMATCHED_FAKE_KERNEL, op=str(func), reason=each)
            elif any(words in reason.lower() for words in _MISSING):
                self._noted.add(FailureType.MISSING_FAKE_KERNEL, op=str(func))
            else:
                self._noted.add(FailureType.MISMATCHED_FAKE_KERNEL, op=str(func), reason=f"it raises {reason}")
            self._env.pending_fresh_unbacked_symbols[:] = before  # those of the result that is not taken
            self._noted.add_profile(func, given, real)
            _refuse_gaps(func, real)
            return pytree.tree_map(self._fake_of_real, real)
        finally:
            self.propagate_real_tensors = True

    def _fake_result(self, func: OpOverload, types: Any, args: Any, kwargs: Any) -> tuple[Any, str | None]:
        """The result of the fake kernel, or the reason why there is none."""
        try:
            return super().__torch_dispatch__(func, types, args, kwargs), None
        except Exception as error:  # any error of the user's fake kernel is reported
            return None, f"{type(error).__name__}: {error}"

    def _value(self, leaf: Any) -> Any:
        """The leaf's value in the example run; NotImplemented if it is not known."""
        if isinstance(leaf, FakeTensor):
            return NotImplemented if leaf.real_tensor is None else leaf.real_tensor
        if isinstance(leaf, SYMBOLIC_TYPES):
            return self._number(leaf)
        return leaf

    def _number(self, value: Any) -> Any:
        """The size in the example run; NotImplemented if it is not known."""
        if not isinstance(value, SYMBOLIC_TYPES):
            return value
        expr = self._env.replace(value.node.expr)
        known = {**self._env.backed_var_to_val, **self._env.real_tensor_prop_unbacked_vals}
        if any(symbol not in known for symbol in expr.free_symbols):
            return NotImplemented
        return value.node.pytype(expr.xreplace(known))

    def _differences(self, fake: Any, real: Any, fake_args: list[Any], real_args: list[Any]) -> list[str]:
        """The differences between fake and real result, one for each tensor at most; fake_args, real_args: the operands."""
        fakes, fake_spec = pytree.tree_flatten(fake)
        reals, real_spec = pytree.tree_flatten(real)
        if len(fakes) != len(reals):
            return [f"the real result is {real_spec}, the fake one {fake_spec}"]
        if _share_memory(fakes, fake_args) != _share_memory(reals, real_args):
            return [
                "Mismatched aliasing spec between fake kernel and real kernel: other results share memory with operands"
            ]
        found = [self._difference(described, given) for described, given in zip(fakes, reals, strict=True)]
        return [difference for difference in found if difference is not None]

    def _difference(self, described: Any, given: Any) -> str | None:
        """The first difference between a fake value and the real one; None if there is none."""
        if not isinstance(given, torch.Tensor) or not isinstance(described, torch.Tensor):
            if isinstance(given, torch.Tensor) is isinstance(described, torch.Tensor):
                return None
            return f"the real result is a {type(given).__name__}, the fake one a {type(described).__name__}"
        if described.dtype != given.dtype:
            return f"Dtypes {given.dtype} and {described.dtype} are not equal!"
        for name in ("device", "layout", "ndim"):
            if getattr(described, name) != getattr(given, name):
                return f"the real result has {name} {getattr(given, name)}, the fake one {getattr(described, name)}"
        numbers = [self._number(size) for size in described.shape]
        if any(n is not NotImplemented and n != size for n, size in zip(numbers, given.shape, strict=True)):
            return f"the real result has shape {tuple(given.shape)}, the fake one {tuple(numbers)}"
        return None

    def _with_value(self, fake: Any, real: Any) -> Any:
        if isinstance(fake, FakeTensor) and isinstance(real, torch.Tensor):
            fake.real_tensor = real
            for size, number in zip(fake.shape, real.shape, strict=True):
                self._note(size, number)
        else:
            self._note(fake, real)
        return fake

    def _note(self, number: Any, value: Any) -> None:
        expr = number.node.expr if isinstance(number, (torch.SymInt, torch.SymFloat)) else None
        if expr is not None and expr.is_Symbol and self._env.has_unbacked(expr):
            self._env.set_real_tensor_prop_unbacked_vals(expr, value)

    def _fake_of_real(self, real: Any) -> Any:
        """A fake of the real result, with unbacked sizes and its dimensions in the same memory order."""
        if not isinstance(real, torch.Tensor):
            return real
        sizes = [self._env.create_unbacked_symint() for _ in real.shape]
        for size in sizes:
            self._env._constrain_range_for_size(size.node.expr)
        strides: list[Any] = [1] * real.dim()
        stride: Any = 1
        for dim in sorted(range(real.dim()), key=lambda d: (real.stride(d), -d)):
            strides[dim] = stride
            stride = stride * sizes[dim]
        with self:
            fake = torch.empty_strided(sizes, strides, dtype=real.dtype, device=real.device)
        return self._with_value(fake, real)


def _share_memory(results: list[Any], operands: list[Any]) -> list[bool]:
    """For each result whether it shares memory with an operand or an earlier result."""
    values = [*operands, *results]
    keys = [storage_key(v) if isinstance(v, torch.Tensor) and v.layout is torch.strided else None for v in values]
    return [keys[i] is not None and keys.index(keys[i]) < i for i in range(len(operands), len(values))]


def _refuse_gaps(func: OpOverload, real: Any) -> None:
    """Raises UnsupportedByRefimpl for a real result whose strides do not follow from sizes and the order in memory: the fake
    would have others."""
    for value in pytree.tree_leaves(real):
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        begins_later = bool(value.storage_offset())
        if begins_later or not is_dense(value):
            raise UnsupportedByRefimpl(
                seen=f"{func}, an operator without a right fake kernel: a return "
                + ("has a non-zero storage offset" if begins_later else "was not dense in memory"),
                supported="such operators if their results fill their memory, from its beginning",
                do="register a fake kernel with torch.library.register_fake",
            )
