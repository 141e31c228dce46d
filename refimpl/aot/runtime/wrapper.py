"""The runtime wrapper: prologue, call of the compiled graph, and epilogue that applies mutations and remakes views.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py _create_runtime_wrapper, AOTDedupeWrapper
Differs: all decisions are made once, when the wrapper is built; a call runs through lists of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version

from refimpl._torch import (
    is_any_autocast_enabled,
    set_creation_of_view,
    set_grad_enabled,
    versions_kept,
    without_autocast,
)
from refimpl.aot.analysis.autograd_graph import history_of
from refimpl.aot.analysis.inputs import InputPlan
from refimpl.aot.analysis.metadata import FlatWrite, InputMutation, OutputInfo, OutputKind, ProgramAnalysis
from refimpl.aot.analysis.replay import common_call, replayer, shared_replayer
from refimpl.aot.errors import DuplicatesExpected, GradientNotExpected
from refimpl.aot.runtime.autograd_function import DifferentiableCall
from refimpl.aot.runtime.graph_call import BoxedCall, FlatCall, enlarge_storage
from refimpl.aot.runtime.mutations import Step, as_inference, in_memory, place, steps_of_mutation

# Arguments: the arguments, slots and forward outputs of the call, and the results made so far.
OutputMaker = Callable[[list[Any], list[Any], Sequence[Any], list[Any]], Any]


def runtime_wrapper(
    analysis: ProgramAnalysis,
    plan: InputPlan,
    *,
    inference: BoxedCall | None,
    training: DifferentiableCall | None,
    aot_id: int,
    captured: Sequence[torch.Tensor] = (),
) -> FlatCall:
    """A function of the flat list of arguments that returns the flat list of results. One of `inference`, `training` is given."""
    run = _training_run(training, analysis) if training is not None else _inference_run(inference)
    run = _with_versions_kept(run, analysis.unnoticed_writes)
    run = _without_bases(run, [p for p in analysis.owned if p not in analysis.differentiable])
    prologue = _prologue(plan, aot_id, captured)
    check = _gradient_check(analysis, aot_id)
    epilogue = _Epilogue.of(analysis, is_training=training is not None)
    flat_writes = analysis.flat_writes
    if epilogue.only_picks and prologue is None:
        positions = [info.position for info in analysis.outputs]

        def call_plain(args: list[Any]) -> list[Any]:
            if check is not None:
                check(args)
            forward = run(args)
            return [forward[p] for p in positions]

        return call_plain

    def call(args: list[Any]) -> list[Any]:
        slots = args if prologue is None else prologue(args)
        if check is not None:
            check(slots)
        storages = [write.group.storage(slots) for write in flat_writes] if flat_writes else ()
        return epilogue.results(args, slots, storages, run(list(slots)))

    return call


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epilogue:
    """The steps after the compiled forward: they write its outputs to arguments, and make the results."""

    only_picks: bool
    """Whether all results are forward outputs, and no argument is mutated."""
    flat_writes: tuple[FlatWrite, ...]
    mutations: tuple[tuple[int, Step], ...]
    """By slot."""
    argument_mutations: tuple[tuple[int, Step], ...]
    """By argument."""
    placed: tuple[tuple[bool, int, InputMutation, OutputMaker], ...]
    """Tensors that `set_` or `.data =` gave other memory: whether it is an argument or a slot, its position, the mutation, and
    a function that gives the new memory."""
    reshaped: tuple[int, ...]
    detached: frozenset[int]
    makers: tuple[OutputMaker | None, ...]
    early: tuple[tuple[int, OutputMaker], ...]
    """Views that have to be made before any write."""
    aged: tuple[int, ...]

    @classmethod
    def of(cls, analysis: ProgramAnalysis, *, is_training: bool) -> _Epilogue:
        slots = [(i, info.mutation) for i, info in enumerate(analysis.inputs) if info.mutation is not None]
        places = [(False, i, mutation) for i, mutation in slots]
        places += [(True, i, mutation) for i, mutation in analysis.argument_mutations]
        placed = tuple((*at, _alias_maker(at[2].placement)) for at in places if at[2].placement is not None)
        mutations = tuple((i, step) for i, mutation in slots for step in _steps(mutation, analysis))
        makers = _output_makers(analysis.outputs)
        reshaped = _viewed_as_they_were(analysis)
        is_plain = all(
            info.kind is OutputKind.FRESH and not (info.steps or info.becomes_leaf or info.becomes_inference)
            for info in analysis.outputs
        )
        return cls(
            only_picks=is_plain and not mutations and not placed and not analysis.flat_writes,
            flat_writes=analysis.flat_writes,
            mutations=mutations,
            argument_mutations=tuple(
                (i, step) for i, mutation in analysis.argument_mutations for step in _steps(mutation, analysis)
            ),
            placed=placed,
            reshaped=tuple(reshaped),
            detached=frozenset(i for i, mutation in slots if i in reshaped and mutation.detaches),
            makers=tuple(makers),
            early=tuple((i, m) for i, m in enumerate(makers) if m is not None and _is_made_early(analysis, i)),
            aged=() if is_training else tuple(_written_after_views(analysis)),
        )

    def results(
        self, args: list[Any], slots: list[Any], storages: Sequence[torch.Tensor], forward: Sequence[Any]
    ) -> list[Any]:
        """The results. Early views are made first, then inputs are written, then all other results are made.

        storages: one tensor over the written storage for each of `flat_writes`.
        """
        if storages:
            for storage, write in zip(storages, self.flat_writes, strict=True):
                enlarge_storage(storage, write.group)
        viewed = self._viewed(slots) if self.reshaped else slots
        results: list[Any] = [None] * len(self.makers)
        for index, make in self.early:
            results[index] = make(args, viewed, forward, results)
        for position, step in self.mutations:
            step(slots[position], forward)
        for position, step in self.argument_mutations:
            step(args[position], forward)
        if storages:
            for storage, write in zip(storages, self.flat_writes, strict=True):
                group = write.group
                storage.as_strided((group.numel,), (1,), group.offset).copy_(forward[write.position])
        if self.placed:
            self._place(args, slots, viewed, forward)
        made = {index for index, _ in self.early} if self.early else ()
        for index, make in enumerate(self.makers):
            if make is not None and index not in made:
                results[index] = make(args, viewed, forward, results)
        for position in self.aged:
            if not forward[position].is_inference():
                increment_version(forward[position])
        return results

    def _viewed(self, slots: list[Any]) -> list[Any]:
        """The slots; for those whose geometry changes, a view with the old geometry."""
        viewed = list(slots)
        for position in self.reshaped:
            slot = slots[position]
            if position in self.detached:
                slot.detach_()
            viewed[position] = slot.as_strided(slot.shape, slot.stride(), slot.storage_offset())
        return viewed

    def _place(self, args: list[Any], slots: list[Any], viewed: list[Any], forward: Sequence[Any]) -> None:
        for (
            position
        ) in self.reshaped:  # read `grad_fn` before the base moves: autograd remakes a view's history when it is read
            history_of(viewed[position])
        for is_argument, position, mutation, make in self.placed:
            place((args if is_argument else slots)[position], make(args, viewed, forward, []), mutation, forward)


def _steps(mutation: InputMutation, analysis: ProgramAnalysis) -> list[Step]:
    """The steps of a mutation, in grad mode if the program enabled it itself."""
    steps = list(steps_of_mutation(mutation))
    if not analysis.enables_gradients or not mutation.is_visible_to_autograd:
        return steps
    return [torch.enable_grad()(step) for step in steps]


def _viewed_as_they_were(analysis: ProgramAnalysis) -> list[int]:
    """Slots whose geometry changes and of which a result is a view: its view ops apply to the old geometry."""
    changed = [(i, info.mutation) for i, info in enumerate(analysis.inputs) if info.mutation is not None]
    moved = [mutation for _, mutation in (*changed, *analysis.argument_mutations)]
    places = [*analysis.outputs, *(mutation.placement for mutation in moved if mutation.placement is not None)]
    viewed = {info.source for info in places if info.kind is OutputKind.VIEW_OF_INPUT}
    return [i for i, mutation in changed if i in viewed and mutation.geometry is not None]


def _is_made_early(analysis: ProgramAnalysis, index: int) -> bool:
    """Whether a result is made before the writes, as the program made it; not of a slot that itself lies elsewhere then."""
    info = analysis.outputs[index]
    if not info.is_before_writes or info.kind is not OutputKind.VIEW_OF_INPUT:
        return False
    assert info.source is not None
    mutation = analysis.inputs[info.source].mutation
    return mutation is None or (mutation.geometry is None and mutation.placement is None)


def _written_after_views(analysis: ProgramAnalysis) -> list[int]:
    """Forward outputs with views that the program made before it wrote to them.

    The graph returns them as they are after the writes. If their versions count the writes, the views get their history from
    them once they require a gradient.
    """
    infos = [info for info in analysis.outputs if info.is_before_writes]
    return sorted(
        {info.source for info in infos if info.kind is OutputKind.VIEW_OF_INTERMEDIATE and info.source is not None}
    )


def _gradient_check(analysis: ProgramAnalysis, aot_id: int) -> Callable[[list[Any]], None] | None:
    """A function of the slots that switches on gradients where the program does, and refuses those that the graphs lack."""
    switched = [i for i, info in enumerate(analysis.inputs) if info.becomes_leaf]
    without = [
        i for i, info in enumerate(analysis.inputs) if info.is_tensor and not info.requires_grad and i not in switched
    ]
    if not without and not switched:
        return None

    def check(slots: list[Any]) -> None:
        if torch.is_grad_enabled():
            for position in without:
                if slots[position].requires_grad:
                    raise GradientNotExpected(aot_id, position)
        for position in switched:
            slots[position].requires_grad_()  # and views of it require one too then

    return check


def _inference_run(inference: BoxedCall | None) -> Callable[[list[Any]], Sequence[Any]]:
    assert inference is not None

    def run(slots: list[Any]) -> Sequence[Any]:
        if is_any_autocast_enabled():
            with without_autocast(), torch.no_grad():
                return inference(slots)
        if not torch.is_grad_enabled():
            return inference(slots)
        set_grad_enabled(False)
        try:
            return inference(slots)
        finally:
            set_grad_enabled(True)

    return run


def _training_run(training: DifferentiableCall, analysis: ProgramAnalysis) -> Callable[[list[Any]], Sequence[Any]]:
    differentiable = analysis.differentiable

    def run(slots: list[Any]) -> Sequence[Any]:
        holder: list[Any] = []
        for position, tensor in zip(differentiable, training(holder, slots), strict=True):
            holder[position] = tensor
        return holder

    if analysis.enables_gradients:
        return torch.enable_grad()(run)
    return run


def _with_versions_kept(
    run: Callable[[list[Any]], Sequence[Any]], positions: Sequence[int]
) -> Callable[[list[Any]], Sequence[Any]]:
    """`run`, whose writes to the slots at these positions leave their version counters as they were."""
    if not positions:
        return run

    def run_unnoticed(slots: list[Any]) -> Sequence[Any]:
        with versions_kept([slots[position] for position in positions if not slots[position].is_inference()]):
            return run(slots)

    return run_unnoticed


def _without_bases(
    run: Callable[[list[Any]], Sequence[Any]], positions: Sequence[int]
) -> Callable[[list[Any]], Sequence[Any]]:
    """`run`, of whose outputs none at these positions is a view for autograd, of whatever the graph has put it into."""
    if not positions:
        return run

    def run_and_part(slots: list[Any]) -> Sequence[Any]:
        forward = run(slots)
        views = [p for p in positions if forward[p]._is_view()]
        if not views:
            return forward
        own = list(forward)
        for p in views:
            own[p] = forward[p].detach()
        return own

    return run_and_part


def _prologue(
    plan: InputPlan, aot_id: int, captured: Sequence[torch.Tensor]
) -> Callable[[list[Any]], list[Any]] | None:
    """A function from arguments to slots; None if they are the same."""
    if plan.is_trivial and not captured:
        return None
    if plan.is_trivial:
        return lambda args: [*args, *captured]
    duplicates = [
        (i, plan.slots[d.slot].members[0])
        for i, d in enumerate(plan.arguments)
        if i not in plan.slots[d.slot].members and not plan.slots[d.slot].is_base
    ]

    def prologue(args: list[Any]) -> list[Any]:
        for position, original in duplicates:
            if args[position] is not args[original]:
                raise DuplicatesExpected(aot_id, position, original)
        return [*plan.slot_values(args), *captured]

    return prologue


def _output_makers(infos: Sequence[OutputInfo]) -> list[OutputMaker | None]:
    """A maker for every result; None for a result made together with an earlier one.

    The views that one call of an op returns, such as `split`, share an autograd node, so that one call makes all of them."""
    makers: list[OutputMaker | None] = [_output_maker(info) for info in infos]
    for index, info in enumerate(infos):
        if makers[index] is None or not _is_plain_view(info):
            continue
        alike = [i for i in range(index + 1, len(infos)) if makers[i] is not None and _is_of_one_base(infos[i], info)]
        parting = {i: common_call(info.steps, infos[i].steps) for i in alike if _is_plain_view(infos[i])}
        at = max((place for place in parting.values() if place is not None), default=None)
        members = _of_one_call([i for i, place in parting.items() if place is not None and place == at], infos)
        if at is not None:
            makers[index] = _shared_maker(infos, [index, *members], at)
            for i in members:
                makers[i] = None
    return makers


def _of_one_call(members: Sequence[int], infos: Sequence[OutputInfo]) -> list[int]:
    """The members without repetitions: an equal view is the result of a second, equal call."""
    return [i for place, i in enumerate(members) if all(infos[i].steps != infos[j].steps for j in members[:place])]


def _is_plain_view(info: OutputInfo) -> bool:
    is_changed = info.is_put or info.becomes_leaf or info.becomes_inference or info.is_before_writes
    return info.kind in (OutputKind.VIEW_OF_INPUT, OutputKind.VIEW_OF_INTERMEDIATE) and not is_changed


def _is_of_one_base(a: OutputInfo, b: OutputInfo) -> bool:
    return (a.kind, a.source) == (b.kind, b.source)


def _shared_maker(infos: Sequence[OutputInfo], members: Sequence[int], at: int) -> OutputMaker:
    """A maker that makes all members, returns the first and stores the others among the results."""
    views = shared_replayer([infos[i].steps for i in members], at)
    is_of_input, source = infos[members[0]].kind is OutputKind.VIEW_OF_INPUT, infos[members[0]].source
    assert source is not None

    def make(args: list[Any], slots: list[Any], forward: Sequence[Any], results: list[Any]) -> Any:
        made = views(slots[source] if is_of_input else forward[source], forward)
        for i, view in zip(members, made, strict=True):
            results[i] = view
        return made[0]

    return make


def _output_maker(info: OutputInfo) -> OutputMaker:
    make = _put(info, _alias_maker(info)) if info.is_put else _alias_maker(info)
    if info.becomes_inference:
        return lambda args, slots, forward, results: as_inference(make(args, slots, forward, results))
    if not info.becomes_leaf:
        return make

    def make_leaf(args: list[Any], slots: list[Any], forward: Sequence[Any], results: list[Any]) -> Any:
        result = make(args, slots, forward, results)
        return result if result.requires_grad else result.requires_grad_()

    return make_leaf


def _created(view: torch.Tensor, creation: Any) -> torch.Tensor:
    """The view, with the creation meta that autograd noted when the program made it."""
    set_creation_of_view(view, creation)
    return view


def _put(info: OutputInfo, place: OutputMaker) -> OutputMaker:
    """A maker for a result whose memory is that of `place`, and whose history, if any, is its own."""

    def make(args: list[Any], slots: list[Any], forward: Sequence[Any], results: list[Any]) -> Any:
        with torch.no_grad():
            memory = place(args, slots, forward, results).detach()
            if info.has_history:
                result = forward[info.position]
                result.data = memory
                return result
            return in_memory(memory, is_inference=info.is_inference)

    return make


def _alias_maker(info: OutputInfo) -> OutputMaker:
    position, source, creation = info.position, info.source, info.creation
    if info.kind in (OutputKind.FRESH, OutputKind.CONSTANT) and not info.steps:
        return lambda args, slots, forward, results: forward[position]
    view = replayer(info.steps)
    match info.kind:
        case OutputKind.FRESH:
            return lambda args, slots, forward, results: _created(view(forward[position], forward), creation)
        case OutputKind.CONSTANT:
            return lambda args, slots, forward, results: forward[position]
        case OutputKind.INPUT:
            assert source is not None
            return lambda args, slots, forward, results: args[source]
        case OutputKind.REPEATED:
            assert source is not None
            return lambda args, slots, forward, results: results[source]
        case OutputKind.VIEW_OF_INPUT:
            assert source is not None
            return lambda args, slots, forward, results: view(slots[source], forward)
        case OutputKind.VIEW_OF_INTERMEDIATE:
            assert source is not None
            return lambda args, slots, forward, results: view(forward[source], forward)
