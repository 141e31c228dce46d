"""The compiled forward and backward as one step of autograd; as several, where parts of it go on from different histories.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDispatchAutograd; none; upstream's compiled forward
  is one step. A backward of one result then calls what is behind every input, with nothing where no gradient arrives:
  what that has saved is let go, and gone for the backward of another result
Differs: only outputs that have a gradient pass through autograd; all others, and what views need, go beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import function_of, has_saved_tensors_hooks, is_any_autocast_enabled, without_autocast
from refimpl.aot.analysis.history import history_of
from refimpl.aot.analysis.metadata import ProgramAnalysis
from refimpl.aot.errors import DoubleBackward
from refimpl.aot.runtime.forward_mode import refuse_dual
from refimpl.aot.runtime.graph_call import BoxedCall, coerce_tangent, zeros_like_later
from refimpl.aot.runtime.kept_values import Keeping, KeptValuesState
from refimpl.aot.runtime.memoryless_zeros import in_memory, is_memoryless, refuse_nan
from refimpl.aot.runtime.subclass_call import WrapperTangents

DifferentiableCall = Callable[[list[Any], list[Any]], tuple[torch.Tensor, ...]]


def differentiable_call(
    forward: BoxedCall,
    get_backward: Callable[[frozenset[int]], BoxedCall],
    analysis: ProgramAnalysis,
    dependences: Sequence[frozenset[int]] = (),
    histories: Sequence[frozenset[int]] = (),
    wrapper_tangents: WrapperTangents | None = None,
    keeping: Keeping | None = None,
) -> DifferentiableCall:
    """A function of (list to be filled with all forward outputs, slots) that returns the forward outputs with gradients.

    `get_backward` compiles the backward graph, for tangents of which those at some positions are zeros that nobody has computed,
    if that is not done yet. `dependences` are, of each gradient that it gives, the
    indices of the incoming gradients it depends on: one that depends on none of those that arrive is None, as in eager mode.
    `histories` are those with which it has a derivative itself, which is refused: only eager mode has it.
    `wrapper_tangents` is given where wrapper subclasses are among the outputs, `keeping` where parts of the backward differ in
    what they need or let go.
    """
    count = analysis.num_forward_outputs
    differentiable = analysis.differentiable
    others = [p for p in range(count) if p not in differentiable]
    coercions = [coerce_tangent(info) for info in analysis.tangents]
    tangent_indices = [differentiable.index(info.position) for info in analysis.tangents]
    gradients = analysis.gradients
    refused = [(differentiable.index(position), error) for position, error in analysis.refused]
    is_partial = wrapper_tangents is None and (len(differentiable) > 1 or bool(refused))

    def tangents_of(ctx: Any, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        if not is_partial:
            return [coerce(grad) for coerce, grad in zip(coercions, grads, strict=True)]  # type: ignore[arg-type]
        found: list[torch.Tensor] = []
        for index, coerce in zip(tangent_indices, coercions, strict=True):
            grad = grads[index]
            found.append(coerce(ctx.likes[index]() if grad is None else grad))
        return found

    def without_unreached(returned: list[Any], grads: Sequence[torch.Tensor | None]) -> list[Any]:
        arrived = {k for k, index in enumerate(tangent_indices) if grads[index] is not None}
        if len(arrived) == len(tangent_indices):
            return returned
        return [
            None if index is None or (dependences[index] and arrived.isdisjoint(dependences[index])) else gradient
            for gradient, index in zip(returned, gradients, strict=True)
        ]

    def unreached_outputs(needs: Sequence[bool]) -> list[int]:
        """Of the differentiable outputs, those that depend on no slot that needs a gradient in this call."""
        reached = [dependences[g] for g, is_needed in zip(gradients, needs, strict=True) if g is not None and is_needed]
        found = frozenset().union(*reached)
        return [index for k, index in enumerate(tangent_indices) if k not in found]

    has_histories = any(histories)
    unreached = _unreached_slots(analysis)
    needs = [info.requires_grad for info in analysis.inputs]
    expected_needs = (False, False, *[is_needed and i not in unreached for i, is_needed in enumerate(needs)])

    def returned_of(outs: list[Any], slots: Sequence[Any]) -> list[torch.Tensor]:
        # A view made in here, or an input returned as it is, could not be written to afterwards.
        # What is another output too must not get the history of this one.
        given = {id(slot) for slot in slots}
        given.update([id(outs[p]) for p in others])
        returned = [outs[p] for p in differentiable]
        for index, t in enumerate(returned):
            if t._is_view() or id(t) in given:
                returned[index] = t.detach()
            given.add(id(t))  # two results with one value, of which each has its own history
        return returned

    def gradients_of(call: Any, grads: Sequence[torch.Tensor | None]) -> Sequence[Any]:
        if all(grad is None for grad in grads):  # of an output whose use has a gradient that is None
            return (None,) * len(gradients)
        if any(map(is_memoryless, grads)):
            return refuse_nan(gradients_of(call, in_memory(grads)))
        refuse_dual(grads)
        for index, error in refused:
            if grads[index] is not None:
                raise _again(error)
        # Autograd raises where any backward has run for good.
        saved = () if keeping is not None and call.kept.is_divided else call.saved_tensors
        arrived = read = {k for k, index in enumerate(tangent_indices) if grads[index] is not None}
        if not all(read.isdisjoint(unread) for unread in analysis.given_unread):
            read = set(range(len(tangent_indices)))  # the backward that reads what arrives may not give these
        if keeping is not None:
            saved = call.kept.take(saved, read, arrived)
        if wrapper_tangents is None:
            tangents = tangents_of(call, grads)
        else:
            call.watched.check()
            tangents = wrapper_tangents(call.likes, grads)
        missing = frozenset(range(len(tangent_indices))) - arrived
        with torch.no_grad():
            if is_any_autocast_enabled():
                with without_autocast():
                    found = get_backward(missing)([*call.numbers, *saved, *tangents])
            else:
                found = get_backward(missing)([*call.numbers, *saved, *tangents])
        returned = [None if g is None else found[g] for g in gradients]
        if dependences and (is_partial or wrapper_tangents is not None):
            returned = without_unreached(returned, grads)
        return with_refusals(returned, call, grads, arrived) if torch.is_grad_enabled() else returned

    def with_refusals(
        returned: list[Any], call: Any, grads: Sequence[torch.Tensor | None], arrived: Collection[int]
    ) -> list[Any]:
        """Gradients that in eager mode would have a history have one here whose derivative is an error."""
        given = {k: g for k in arrived if (g := grads[tangent_indices[k]]) is not None and g.requires_grad}

        def is_refused(index: int | None) -> bool:
            if index is None or not histories[index].isdisjoint(arrived):
                return index is not None
            return bool(given) and not (dependences and dependences[index].isdisjoint(given))

        refused = [isinstance(g, torch.Tensor) and is_refused(i) for g, i in zip(returned, gradients, strict=True)]
        return _refuse_gradients(returned, refused, [*given.values(), *call.origins]) if any(refused) else returned

    class Compiled(_Step):
        @staticmethod
        def forward(ctx: Any, holder: list[Any], origins: list[torch.Tensor], *slots: Any) -> tuple[Any, ...]:
            outs = forward(list(slots))
            ctx.origins = origins
            saved = outs[count:]
            ctx.numbers = [v for v in saved if not isinstance(v, torch.Tensor)]
            saved_tensors = [v for v in saved if isinstance(v, torch.Tensor)]
            if keeping is None:
                ctx.save_for_backward(*saved_tensors)
            holder += outs[:count]
            ctx.set_materialize_grads(False)
            if wrapper_tangents is not None:
                ctx.likes = wrapper_tangents.likes(outs)
                ctx.watched = wrapper_tangents.watch(slots, outs, saved)
            returned = returned_of(outs, slots)
            if is_partial:
                ctx.likes = [zeros_like_later(t) for t in returned]
            if keeping is not None:
                ctx.kept = KeptValuesState(saved_tensors, keeping, slots)
                ctx.save_for_backward(*ctx.kept.others(saved_tensors))
            if dependences and ctx.needs_input_grad != expected_needs:
                ctx.mark_non_differentiable(*[returned[index] for index in unreached_outputs(ctx.needs_input_grad[2:])])
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None, None, *gradients_of(ctx, grads)

    class CompiledPart(_Step):
        @staticmethod
        def forward(
            ctx: Any, call: _CallInParts, part: Part, returned: list[torch.Tensor], *slots: Any
        ) -> tuple[Any, ...]:
            ctx.call, ctx.part = call, part
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*call.refused)
            if not all(ctx.needs_input_grad[3:]):
                needs = dict(zip(part.slots, ctx.needs_input_grad[3:], strict=True))
                without = unreached_outputs([needs.get(position, False) for position in range(len(gradients))])
                ctx.mark_non_differentiable(*[t for i, t in zip(part.outputs, returned, strict=True) if i in without])
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if not ctx.part.slots:  # no gradient arrives anywhere
                return None, None, None, None
            arrived = dict(zip(ctx.part.outputs, grads, strict=True))
            found = gradients_of(ctx.call, [arrived.get(index) for index in range(len(differentiable))])
            return None, None, None, *[found[position] for position in ctx.part.slots]

    def call_in_parts(holder: list[Any], slots: list[Any], parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
        assert keeping is not None
        with torch.no_grad():
            outs = forward(list(slots))
        saved = outs[count:]
        saved_tensors = [v for v in saved if isinstance(v, torch.Tensor)]
        holder += outs[:count]
        results = returned_of(outs, slots)
        kept = KeptValuesState(saved_tensors, keeping, slots)
        call = _CallInParts(
            numbers=[v for v in saved if not isinstance(v, torch.Tensor)],
            likes=[zeros_like_later(t) for t in results],
            kept=kept,
            refused=kept.others(saved_tensors),
            origins=_origins_of(slots) if has_histories else [],
        )
        for part in parts:
            # What only leads to a leaf of the program's own, a view made without grad mode, has a history that reaches no slot.
            origins = [slots[i] for i in part.slots] or [torch.zeros((), requires_grad=True)]
            made = CompiledPart.apply(call, part, [results[i] for i in part.outputs], *origins)
            for index, result in zip(part.outputs, made, strict=True):
                results[index] = result
        return tuple(results)

    partition = PartsState(analysis, dependences) if keeping is not None and keeping.has_parts else None

    def run(holder: list[Any], slots: list[Any]) -> tuple[torch.Tensor, ...]:
        parts = () if partition is None or has_saved_tensors_hooks() else partition.of_call(slots)
        if parts:
            return call_in_parts(holder, slots, parts)
        return Compiled.apply(holder, _origins_of(slots) if has_histories else [], *slots)

    def call(holder: list[Any], slots: list[Any]) -> tuple[torch.Tensor, ...]:
        for position in unreached:
            slots[position] = slots[position].detach()
        if is_any_autocast_enabled():
            with without_autocast():
                return run(holder, slots)
        return run(holder, slots)

    return call


class _Step(torch.autograd.Function):
    """What a compiled forward and backward are one of, or one for each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallInParts:
    """What the backwards of its parts share."""

    numbers: list[Any]
    likes: list[Callable[[], torch.Tensor]]
    kept: KeptValuesState
    refused: list[torch.Tensor]
    """Tensors that autograd refuses to save."""
    origins: list[torch.Tensor]


