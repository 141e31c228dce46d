"""Calls compiled graphs of dense tensors with wrapper subclasses: flattens the inputs, and rebuilds wrappers from the outputs.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDispatchSubclassWrapper,
AOTDispatchAutograd.process_runtime_tangent
Differs: a wrapper output may get a plain tensor as its tangent, or None. The tangent becomes a wrapper: the plain tensor is added
to a wrapper of zeros like the output, and None becomes those zeros. In eager mode, too, the class decides what a plain tangent
means, when its ops run in backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.analysis.metadata import Geometry, ProgramAnalysis, TangentInfo
from refimpl.aot.analysis.subclasses import (
    Layout,
    ProgramLayout,
    append_parts,
    build,
    check_layout,
    dense_count,
    dense_parts,
    layout_of,
    same_context,
)
from refimpl.aot.errors import StaleWrapper, UnexpectedSubclass
from refimpl.aot.runtime.graph_call import BoxedCall, coerce_tangent


class WatchedWrappers:
    """Wrappers of which backward saves a dense tensor, with their versions.

    A write to a wrapper need not bump the versions of its dense tensors, so autograd's own check may miss it.
    """

    def __init__(self, wrappers: Sequence[Any], kept: Sequence[Any]) -> None:
        needed = {id(value) for value in kept}
        # A detached tensor shares the version. The tensor itself would make a reference cycle with its own grad_fn.
        self._seen = [
            (w.detach(), w._version)
            for w in wrappers
            if not w.is_inference() and any(id(part) in needed for part in dense_parts(w))
        ]

    def check(self) -> None:
        """Raises StaleWrapper if a wrapper was written to since; autograd raises for a plain saved tensor."""
        for wrapper, version in self._seen:
            if wrapper._version != version:
                raise StaleWrapper(type(wrapper), tuple(wrapper.shape), wrapper._version, version)


def with_wrapped_slots(compiled: BoxedCall, layout: ProgramLayout) -> BoxedCall:
    """A function from slots to forward outputs and saved values; `compiled` takes and returns dense tensors."""
    inputs, num_known = layout.inputs, len(layout.inputs)
    make_outputs = maker(layout.outputs)
    count = layout.num_dense_outputs

    def call(slots: list[Any]) -> list[Any]:
        parts: list[Any] = []
        for position, slot in enumerate(slots):
            expected = inputs[position] if position < num_known else None
            check_layout(slot, expected, f"argument {position}")
            append_parts(slot, expected, parts)
        slots.clear()
        found = compiled(parts)
        return [*make_outputs(found[:count]), *found[count:]]

    return call


def with_wrapped_gradients(get_backward: Callable[[], BoxedCall], layout: ProgramLayout) -> Callable[[], BoxedCall]:
    """The same for the backward graph: its last inputs are the tangents, its outputs the gradients."""
    tangents = layout.tangents
    make_gradients = maker(layout.gradients)

    def get() -> BoxedCall:
        compiled = get_backward()

        def call(args: list[Any]) -> list[Any]:
            first = len(args) - len(tangents)
            parts = args[:first]
            for tangent, expected in zip(args[first:], tangents, strict=True):
                append_parts(tangent, expected, parts)
            args.clear()
            return make_gradients(compiled(parts))

        return call

    return get


def maker(layouts: Sequence[Layout]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that builds values of these layouts from the list of all their dense parts."""
    if not any(layouts):
        return list
    ranges: list[tuple[Layout, int, int]] = []
    for position, layout in enumerate(layouts):
        first = dense_count(layouts[:position])
        ranges.append((layout, first, first + (1 if layout is None else layout.count)))

    def make(parts: Sequence[Any]) -> list[Any]:
        return [parts[first] if layout is None else build(layout, parts[first:last]) for layout, first, last in ranges]

    return make


