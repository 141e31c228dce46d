"""Makes fake tensors for the slots of a program: leaves, which share storages as the real tensors do.

Tensors of closures and globals become slots as well, if the program needs it (`CapturedInputsMode`).

Counterpart: torch/_functorch/aot_autograd.py construct_fake_mode, process_inputs
Differs: fakes have neither the base nor the history of the real tensor. The trace makes both anew (refimpl.aot.joint.trace), so
that autograd differentiates the program only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    FakeTensor,
    FakeTensorMode,
    inside_fake_kernel,
    is_traceable_wrapper_subclass,
    item_of_fake,
    pytree,
    set_item_of_fake,
    without_torch_function,
)
from refimpl.aot.analysis.subclasses import fake_wrapper, rewrapped
from refimpl.errors import ForeignFakeInput, UnsupportedByRefimpl
from refimpl.symbolic.dynamic_shapes import ALL_STATIC
from refimpl.symbolic.fake_inputs import fake_input, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.recording_mode import paused_recordings


def fake_mode_for(values: Sequence[Any], *, dynamic: bool) -> FakeTensorMode:
    """The mode of the fake tensors among the values; else a new one. Raises ForeignFakeInput if there are several."""
    modes = list(dict.fromkeys(mode for value in values for mode in _modes_of(value)))
    if len(modes) > 1:
        raise ForeignFakeInput(
            seen=f"fake arguments of {len(modes)} different FakeTensorModes", do="make all of them in one mode"
        )
    if modes:
        return modes[0]
    mode = symbolic_fake_mode(allow_fallback_kernels=not dynamic, allow_non_fake_inputs=True, static_shapes=not dynamic)
    mode.cache_enabled = False
    return mode


def forget_arguments(fake_mode: FakeTensorMode, values: Sequence[Any]) -> None:
    """Drop the trace's references to real arguments. A caller that passed fake arguments drops those of its own fake mode."""
    if isinstance(fake_mode.shape_env, ShapeEnv) and not any(_modes_of(value) for value in values):
        for faker in fake_mode.shape_env.fakers.values():
            faker.forget()


def _modes_of(value: Any) -> list[FakeTensorMode]:
    if isinstance(value, FakeTensor):
        return [value.fake_mode]
    if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        return [mode for name in names for mode in _modes_of(getattr(value, name))]
    return []


def fake_slots(
    values: Sequence[Any], fake_mode: FakeTensorMode, *, num_static: int, dynamic: bool, first_source: int = 0
) -> list[Any]:
    """A fake for every tensor; other values unchanged. The first `num_static` values have static sizes.

    A tensor at two positions gets two fakes that share a storage.
    """
    fakes: list[Any] = []
    for position, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            fakes.append(value)
            continue
        is_static = position < num_static or not dynamic
        if is_traceable_wrapper_subclass(value):
            source = 1000 * (first_source + position + 1)
            fake = fake_wrapper(
                value,
                fake_mode,
                functools.partial(_fake_parts, fake_mode=fake_mode, is_static=is_static, source=source),
            )
            fakes.append(fake.requires_grad_(value.requires_grad))
            continue
        fake = _fake(value, fake_mode, f"input{first_source + position}", is_static=is_static)
        # The mode keeps what it made for a tensor: a program may change the geometry of what it is given.
        fakes.append(unrelated_alias(fake).requires_grad_(value.requires_grad))
    return fakes


def _fake_parts(parts: list[torch.Tensor], *, fake_mode: FakeTensorMode, is_static: bool, source: int) -> list[Any]:
    return fake_slots(
        parts, fake_mode, num_static=len(parts) if is_static else 0, dynamic=not is_static, first_source=source
    )


