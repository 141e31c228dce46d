"""The compiled forward and backward as one step of autograd; as several, where parts of it go on from different histories.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDispatchAutograd
Differs: only outputs that have a gradient pass through autograd; all others, and what views need, go beside it. Upstream's
compiled forward is always one step: the backward of one result calls what is behind every input, and frees what other results
need there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import function_of, has_saved_tensors_hooks, is_any_autocast_enabled, without_autocast
from refimpl.aot.analysis.autograd_graph import history_of
from refimpl.aot.analysis.metadata import ProgramAnalysis
from refimpl.aot.errors import DoubleBackward
from refimpl.aot.runtime.eager_calls import in_memory, is_memoryless, refuse_dual, refuse_nan
from refimpl.aot.runtime.graph_call import BoxedCall, coerce_tangent, zeros_like_later
from refimpl.aot.runtime.saved_values import SavedValuesPlan, SavedValuesState
from refimpl.aot.runtime.subclass_call import WrapperTangents

DifferentiableCall = Callable[[list[Any], list[Any]], tuple[torch.Tensor, ...]]
Tangents = Sequence[torch.Tensor | None]  # of the differentiable outputs; None where no gradient arrives


class CompiledTraining:
    """A compiled forward and backward, as a function of (list to be filled with all forward outputs, slots) that returns the
    forward outputs with gradients."""

    def __init__(
        self,
        forward: BoxedCall,
        get_backward: Callable[[frozenset[int]], BoxedCall],
        analysis: ProgramAnalysis,
        *,
        dependences: Sequence[frozenset[int]] = (),
        histories: Sequence[frozenset[int]] = (),
        wrapper_tangents: WrapperTangents | None = None,
        saving: SavedValuesPlan | None = None,
    ) -> None:
        """get_backward: compiles the backward graph, if that is not done yet, for tangents of which those at the given positions
        are zeros that nobody has computed.
        dependences: of each gradient, the indices of the tangents it depends on. One that depends on none of those that arrive is
        None, as in eager mode.
        histories: of each gradient, the tangents with which it has a derivative itself, which is refused: only eager mode has it.
        wrapper_tangents: given where wrapper subclasses are among the outputs.
        saving: given where parts of the backward differ in what they need or free.
        """
        self.forward = forward
        self.get_backward = get_backward
        self.dependences = dependences
        self.histories = histories
        self.wrapper_tangents = wrapper_tangents
        self.saving = saving
        self.count = analysis.num_forward_outputs
        self.differentiable = analysis.differentiable
        self.gradients = analysis.gradients
        self.given_unread = analysis.given_unread
        self.others = [p for p in range(self.count) if p not in self.differentiable]
        self.coercions = [coerce_tangent(info) for info in analysis.tangents]
        self.tangent_indices = [self.differentiable.index(info.position) for info in analysis.tangents]
        self.refused = [(self.differentiable.index(position), error) for position, error in analysis.refused]
        self.is_partial = wrapper_tangents is None and (len(self.differentiable) > 1 or bool(self.refused))
        self.has_histories = any(histories)
        self.unreached = _unreached_slots(analysis)
        self.expected_needs = tuple(
            [info.requires_grad and i not in self.unreached for i, info in enumerate(analysis.inputs)]
        )
        has_parts = saving is not None and saving.has_parts
        self.parts = PartsState(analysis, dependences) if has_parts else None

    def __call__(self, holder: list[Any], slots: list[Any]) -> tuple[torch.Tensor, ...]:
        for position in self.unreached:
            slots[position] = slots[position].detach()
        if is_any_autocast_enabled():
            with without_autocast():
                return self._run(holder, slots)
        return self._run(holder, slots)

    def _run(self, holder: list[Any], slots: list[Any]) -> tuple[torch.Tensor, ...]:
        parts = () if self.parts is None or has_saved_tensors_hooks() else self.parts.of_call(slots)
        if parts:
            return self._run_in_parts(holder, slots, parts)
        return Compiled.apply(self, holder, _origins_of(slots) if self.has_histories else [], *slots)

    def _run_in_parts(self, holder: list[Any], slots: list[Any], parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
        assert self.saving is not None
        with torch.no_grad():
            outs = self.forward(list(slots))
        saved = outs[self.count :]
        saved_tensors = [v for v in saved if isinstance(v, torch.Tensor)]
        holder += outs[: self.count]
        results = self.returned_of(outs, slots)
        kept = SavedValuesState(saved_tensors, self.saving, slots)
        call = _CallInParts(
            numbers=[v for v in saved if not isinstance(v, torch.Tensor)],
            likes=[zeros_like_later(t) for t in results],
            kept=kept,
            refused=kept.others(saved_tensors),
            origins=_origins_of(slots) if self.has_histories else [],
        )
        for part in parts:
            # What only leads to a leaf of the program's own, a view made without grad mode, has a history that reaches no slot.
            origins = [slots[i] for i in part.slots] or [torch.zeros((), requires_grad=True)]
            made = CompiledPart.apply(self, call, part, [results[i] for i in part.outputs], *origins)
            for index, result in zip(part.outputs, made, strict=True):
                results[index] = result
        return tuple(results)

    def returned_of(self, outs: list[Any], slots: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs that autograd is given.

        A view made in the forward, or an input returned as it is, could not be written to afterwards: these are detached. So is
        what is another output too, which must not get the history of this one.
        """
        given = {id(slot) for slot in slots}
        given.update([id(outs[p]) for p in self.others])
        returned = [outs[p] for p in self.differentiable]
        for index, t in enumerate(returned):
            if t._is_view() or id(t) in given:
                returned[index] = t.detach()
            given.add(id(t))  # two results with one value, of which each has its own history
        return returned

    def unreached_outputs(self, needs: Sequence[bool]) -> list[int]:
        """Of the differentiable outputs, those that depend on no slot that needs a gradient in this call."""
        pairs = zip(self.gradients, needs, strict=True)
        found = frozenset().union(*[self.dependences[g] for g, is_needed in pairs if g is not None and is_needed])
        return [index for k, index in enumerate(self.tangent_indices) if k not in found]

    def gradients_of(self, call: Any, grads: Tangents) -> Sequence[Any]:
        """The gradients of the slots. `call`: what the forward has left, a context of autograd or a _CallInParts."""
        if all(grad is None for grad in grads):  # of an output whose use has a gradient that is None
            return (None,) * len(self.gradients)
        if any(map(is_memoryless, grads)):
            return refuse_nan(self.gradients_of(call, in_memory(grads)))
        refuse_dual(grads)
        for index, error in self.refused:
            if grads[index] is not None:
                raise _again(error)
        arrived = {k for k, index in enumerate(self.tangent_indices) if grads[index] is not None}
        saved = self._saved_of(call, arrived)
        tangents = self._tangents_of(call, grads)
        missing = frozenset(range(len(self.tangent_indices))) - arrived
        with torch.no_grad():
            if is_any_autocast_enabled():
                with without_autocast():
                    found = self.get_backward(missing)([*call.numbers, *saved, *tangents])
            else:
                found = self.get_backward(missing)([*call.numbers, *saved, *tangents])
        returned = [None if g is None else found[g] for g in self.gradients]
        if missing and self.dependences and (self.is_partial or self.wrapper_tangents is not None):
            returned = self._without_unreached(returned, arrived)
        return self._with_refusals(returned, call, grads, arrived) if torch.is_grad_enabled() else returned

    def _saved_of(self, call: Any, arrived: Collection[int]) -> Sequence[torch.Tensor | None]:
        """The saved tensors. Autograd raises where any backward has run for good, unless it was one of a part."""
        if self.saving is None:
            return call.saved_tensors
        saved = () if call.kept.is_divided else call.saved_tensors
        read = arrived
        if not all(unread.isdisjoint(arrived) for unread in self.given_unread):
            read = set(range(len(self.tangent_indices)))  # the backward that reads what arrives may not give these
        return call.kept.take(saved, read, arrived)

    def _tangents_of(self, call: Any, grads: Tangents) -> list[torch.Tensor]:
        if self.wrapper_tangents is not None:
            call.watched.check()
            return self.wrapper_tangents(call.likes, grads)
        if not self.is_partial:
            return [coerce(grad) for coerce, grad in zip(self.coercions, grads, strict=True)]  # type: ignore[arg-type]
        found: list[torch.Tensor] = []
        for index, coerce in zip(self.tangent_indices, self.coercions, strict=True):
            grad = grads[index]
            found.append(coerce(call.likes[index]() if grad is None else grad))
        return found

    def _without_unreached(self, returned: list[Any], arrived: Collection[int]) -> list[Any]:
        """None in place of gradients that depend on no tangent that arrives."""
        dependences = self.dependences
        return [
            None if index is None or (dependences[index] and dependences[index].isdisjoint(arrived)) else gradient
            for gradient, index in zip(returned, self.gradients, strict=True)
        ]

    def _with_refusals(self, returned: list[Any], call: Any, grads: Tangents, arrived: Collection[int]) -> list[Any]:
        """Gradients that in eager mode would have a history have one here whose derivative is an error."""
        given = {k: g for k in arrived if (g := grads[self.tangent_indices[k]]) is not None and g.requires_grad}

        def is_refused(index: int | None) -> bool:
            if index is None or not self.histories[index].isdisjoint(arrived):
                return index is not None
            return bool(given) and not (self.dependences and self.dependences[index].isdisjoint(given))

        pairs = zip(returned, self.gradients, strict=True)
        refused = [isinstance(g, torch.Tensor) and is_refused(i) for g, i in pairs]
        return _refuse_gradients(returned, refused, [*given.values(), *call.origins]) if any(refused) else returned


