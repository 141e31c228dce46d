"""Flattens traceable wrapper subclasses into their dense tensors, and rebuilds them.

Counterpart: torch/_functorch/_aot_autograd/subclass_utils.py, schemas.py SubclassCreationMeta
Differs: the program runs on wrappers throughout the one trace, and so does autograd; only the graph's placeholders and outputs
are dense tensors. Symbolic sizes of a wrapper are not graph inputs: they are read from the sizes of its dense tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from refimpl._torch import FakeTensor, FakeTensorMode, is_traceable_wrapper_subclass
from refimpl.aot.errors import UnexpectedSubclass
from refimpl.errors import UnsupportedByRefimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperLayout:
    """How one wrapper is built from dense tensors. None in `inner` is a dense tensor, or an object that is no tensor.

    size and stride hold integers and SymInts of the trace, which may be nested ints.
    """

    kind: type[torch.Tensor]
    attributes: tuple[str, ...]
    inner: tuple[WrapperLayout | None, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    # For each of (*size, *stride), which dense tensor has the same number: (its index, dimension, whether that is a stride).
    # None for a number that is not symbolic. Empty if none is symbolic.
    sources: tuple[tuple[int, int, bool] | None, ...] = ()

    @property
    def count(self) -> int:
        """Number of dense tensors."""
        return sum(1 if layout is None else layout.count for layout in self.inner)

    @classmethod
    def of(cls, wrapper: torch.Tensor) -> WrapperLayout:
        names, context = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
        values = [getattr(wrapper, name) for name in names]
        return cls(
            kind=type(wrapper),
            attributes=tuple(names),
            inner=tuple(layout_of(value) for value in values),
            context=context,
            size=tuple(wrapper.shape),
            stride=tuple(wrapper.stride()),
            sources=_sources(wrapper),
        )


def _sources(wrapper: torch.Tensor) -> tuple[tuple[int, int, bool] | None, ...]:
    numbers = (*wrapper.shape, *wrapper.stride())
    if not any(map(_is_symbolic, numbers)):
        return ()
    found: dict[Any, tuple[int, int, bool]] = {}
    names, _ = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = [part for name in names for part in dense_parts(getattr(wrapper, name))]
    for index, part in enumerate(parts):
        if isinstance(part, torch.Tensor):
            for is_stride, own in ((False, part.shape), (True, part.stride())):
                for dim, n in enumerate(own):
                    if _is_symbolic(n):
                        found.setdefault(n.node.expr, (index, dim, is_stride))
    if not all(n.node.expr in found for n in numbers if _is_symbolic(n)):
        raise UnsupportedByRefimpl(
            seen=f"a {type(wrapper).__name__} with a symbolic size that none of its tensors has: {tuple(wrapper.shape)}",
            supported="symbolic sizes of wrappers that are also sizes of their tensors",
            do="compile with dynamic=False",
        )
    return tuple(found[n.node.expr] if _is_symbolic(n) else None for n in numbers)


def _read(parts: Sequence[Any], source: tuple[int, int, bool]) -> Any:
    part, dim, is_stride = source
    return parts[part].stride(dim) if is_stride else parts[part].shape[dim]


def _is_fake(parts: Sequence[Any]) -> bool:
    return any(isinstance(part, FakeTensor) for part in parts)


def _is_symbolic(number: Any) -> TypeGuard[torch.SymInt]:
    return isinstance(number, torch.SymInt) and not number.node.is_nested_int()


Layout = WrapperLayout | None


def layout_of(value: Any) -> Layout:
    """The layout of a wrapper; None for any other value."""
    is_wrapper = isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)
    return WrapperLayout.of(value) if is_wrapper else None


def dense_parts(value: Any) -> list[Any]:
    """The dense tensors of a wrapper, also of wrappers inside it, in the order of `__tensor_flatten__`; else the value itself."""
    parts: list[Any] = []
    append_parts(value, layout_of(value), parts)
    return parts


def append_parts(value: Any, layout: Layout, parts: list[Any]) -> None:
    """Appends the dense parts of a value whose layout is known."""
    if layout is None:
        parts.append(value)
        return
    for name, inner in zip(layout.attributes, layout.inner, strict=True):
        append_parts(getattr(value, name), inner, parts)


def build(layout: Layout, parts: Sequence[Any], number: Callable[[Any], Any] | None = None) -> Any:
    """Builds a value of the layout from its dense parts.

    number: maps each size and stride of the layout to the one that the wrapper gets. Without it, symbolic ones are read from the
    parts if these are real tensors. The wrapper does not require a gradient unless one of its tensors does.
    """
    if layout is None:
        return parts[0]
    inner: dict[str, Any] = {}
    first = 0
    for name, sub in zip(layout.attributes, layout.inner, strict=True):
        count = 1 if sub is None else sub.count
        inner[name] = build(sub, parts[first : first + count], number)
        first += count
    size, stride = layout.size, layout.stride
    if number is not None:
        size, stride = tuple(map(number, size)), tuple(map(number, stride))
    elif layout.sources and not _is_fake(parts):
        numbers = [
            n if source is None else _read(parts, source)
            for n, source in zip((*size, *stride), layout.sources, strict=True)
        ]
        size, stride = tuple(numbers[: len(size)]), tuple(numbers[len(size) :])
    wrapper = layout.kind.__tensor_unflatten__(inner, layout.context, torch.Size(size), stride)  # type: ignore[attr-defined]
    if wrapper.requires_grad and wrapper.is_leaf and not any(map(_requires_grad, inner.values())):
        wrapper.requires_grad_(False)
    return wrapper


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def rewrapped(wrapper: torch.Tensor) -> torch.Tensor:
    """Another wrapper of the same dense tensors, without autograd history. No op runs to make it."""
    return build(layout_of(wrapper), dense_parts(wrapper))


def fake_wrapper(
    wrapper: torch.Tensor, fake_mode: FakeTensorMode, fake_parts: Callable[[list[torch.Tensor]], list[torch.Tensor]]
) -> torch.Tensor:
    """A copy of a real wrapper whose dense tensors are fake; `fake_parts` makes them."""
    layout = layout_of(wrapper)
    parts = dense_parts(wrapper)
    fakes = fake_parts(parts)
    symbols: dict[int, Any] = {}
    for fake in fakes:
        if isinstance(fake, torch.Tensor):
            if fake.requires_grad:
                fake.requires_grad_(False)
            for n in (*fake.shape, *fake.stride()):
                if _is_symbolic(n):
                    symbols.setdefault(int(n.node.hint), n)

    def number(n: Any) -> Any:
        return symbols.get(n, n) if type(n) is int else n

    with fake_mode:
        return build(layout, fakes, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLayout:
    """The layouts of a traced program's inputs, forward outputs, tangents and gradients.

    A wrapper is one entry here; in the graph it is as many placeholders or outputs as it has dense tensors.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    tangents: tuple[Layout, ...]
    gradients: tuple[Layout, ...]

    @property
    def num_dense_outputs(self) -> int:
        """How many outputs of the forward graph precede the saved values."""
        return dense_count(self.outputs)

    def of_wholes(self, dependences: Sequence[frozenset[int]]) -> tuple[frozenset[int], ...]:
        """For every gradient, the tangents that it depends on.

        dependences: for every dense tensor of the gradients, the positions of the dense tangents that it depends on.
        """
        wholes = [i for i, layout in enumerate(self.tangents) for _ in range(dense_count([layout]))]
        remaining = iter(dependences)
        return tuple(
            frozenset(wholes[part] for _ in range(dense_count([layout])) for part in next(remaining))
            for layout in self.gradients
        )

    def dense_inputs(self, slots: Sequence[Any]) -> list[Any]:
        """The graph's inputs for these slots. Slots beyond `inputs` are dense already."""
        parts: list[Any] = []
        for position, slot in enumerate(slots):
            append_parts(slot, self.inputs[position] if position < len(self.inputs) else None, parts)
        return parts

    def dense_positions(self, position: int) -> range:
        """The positions of one input's dense tensors among those of all inputs."""
        first = dense_count(self.inputs[:position]) + max(0, position - len(self.inputs))
        layout = self.inputs[position] if position < len(self.inputs) else None
        return range(first, first + (1 if layout is None else layout.count))


