"""The compiled forward and backward as one torch.autograd.Function, or several, if results depend on different non-leaf inputs.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDispatchAutograd
Differs: only outputs with gradients pass through autograd; all others, and bases of views, are passed in a list. Upstream's
compiled forward is always one autograd node: the backward of one result also runs the autograd nodes behind inputs that only
other results depend on, and frees their saved tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import (
    function_of,
    has_saved_tensors_hooks,
    is_any_autocast_enabled,
    is_functorch_wrapped_tensor,
    is_inside_function_transform,
    set_grad_enabled,
    without_autocast,
)
from refimpl.aot.analysis.autograd_graph import history_of
from refimpl.aot.analysis.metadata import ProgramAnalysis
from refimpl.aot.errors import DoubleBackward
from refimpl.aot.runtime.eager_calls import in_memory, is_memoryless, refuse_dual, refuse_nan
from refimpl.aot.runtime.graph_call import BoxedCall, coerce_tangent, zeros_like_later
from refimpl.aot.runtime.saved_values import SavedValuesPlan, SavedValuesState
from refimpl.aot.runtime.subclass_call import WrapperTangents

DifferentiableCall = Callable[[list[Any], list[Any]], tuple[torch.Tensor, ...]]
Tangents = Sequence[torch.Tensor | None]  # of the differentiable outputs; None for missing ones


class CompiledTraining:
    """A compiled forward and backward as a function of (holder, slots). It returns the differentiable forward outputs.

    holder: an empty list, to which it adds all forward outputs."""

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
        """get_backward: gives the compiled backward for missing tangents at the given positions.
        dependences: for each gradient, the tangents it depends on. If none of these arrives, the gradient is None, as in eager.
        histories: for each gradient, the tangents for which it requires one in eager. Double backward raises an error here.
        wrapper_tangents: given if wrapper subclasses are among the outputs.
        saving: given if parts of the backward differ in the saved tensors they need or free.
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
        self.backward_writes = analysis.backward_writes
        self.num_gradients = sum(1 for g in analysis.gradients if g is not None)
        self.others = [p for p in range(self.count) if p not in self.differentiable]
        self.coercions = [coerce_tangent(info) for info in analysis.tangents]
        self.tangent_indices = [self.differentiable.index(info.position) for info in analysis.tangents]
        self.every_tangent = frozenset(range(len(self.tangent_indices)))
        self.refused = [(self.differentiable.index(position), error) for position, error in analysis.refused]
        self.is_partial = wrapper_tangents is None and (len(self.differentiable) > 1 or bool(self.refused))
        self.has_histories = any(histories)
        self.unreached = _unreached_slots(analysis)
        self.expected_needs = tuple(
            [info.requires_grad and i not in self.unreached for i, info in enumerate(analysis.inputs)]
        )
        self.tensors = [i for i, info in enumerate(analysis.inputs) if info.is_tensor]
        self.needing = [i for i in self.tensors if analysis.inputs[i].requires_grad]
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
        origins = self._origins_of(slots) if self.has_histories else []
        return Compiled.applied([slots[i] for i in self.tensors], self, holder, origins, *slots)

    def _run_in_parts(self, holder: list[Any], slots: list[Any], parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
        assert self.saving is not None
        with torch.no_grad():
            outs = self.forward(list(slots))
        numbers, saved_tensors = _numbers_and_tensors(outs[self.count :])
        holder += outs[: self.count]
        results = self.returned_of(outs, slots)
        kept = SavedValuesState(saved_tensors, self.saving, slots)
        call = _CallInParts(
            numbers=numbers,
            likes=[zeros_like_later(t) for t in results],
            kept=kept,
            refused=kept.others(saved_tensors),
            origins=self._origins_of(slots) if self.has_histories else [],
        )
        for part in parts:
            # A result may depend only on a leaf that the program created. Then no slot requires its gradient.
            origins = [slots[i] for i in part.slots] or [torch.zeros((), requires_grad=True)]
            made = CompiledPart.applied(origins, self, call, part, [results[i] for i in part.outputs], *origins)
            for index, result in zip(part.outputs, made, strict=True):
                results[index] = result
        return tuple(results)

    def _origins_of(self, slots: Sequence[Any]) -> list[torch.Tensor]:
        """Tensors whose histories lead to the slots: the leaves, and one empty tensor for all others, to keep no memory alive."""
        needing = [slot for i in self.needing if (slot := slots[i]).requires_grad]
        others = [slot for slot in needing if not slot.is_leaf]
        if not others:
            return needing
        return [*[slot for slot in needing if slot.is_leaf], _Origin.applied(others, *others)]

    def returned_of(self, outs: list[Any], slots: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs that the autograd Function returns.

        Views and inputs are detached, because the caller could not modify them in place otherwise; and so are tensors that are
        outputs twice, because each output has its own history.
        """
        given = {*map(id, slots)}
        if self.others:
            given.update([id(outs[p]) for p in self.others])
        returned = [outs[p] for p in self.differentiable]
        for index, t in enumerate(returned):
            if t._is_view() or id(t) in given:
                returned[index] = t.detach()
            given.add(id(t))
        return returned

    def unreached_outputs(self, needs: Sequence[bool]) -> list[int]:
        """The differentiable outputs that depend on no slot that requires a gradient in this call."""
        pairs = zip(self.gradients, needs, strict=True)
        found = frozenset().union(*[self.dependences[g] for g, is_needed in pairs if g is not None and is_needed])
        return [index for k, index in enumerate(self.tangent_indices) if k not in found]

    def gradients_of(self, call: Any, grads: Tangents) -> Sequence[Any]:
        """The gradients of the slots. `call`: the context of the autograd Function, or a _CallInParts."""
        arrived = {k for k, index in enumerate(self.tangent_indices) if grads[index] is not None}
        if not arrived and all(
            grad is None for grad in grads
        ):  # a custom backward returned None for the only output in use
            return (None,) * len(self.gradients)
        if any(map(is_memoryless, grads)):
            return refuse_nan(self.gradients_of(call, in_memory(grads)))
        refuse_dual(grads)
        for index, error in self.refused:
            if grads[index] is not None:
                raise _again(error)
        saved = self._saved_of(call, arrived)
        tangents = self._tangents_of(call, grads)
        missing = self.every_tangent - arrived
        found = self._found(missing, [*call.numbers, *saved, *tangents, *call.written], call.written)
        returned = [None if g is None else found[g] for g in self.gradients]
        if missing and self.dependences and (self.is_partial or self.wrapper_tangents is not None):
            returned = self._without_unreached(returned, arrived)
        return self._with_refusals(returned, call, grads, arrived) if torch.is_grad_enabled() else returned

    def _found(self, missing: frozenset[int], inputs: list[Any], written: Sequence[torch.Tensor]) -> Sequence[Any]:
        """What the backward graph returns. It writes to the tensors in `written`. Without autograd, and without autocast."""
        is_recording = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            with without_autocast() if is_any_autocast_enabled() else contextlib.nullcontext():
                found = self.get_backward(missing)(inputs)
            for tensor, value in zip(written, found[self.num_gradients :], strict=False):
                tensor.copy_(value)
        finally:
            set_grad_enabled(is_recording)
        return found

    def _saved_of(self, call: Any, arrived: Collection[int]) -> Sequence[torch.Tensor | None]:
        """The saved tensors. Raises an error if they were freed by an earlier backward."""
        if self.saving is None:
            return call.saved_tensors
        saved = () if call.kept.is_divided else call.saved_tensors
        read = arrived
        if not all(unread.isdisjoint(arrived) for unread in self.given_unread):
            read = set(range(len(self.tangent_indices)))  # constant gradients need the whole backward
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
        """The gradients, with None for those that depend on missing tangents alone."""
        dependences = self.dependences
        return [
            None if index is None or (dependences[index] and dependences[index].isdisjoint(arrived)) else gradient
            for gradient, index in zip(returned, self.gradients, strict=True)
        ]

    def _with_refusals(self, returned: list[Any], call: Any, grads: Tangents, arrived: Collection[int]) -> list[Any]:
        """The gradients; those that would have a history in eager get one whose backward raises DoubleBackward."""
        given = {k: g for k in arrived if (g := grads[self.tangent_indices[k]]) is not None and g.requires_grad}

        def is_refused(index: int | None) -> bool:
            if index is None or not self.histories[index].isdisjoint(arrived):
                return index is not None
            return bool(given) and not (self.dependences and self.dependences[index].isdisjoint(given))

        pairs = zip(returned, self.gradients, strict=True)
        refused = [isinstance(g, torch.Tensor) and is_refused(i) for g, i in pairs]
        return _refuse_gradients(returned, refused, [*given.values(), *call.origins]) if any(refused) else returned


_TENSOR_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter})


def _numbers_and_tensors(saved: Sequence[Any]) -> tuple[Sequence[Any], Sequence[torch.Tensor]]:
    if _TENSOR_CLASSES.issuperset(map(type, saved)):
        return (), saved
    return [v for v in saved if not isinstance(v, torch.Tensor)], [v for v in saved if isinstance(v, torch.Tensor)]


class _Step(torch.autograd.Function):
    """Base class of the autograd Functions that run compiled graphs."""

    @classmethod
    def applied(cls, tensors: Sequence[torch.Tensor], *args: Any) -> Any:
        """`cls.apply(*args)`. `tensors`: those among the arguments.

        torch's `apply` looks in Python for arguments that have left a transform of torch.func. The C function is called
        where there are none.
        """
        if is_inside_function_transform() or any(map(is_functorch_wrapped_tensor, tensors)):
            return cls.apply(*args)
        in_c: Any = super(torch.autograd.Function, cls)
        return in_c.apply(*args)


class Compiled(_Step):
    """Runs a compiled forward and backward as one autograd node."""

    @staticmethod
    def forward(
        ctx: Any, training: CompiledTraining, holder: list[Any], origins: list[torch.Tensor], *slots: Any
    ) -> tuple[Any, ...]:
        outs = training.forward(list(slots))
        ctx.training, ctx.origins = training, origins
        ctx.written = [slots[i] for i in training.backward_writes] if training.backward_writes else ()
        saved = outs[training.count :]
        ctx.numbers, saved_tensors = _numbers_and_tensors(saved)
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
    """The autograd node of the results of one part. The forward has run already; the node leads to the slots of `part`."""

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
        if not ctx.part.slots:  # no slot gets a gradient
            return None, None, None, None, None
        arrived = dict(zip(ctx.part.outputs, grads, strict=True))
        training = ctx.training
        found = training.gradients_of(ctx.call, [arrived.get(i) for i in range(len(training.differentiable))])
        return None, None, None, None, *[found[position] for position in ctx.part.slots]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallInParts:
    """The state that the backwards of all parts of one call share."""

    numbers: Sequence[Any]
    likes: list[Callable[[], torch.Tensor]]
    kept: SavedValuesState
    refused: list[torch.Tensor]
    """The tensors that autograd saves itself, such as inference tensors, for which it raises its error."""
    origins: list[torch.Tensor]
    written: tuple[()] = ()
    """A backward that writes to inputs is not divided into parts."""


def is_of_graph(tensor: torch.Tensor) -> bool:
    """Whether it is a result of a compiled graph. Its hooks are called with None if only other results get gradients."""
    made_by = function_of(history_of(tensor))
    return isinstance(made_by, type) and issubclass(made_by, _Step)


def _unreached_slots(analysis: ProgramAnalysis) -> list[int]:
    """Slots that require a gradient and never get one. They are detached, since autograd would run the nodes and hooks behind
    them even for a gradient of None. Empty if all slots are such: then results would require no gradient."""
    if not analysis.has_backward or analysis.refused:
        return []
    needing = [i for i, info in enumerate(analysis.inputs) if info.is_tensor and info.requires_grad]
    unreached = [i for i in needing if analysis.gradients[i] is None]
    return unreached if len(unreached) < len(needing) else []


def _again(error: Exception) -> Exception:
    """A copy of the error without its traceback."""
    try:
        fresh = type(error)(*error.args)
    except TypeError:
        return error
    return fresh


class _Origin(_Step):
    @staticmethod
    def forward(ctx: Any, *slots: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise DoubleBackward


def _refuse_gradients(
    gradients: Sequence[Any], is_refused: Sequence[bool], origins: Sequence[torch.Tensor]
) -> list[Any]:
    """The gradients, with a history that leads to the origins and whose backward raises DoubleBackward."""
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


# Results of one call as several autograd nodes, each of which leads only to the inputs that its own results depend on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """outputs: indices among the differentiable outputs; slots: those that get a gradient from one of them."""

    outputs: tuple[int, ...]
    slots: tuple[int, ...]


class PartsState:
    """How the results of a compiled program are divided, depending on which slots are not leaves in a call.

    Results that share saved tensors stay together, and so do results that depend on the same non-leaf slots."""

    def __init__(self, analysis: ProgramAnalysis, dependences: Sequence[frozenset[int]]) -> None:
        """dependences: for each gradient, the tangents it depends on."""
        self._parts: list[Part] = []
        self._known: dict[frozenset[int], tuple[Part, ...]] = {}
        if dependences and not analysis.refused and all(dependences):
            self._parts = [_part(tangents, analysis, dependences) for tangents in _components(analysis.freed_together)]
        everywhere = set.intersection(*[set(part.slots) for part in self._parts]) if self._parts else set()
        self._apart = sorted({slot for part in self._parts for slot in part.slots} - everywhere)

    def of_call(self, slots: Sequence[Any]) -> tuple[Part, ...]:
        """The parts of a call; empty if there is only one, for example if all slots that require gradients are leaves."""
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
    """The connected components."""
    found: list[frozenset[int]] = []
    for index, others in enumerate(together):
        joined = frozenset([index]) | others
        apart = [one for one in found if one.isdisjoint(joined)]
        found = [*apart, joined.union(*[one for one in found if not one.isdisjoint(joined)])]
    return found