class _Step(torch.autograd.Function):
    """What a compiled forward and backward are one of, or one for each part."""


class Compiled(_Step):
    """All results of a compiled forward, as one step of autograd."""

    @staticmethod
    def forward(
        ctx: Any, training: CompiledTraining, holder: list[Any], origins: list[torch.Tensor], *slots: Any
    ) -> tuple[Any, ...]:
        outs = training.forward(list(slots))
        ctx.training, ctx.origins = training, origins
        saved = outs[training.count :]
        ctx.numbers = [v for v in saved if not isinstance(v, torch.Tensor)]
        saved_tensors = [v for v in saved if isinstance(v, torch.Tensor)]
        if training.saving is None:
            ctx.save_for_backward(*saved_tensors)
        holder += outs[: training.count]
        ctx.set_materialize_grads(False)
        if training.wrapper_tangents is not None:
            ctx.likes = training.wrapper_tangents.likes(outs)
            ctx.watched = training.wrapper_tangents.watch(slots, outs, saved)
        returned = training.returned_of(outs, slots)
        if training.is_partial:
            ctx.likes = [zeros_like_later(t) for t in returned]
        if training.saving is not None:
            ctx.kept = SavedValuesState(saved_tensors, training.saving, slots)
            ctx.save_for_backward(*ctx.kept.others(saved_tensors))
        needs = ctx.needs_input_grad[3:]
        if training.dependences and needs != training.expected_needs:
            ctx.mark_non_differentiable(*[returned[index] for index in training.unreached_outputs(needs)])
        return tuple(returned)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, None, *ctx.training.gradients_of(ctx, grads)