def dense_count(layouts: Sequence[Layout]) -> int:
    """The number of dense tensors in values of these layouts."""
    return sum(1 if layout is None else layout.count for layout in layouts)


def check_layout(value: Any, expected: Layout, what: str) -> None:
    """Raises UnexpectedSubclass if a value passed to a compiled program does not have the layout it was compiled for."""
    if expected is None:
        if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
            raise UnexpectedSubclass(what, seen=type(value).__name__, expected="a plain tensor")
        return
    if type(value) is not expected.kind:
        raise UnexpectedSubclass(what, seen=type(value).__name__, expected=expected.kind.__name__)
    names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    if tuple(names) != expected.attributes:
        raise UnexpectedSubclass(what, seen=f"one with {tuple(names)}", expected=f"one with {expected.attributes}")
    if not same_context(expected, value, context):
        raise UnexpectedSubclass(what, seen=f"one with {context!r}", expected=f"one with {expected.context!r}")
    for name, inner in zip(expected.attributes, expected.inner, strict=True):
        check_layout(getattr(value, name), inner, f"{what}.{name}")


def same_context(expected: WrapperLayout, value: Any, context: Any) -> bool:
    """Whether a wrapper's context (from `__tensor_flatten__`) equals the expected one.

    The class's `__metadata_guard__` decides, if there is one. Otherwise an entry "requires_grad" is not compared.
    """
    guard = getattr(expected.kind, "__metadata_guard__", None)
    if guard is not None:
        return bool(guard(expected.context, context))
    if isinstance(context, dict) and isinstance(expected.context, dict):
        return _without_gradient(context) == _without_gradient(expected.context)
    return bool(context == expected.context)


def _without_gradient(context: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if key != "requires_grad"}