def unrelated_alias(fake: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory that autograd does not know as a view. No trace records it."""
    if isinstance(fake, FakeTensor):
        if fake.layout is not torch.strided:
            return fake.detach()
        with inside_fake_kernel(fake.fake_mode):
            meta = fake.detach()
        alias = FakeTensor(fake.fake_mode, meta, fake.fake_device)
        set_item_of_fake(alias, item_of_fake(fake))
        if getattr(fake, "_is_param", False):
            alias._is_param = True  # what isinstance(fake, Parameter) reads
        return alias
    if is_traceable_wrapper_subclass(fake):
        return rewrapped(fake)
    raise UnsupportedByRefimpl(
        seen=f"a {type(fake).__name__} as an argument",
        supported="fake tensors and wrapper subclasses of them",
        do="unwrap it",
    )


def with_history(fake: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory whose history leads to the given one, but which is no view of it for autograd."""
    found = _WithHistory.apply(fake)
    assert isinstance(found, torch.Tensor)
    return found


class _WithHistory(torch.autograd.Function):
    """Identity that is no view, so that the result is no leaf and its in-place history is its own."""

    begins_history = True  # tells it from custom functions of the program

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # a missing gradient stays None
        return unrelated_alias(leaf)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


def _fake(value: torch.Tensor, fake_mode: FakeTensorMode, source: str, *, is_static: bool) -> torch.Tensor:
    if isinstance(value, FakeTensor):
        return value
    shape_env = fake_mode.shape_env
    if not isinstance(shape_env, ShapeEnv):
        return fake_mode.from_tensor(value, static_shapes=is_static or None)
    try:
        return fake_input(value, fake_mode, shape_env, source, ALL_STATIC if is_static else None)
    except UnsupportedByRefimpl:
        if not is_static:
            raise
        return fake_mode.from_tensor(value, static_shapes=True)


_FIRST_SOURCE = 1_000_000  # names of captured tensors in guards must not be those of arguments


class Inputs(Protocol):
    """What holds the inputs of a trace."""

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the trace has a node for the tensor."""
        ...

    def input_at(self, position: int) -> Any:
        """The tensor that the program gets for a slot."""
        ...

    def add_captured(self, fake: torch.Tensor, *, is_leaf: bool) -> Any:
        """Add a placeholder; returns the tensor that the program uses."""
        ...


class RealSlotsMode(TorchFunctionMode):
    """Replaces real parameters and buffers of an exported module by the graph's inputs. Other tensors stay constants.

    The backward of a branch of torch.cond runs the branch again, when the module has its own parameters back.
    """

    def __init__(self, inputs: Inputs, real_slots: Sequence[Any]) -> None:
        super().__init__()
        self._inputs = inputs
        self._kept = list(real_slots)  # keeps them alive, so that no id is used twice
        self._positions = {id(t): i for i, t in enumerate(real_slots) if isinstance(t, torch.Tensor)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    def known_input(self, value: torch.Tensor) -> Any:
        """The graph's input for a real tensor, else None."""
        position = self._positions.get(id(value))
        return None if position is None else self._inputs.input_at(position)

    def _replaced(self, value: torch.Tensor) -> Any:
        known = self.known_input(value)
        return value if known is None else known


class CapturedInputsMode(TorchFunctionMode):
    """Replaces tensors of closures and globals by fake inputs when the program passes one to a torch function.

    This happens before autograd, so that the real tensors get no history.
    """

    def __init__(self, inputs: Inputs, fake_mode: FakeTensorMode, real_slots: Sequence[Any]) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self._inputs = inputs
        self._fake_mode = fake_mode
        self._kept = list(real_slots)  # keeps them alive, so that no id is used twice
        self._positions = {id(t): i for i, t in enumerate(real_slots) if isinstance(t, torch.Tensor)}
        self._seen: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    def known_input(self, value: torch.Tensor) -> Any:
        """The fake input for a real tensor that is an input already, else None."""
        if id(value) in self._positions:
            return self._inputs.input_at(self._positions[id(value)])
        return self._seen.get(id(value))

    def replaced(self, value: Any) -> Any:
        """The fake input for a real tensor; any other value unchanged."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or is_traceable_wrapper_subclass(value):
            return value
        if self._inputs.is_known(value):
            return value
        if id(value) in self._positions:
            return self._inputs.input_at(self._positions[id(value)])
        if id(value) not in self._seen:
            with paused_recordings(), without_torch_function():
                source = _FIRST_SOURCE + len(self.tensors)
                fake = fake_slots([value], self._fake_mode, num_static=1, dynamic=False, first_source=source)[0]
                self._seen[id(value)] = self._inputs.add_captured(fake, is_leaf=value.is_leaf)
            self.tensors.append(value)
        return self._seen[id(value)]