def is_of_graph(tensor: torch.Tensor) -> bool:
    """Whether it is a result of a compiled graph, whose hooks are called with None where only other results have gradients."""
    made_by = function_of(history_of(tensor))
    return isinstance(made_by, type) and issubclass(made_by, _Step)


def _unreached_slots(analysis: ProgramAnalysis) -> list[int]:
    """Slots that no result has a gradient for. Their histories do not go on here: autograd calls what is behind an edge, and the
    hooks there, also where it brings nothing. None where that would leave the results without histories."""
    if not analysis.has_backward or analysis.refused:
        return []
    needing = [i for i, info in enumerate(analysis.inputs) if info.is_tensor and info.requires_grad]
    unreached = [i for i in needing if analysis.gradients[i] is None]
    return unreached if len(unreached) < len(needing) else []


def _again(error: Exception) -> Exception:
    """The error once more, for another caller, without the frames of the first."""
    try:
        fresh = type(error)(*error.args)
    except TypeError:
        return error
    return fresh


def _origins_of(slots: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors whose histories lead to the slots, and that hold no memory which autograd does not hold for these anyway: leaves,
    and one of no size."""
    needing = [slot for slot in slots if isinstance(slot, torch.Tensor) and slot.requires_grad]
    leaves = [slot for slot in needing if slot.is_leaf]
    others = [slot for slot in needing if not slot.is_leaf]
    return [*leaves, _Origin.apply(*others)] if others else leaves


class _Origin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *slots: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise DoubleBackward


def _refuse_gradients(
    gradients: Sequence[Any], is_refused: Sequence[bool], origins: Sequence[torch.Tensor]
) -> list[Any]:
    """The gradients, with a history that leads to the origins and whose derivative is an error."""
    with torch.enable_grad():
        tensors = [g for g, refused in zip(gradients, is_refused, strict=True) if refused]
        wrapped = iter(_Refusal.apply(len(tensors), *tensors, *origins))
    return [next(wrapped) if refused else g for g, refused in zip(gradients, is_refused, strict=True)]


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise DoubleBackward


# Results of one call that autograd is given in several steps, each with the histories that its own results go on from.


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`outputs` are indices among the differentiable outputs, `slots` those that have a gradient by one of them."""

    outputs: tuple[int, ...]
    slots: tuple[int, ...]


class PartsState:
    """Of one compiled program, by which of its slots have histories. Results that share what is kept for their gradients stay
    together, and so do those that go on from the same histories."""

    def __init__(self, analysis: ProgramAnalysis, dependences: Sequence[frozenset[int]]) -> None:
        """dependences: of each gradient, the incoming gradients that it depends on."""
        self._parts: list[Part] = []
        self._known: dict[frozenset[int], tuple[Part, ...]] = {}
        if dependences and not analysis.refused and all(dependences):
            self._parts = [_part(tangents, analysis, dependences) for tangents in _components(analysis.freed_together)]
        everywhere = set.intersection(*[set(part.slots) for part in self._parts]) if self._parts else set()
        self._apart = sorted({slot for part in self._parts for slot in part.slots} - everywhere)

    def of_call(self, slots: Sequence[Any]) -> tuple[Part, ...]:
        """Empty if there is but one: always so where all slots that need gradients are leaves."""
        histories = frozenset([i for i in self._apart if slots[i].requires_grad and not slots[i].is_leaf])
        if not histories:
            return ()
        if histories not in self._known:
            self._known[histories] = self._merged(histories)
        return self._known[histories]

    def _merged(self, histories: frozenset[int]) -> tuple[Part, ...]:
        groups: dict[frozenset[int], list[Part]] = {}
        for part in self._parts:
            groups.setdefault(histories.intersection(part.slots), []).append(part)
        if len(groups) == 1:
            return ()
        return tuple(
            Part(
                outputs=tuple(sorted(index for part in group for index in part.outputs)),
                slots=tuple(sorted({slot for part in group for slot in part.slots})),
            )
            for group in groups.values()
        )


def _part(tangents: frozenset[int], analysis: ProgramAnalysis, dependences: Sequence[frozenset[int]]) -> Part:
    outputs = [analysis.differentiable.index(analysis.tangents[one].position) for one in tangents]
    slots = [i for i, g in enumerate(analysis.gradients) if g is not None and dependences[g] & tangents]
    return Part(outputs=tuple(sorted(outputs)), slots=tuple(slots))


def _components(together: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Those that nothing of another is among."""
    found: list[frozenset[int]] = []
    for index, others in enumerate(together):
        joined = frozenset([index]) | others
        apart = [one for one in found if one.isdisjoint(joined)]
        found = [*apart, joined.union(*[one for one in found if not one.isdisjoint(joined)])]
    return found