class CompiledPart(_Step):
    """Some results of a compiled forward that was run already, as a step of autograd that leads to the slots of `part`."""

    @staticmethod
    def forward(
        ctx: Any,
        training: CompiledTraining,
        call: _CallInParts,
        part: Part,
        returned: list[torch.Tensor],
        *slots: Any,
    ) -> tuple[Any, ...]:
        ctx.training, ctx.call, ctx.part = training, call, part
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*call.refused)
        if not all(ctx.needs_input_grad[4:]):
            needs = dict(zip(part.slots, ctx.needs_input_grad[4:], strict=True))
            without = training.unreached_outputs([needs.get(i, False) for i in range(len(training.gradients))])
            ctx.mark_non_differentiable(*[t for i, t in zip(part.outputs, returned, strict=True) if i in without])
        return tuple(returned)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if not ctx.part.slots:  # no gradient arrives anywhere
            return None, None, None, None, None
        arrived = dict(zip(ctx.part.outputs, grads, strict=True))
        training = ctx.training
        found = training.gradients_of(ctx.call, [arrived.get(i) for i in range(len(training.differentiable))])
        return None, None, None, None, *[found[position] for position in ctx.part.slots]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallInParts:
    """What the backwards of its parts share."""

    numbers: list[Any]
    likes: list[Callable[[], torch.Tensor]]
    kept: SavedValuesState
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