class WrapperTangents:
    """Converts tangents to what the backward graph takes: the classes and strides that they had when it was traced."""

    def __init__(self, analysis: ProgramAnalysis, layout: ProgramLayout, examples: Sequence[torch.Tensor]) -> None:
        self._layouts = layout.tangents
        self._positions = [info.position for info in analysis.tangents]
        self._indices = [analysis.differentiable.index(position) for position in self._positions]
        self._wrapper_slots = [i for i, sub in enumerate(layout.inputs) if sub is not None]
        self._wrapper_outputs = [i for i, sub in enumerate(layout.outputs) if sub is not None]
        coercions = iter([_coercion_of(example) for example in examples])
        self._coercions = [
            [next(coercions) for _ in range(1 if layout is None else layout.count)] for layout in layout.tangents
        ]

    def likes(self, outputs: Sequence[Any]) -> list[Callable[[], torch.Tensor]]:
        """For each forward output with a tangent, a function that makes zeros like it without keeping the output alive."""
        found: list[Callable[[], torch.Tensor]] = []
        for position, layout in zip(self._positions, self._layouts, strict=True):
            found.append(_zeros_like(outputs[position], layout))
        return found

    def watch(self, slots: Sequence[Any], outputs: Sequence[Any], kept: Sequence[Any]) -> WatchedWrappers:
        """The wrappers among inputs and outputs to check in backward. Call this when forward saves its values (`kept`)."""
        wrappers = [slots[i] for i in self._wrapper_slots]
        return WatchedWrappers([*wrappers, *(outputs[i] for i in self._wrapper_outputs)], kept)

    def __call__(self, likes: Sequence[Callable[[], torch.Tensor]], gradients: Sequence[Any]) -> list[torch.Tensor]:
        """The tangents for the backward graph. `gradients` are what autograd passes, None for an output without a gradient.

        Raises UnexpectedSubclass for one of a class that cannot be converted.
        """
        return [
            self._coerced(tangent, like() if gradients[index] is None else gradients[index], like)
            for tangent, (index, like) in enumerate(zip(self._indices, likes, strict=True))
        ]

    def _coerced(self, index: int, gradient: torch.Tensor, like: Callable[[], torch.Tensor]) -> torch.Tensor:
        layout = self._layouts[index]
        gradient = as_layout(gradient, layout, like, f"gradient {index}")
        if layout is None:
            return self._coercions[index][0](gradient)
        parts = [
            coerce(part) if isinstance(part, torch.Tensor) else part
            for coerce, part in zip(self._coercions[index], dense_parts(gradient), strict=True)
        ]
        return build(layout_of(gradient) or layout, parts)


def _coercion_of(example: Any) -> Any:
    """What converts this dense part of a tangent; a DTensor's mesh, which is no tensor, stays as it is."""
    if not isinstance(example, torch.Tensor):
        return None
    return coerce_tangent(TangentInfo(position=0, geometry=Geometry.of(example), dtype=example.dtype))


def as_layout(gradient: torch.Tensor, expected: Layout, like: Callable[[], torch.Tensor], what: str) -> torch.Tensor:
    """Converts the gradient to the expected layout. Raises UnexpectedSubclass if its class does not allow that."""
    layout = layout_of(gradient)
    if layout is None and expected is None:
        return gradient
    if layout is None:
        with torch.no_grad():
            sum_ = like() + gradient
        check_layout(sum_, expected, what)
        return sum_
    if expected is not None and layout.kind is expected.kind and same_context(expected, gradient, layout.context):
        return gradient
    if expected is not None and layout.kind is expected.kind and not gradient.is_contiguous():
        with torch.no_grad():  # the backward of `sum` expands, and the context of a DTensor has strides
            dense = gradient.contiguous()
        if dense.is_contiguous():
            return as_layout(dense, expected, like, what)
    coerce = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
    context = None if expected is None else expected.context
    kind = torch.Tensor if expected is None else expected.kind
    found = None
    if coerce is not None:
        found = coerce(context) if layout.kind is kind else coerce(context, kind)
    if found is None:
        raise UnexpectedSubclass(
            what,
            seen=f"{layout.kind.__name__} with {layout.context!r}",
            expected="a plain tensor" if expected is None else f"{kind.__name__} with {context!r}",
        )
    check_layout(found, expected, what)
    return found


def _zeros_like(output: torch.Tensor, layout: Layout) -> Callable[[], torch.Tensor]:
    if layout is None:
        return _zeros(output)
    parts = [
        _zeros(part)
        if isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex())
        else _kept(part)
        for part in dense_parts(output)
    ]
    made = layout_of(output) or layout

    def zeros() -> torch.Tensor:
        return build(made, [make() for make in parts])

    return zeros


def _zeros(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    shape, dtype, device = tensor.shape, tensor.dtype, tensor.device
    return lambda: torch.zeros(shape, dtype=dtype, device=device)


def _kept(part: Any) -> Callable[[], Any]:
    return lambda: part
