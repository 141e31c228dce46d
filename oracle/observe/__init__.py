"""Observe: run the calls of a program's plan and record everything that a caller can see.

For each call that is: outputs with metadata, arguments after the call, gradients, module state, global and closure state, which
tensors share storage, the state of the random generators, the exception if there was one, and the time.
"""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from oracle.hygiene import rng_digest, seed_everything
from oracle.observe.copies import Copies
from oracle.observe.flatten import RawLeaf, flatten
from oracle.observe.memory import CallMemory, storage_key
from oracle.observe.outcome import (
    BEFORE_BACKWARD,
    AliasGraph,
    CallObservation,
    ExceptionFacts,
    Leaf,
    Outcome,
    Raised,
    Returned,
    TensorFacts,
    calls_of,
)
from oracle.program import Call
from oracle.program.build import PROGRAM_MODULE, Instance
from oracle.program.clone import bytes_of

TRACEBACK_LINES = 40
DOUBLE_BACKWARD = "double backward"  # name of the phase
SECOND = "second grad of "  # prefix of the paths of gradients of gradients
_DATA_TYPES = (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, torch.Tensor)
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")

Prepare = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def observe(
    instance: Instance,
    *,
    compile_target: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    prepare_inputs: Prepare | None = None,
    around_call: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    seed_offset: int = 0,
    leaves_out: Callable[[torch.Tensor], bool] | None = None,
    like: Outcome | None = None,
    watches_results: bool = True,
) -> Outcome:
    """Run the whole call plan of a fresh instance.

    `compile_target` compiles the function or module; without it, it is called as it is (eager). `prepare_inputs` maps fresh
    arguments (to widen them). `around_call` is a context for the call and its backward. `seed_offset` is added to the seed of
    every call, and to the seeds that the program itself passes to `torch.manual_seed`. Tensors for which `leaves_out` is true
    are not recorded. Large tensors with the bits that an earlier run `like`, or the call before, had in the same place share
    its copy. Without `watches_results`, results of a call are not held during later calls, and so not found to be overwritten.
    """
    copies = Copies(calls_of(like))
    run = _Run(instance, prepare_inputs, around_call, seed_offset, leaves_out, copies, watches_results)
    try:
        called = compile_target(instance.target) if compile_target is not None else instance.target
        for number, plan in enumerate(instance.program.calls):
            if not watches_results:
                leaves = None  # of the call before: its results and saved tensors need not outlive it
            leaves = run.call(called, number, plan)
            if plan.backward:
                run.backward(leaves, number, plan)
            run.done.append(run.observed)
    except BaseException as error:  # whatever a subject raises is an observation
        if isinstance(error, KeyboardInterrupt):
            raise
        return Raised(
            exception=_exception_facts(error, run.number, run.phase),
            calls=tuple(run.done),
            undifferentiated=run.observed if run.phase == DOUBLE_BACKWARD else None,
        )
    if len(run.done) > 1:
        overwritten = tuple(path for path, tensor, held in run.kept if not _still_holds(tensor, held))
        run.done[-1] = replace(run.done[-1], aliases=replace(run.done[-1].aliases, overwritten=overwritten))
    leaves, run.kept = None, []
    return Returned(calls=tuple(run.done), memory=run.memory.now(len(run.done)) if watches_results else ())


@dataclass(slots=True)
class _Leaves:
    """The outputs of a call, and the leaves that they may depend on."""

    outputs: list[RawLeaf]
    sources: list[RawLeaf]  # arguments and module state


@dataclass(slots=True)
class _Run:
    """A plan that is being run: its current call and phase, and the observations so far. Mutable."""

    instance: Instance
    prepare_inputs: Prepare | None
    around_call: Callable[[], contextlib.AbstractContextManager[Any]]
    seed_offset: int
    leaves_out: Callable[[torch.Tensor], bool] | None
    copies: Copies
    watches_results: bool
    number: int = 0
    phase: str = "compile"
    memory: CallMemory = field(default_factory=CallMemory)
    observed: CallObservation = field(init=False)  # of the last call
    done: list[CallObservation] = field(default_factory=list)
    # results that the caller still holds, which later calls must not overwrite: path, tensor, copy
    kept: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def call(self, called: Callable[..., Any], number: int, plan: Call) -> _Leaves:
        """Make one call, without its backward, and record what can be seen after it."""
        self.number, self.phase = number, "call"
        instance = self.instance
        instance.prepare(number)
        args, kwargs = instance.inputs(number)
        if self.prepare_inputs is not None:
            args, kwargs = self.prepare_inputs(args, kwargs)
        if isinstance(instance.target, torch.nn.Module):
            instance.target.zero_grad(set_to_none=True)
        seed_everything(instance.program.seed + number + self.seed_offset)
        with self.around_call(), _seeds_moved(self.seed_offset):
            inputs = (args, kwargs)
            args, kwargs, is_derived = instance.arguments(args, kwargs)
            named_inputs = _named(args, kwargs, inputs if is_derived else None)
            started = time.perf_counter()
            with _grad_mode(plan.grad_mode):
                result = called(*args, **kwargs)
            _synchronize(instance.device)
            seconds = time.perf_counter() - started
        outputs, structure = flatten(result, "output")
        state = list(_state(instance))
        after_inputs = _named(args, kwargs, inputs if is_derived else None)
        seen_outputs, seen_inputs, seen_state = (
            self._seen(section, _without(found, self.leaves_out))
            for section, found in (("outputs", outputs), ("inputs_after", after_inputs), ("module_state", state))
        )
        aliases = _alias_graph([*named_inputs, *outputs, *state])
        if self.watches_results:
            self.memory.leave_out(state)
            self.memory.note(number, [*named_inputs, *after_inputs, *outputs])
        if self.leaves_out is None:
            self._keep(outputs, seen_outputs)
        self.observed = CallObservation(
            structure=structure,
            outputs=seen_outputs,
            inputs_after=seen_inputs,
            gradients=(),
            module_state=seen_state,
            aliases=aliases,
            rng_digest=rng_digest(),
            seconds=seconds,
        )
        return _Leaves(outputs, [*named_inputs, *state])

    def backward(self, leaves: _Leaves, number: int, plan: Call) -> None:
        """Run the backward of the call, and a double backward if the plan has one."""
        self.phase = DOUBLE_BACKWARD if plan.double_backward else "backward"
        seed = self.instance.program.seed + number
        tangents = _tangents(leaves.outputs, seed)
        with self.around_call():
            started = time.perf_counter()
            if plan.double_backward:
                found = _differentiated_twice(tangents, leaves.sources, seed)
            else:
                if tangents:
                    torch.autograd.backward([t for t, _ in tangents], [g for _, g in tangents])
                found = _gradients_of(leaves.sources)
            _synchronize(self.instance.device)
            seconds = time.perf_counter() - started
        gradients = self._seen("gradients", found)
        self._keep(found, gradients)
        if self.watches_results:
            self.memory.note(number, found)
        self.observed = replace(
            self.observed,
            gradients=gradients,
            rng_digest=_with_backward(self.observed.rng_digest, rng_digest()),
            seconds=self.observed.seconds + seconds,
        )

    def _seen(self, section: str, found: list[RawLeaf]) -> tuple[Leaf, ...]:
        """The leaves of one section of the current call, with copies of the tensors."""
        return tuple(_leaf(raw, self.copies.of(raw.value, self.number, section, raw.path)) for raw in found)

    def _keep(self, found: list[RawLeaf], seen: tuple[Leaf, ...]) -> None:
        """Keep results of every call but the last, to see whether later calls overwrite them."""
        if self.watches_results and self.number < len(self.instance.program.calls) - 1:
            self.kept += _kept(found, seen, self.number)


def _grad_mode(name: str) -> contextlib.AbstractContextManager[Any]:
    if name == "no_grad":
        return torch.no_grad()
    if name == "inference":
        return torch.inference_mode()
    return torch.enable_grad()


def _with_backward(after_call: str, after_backward: str) -> str:
    """The generator states after the backward and, if they differ, after the call: a draw moved between the two shows."""
    return after_call if after_call == after_backward else f"{after_backward}{BEFORE_BACKWARD}{after_call}"


def without_backward(observed: CallObservation) -> CallObservation:
    """The observation as it was before the backward."""
    return replace(observed, gradients=(), rng_digest=observed.rng_after_call)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _named(
    args: tuple[Any, ...], kwargs: dict[str, Any], inputs: tuple[tuple[Any, ...], dict[str, Any]] | None
) -> list[RawLeaf]:
    """Leaves of the arguments, and of the inputs if the program's source derives the arguments from them."""
    named = flatten(args, "args")[0] + flatten(kwargs, "kwargs")[0]
    if inputs is None:
        return named
    return flatten(inputs[0], "inputs")[0] + flatten(inputs[1], "input kwargs")[0] + named


def _without(leaves: list[RawLeaf], leaves_out: Callable[[torch.Tensor], bool] | None) -> list[RawLeaf]:
    if leaves_out is None:
        return leaves
    return [leaf for leaf in leaves if not (isinstance(leaf.value, torch.Tensor) and leaves_out(leaf.value))]


def _leaf(raw: RawLeaf, value: Any) -> Leaf:
    is_tensor = isinstance(raw.value, torch.Tensor)
    return Leaf(path=raw.path, value=value, facts=tensor_facts(raw.value) if is_tensor else None)


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """Metadata of any tensor. Strides and offset are None for layouts that have none."""
    kind = type(tensor)
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return TensorFacts(
        type_name="torch.Tensor" if kind is torch.Tensor else _qualified(kind),
        shape=tuple(tensor.shape) if not tensor.is_nested else (),
        stride=tensor.stride() if strided else None,
        storage_offset=int(tensor.storage_offset()) if strided else None,
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        layout=str(tensor.layout).removeprefix("torch."),
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        is_conj=tensor.is_conj(),
        is_neg=tensor.is_neg(),
        is_inference=tensor.is_inference(),
        is_coalesced=tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None,
        quantizer=_quantizer(tensor) if tensor.is_quantized else None,
    )


def _quantizer(tensor: torch.Tensor) -> str:
    scheme = tensor.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{scheme} scale={tensor.q_scale()!r} zero_point={tensor.q_zero_point()}"
    scales, zeros = tensor.q_per_channel_scales().tolist(), tensor.q_per_channel_zero_points().tolist()
    return f"{scheme} axis={tensor.q_per_channel_axis()} scales={scales!r} zero_points={zeros!r}"


def _state(instance: Instance) -> Iterator[RawLeaf]:
    """State that the program can change besides its arguments: in its module, globals, closures and classes."""
    target = instance.target
    if isinstance(target, torch.nn.Module):
        yield from _module_state(target)
    elif isinstance(target, types.FunctionType) and target.__closure__:
        for name, cell in zip(target.__code__.co_freevars, target.__closure__, strict=True):
            yield from _data_leaves(_cell_value(cell), f"closure.{name}")
    for name, value in list(instance.namespace.items()):
        if name.startswith("__") or name in ("program", "inputs", "target", "DEVICE"):
            continue
        if isinstance(value, type) and value.__module__ == instance.namespace.get("__name__"):
            for attribute, held in list(vars(value).items()):
                if not attribute.startswith("_"):
                    yield from _data_leaves(held, f"globals.{name}.{attribute}")
        else:
            yield from _data_leaves(value, f"globals.{name}")


def _cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _module_state(module: torch.nn.Module) -> Iterator[RawLeaf]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield RawLeaf(f"module.{name}", parameter)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield RawLeaf(f"module.{name}", buffer)
    for prefix, child in module.named_modules():
        at = f"module.{prefix}." if prefix else "module."
        yield RawLeaf(f"{at}training", child.training)
        for name, value in vars(child).items():
            if not name.startswith("_") and name != "training":
                yield from _data_leaves(value, f"{at}{name}")


def _data_leaves(value: Any, path: str) -> Iterator[RawLeaf]:
    """Leaves of plain data; functions, modules and other objects are not state."""
    if isinstance(value, _DATA_TYPES) or type(value).__name__ in ("deque", "defaultdict", "Counter"):
        leaves, structure = flatten(value, path)
        if not isinstance(value, (torch.Tensor, bool, int, float, complex, str, bytes, type(None))):
            yield RawLeaf(f"{path} (structure)", structure)  # shows containers that grew or shrank
        yield from (leaf for leaf in leaves if not leaf.is_opaque)


def _alias_graph(leaves: Iterable[RawLeaf]) -> AliasGraph:
    storages: dict[int, list[str]] = {}
    objects: dict[int, list[str]] = {}
    for leaf in leaves:
        if not isinstance(leaf.value, torch.Tensor):
            continue
        objects.setdefault(id(leaf.value), []).append(leaf.path)
        key = storage_key(leaf.value)
        if key is not None:
            storages.setdefault(key, []).append(leaf.path)
    return AliasGraph(storages=_groups(storages.values()), objects=_groups(objects.values()))


def _groups(lists: Iterable[list[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted(tuple(sorted(paths)) for paths in lists if len(paths) > 1))


@contextlib.contextmanager
def _seeds_moved(offset: int) -> Iterator[None]:
    """Add the offset to seeds that the program itself passes to `torch.manual_seed`."""
    if not offset:
        yield
        return
    modules: tuple[Any, ...] = (torch, torch.random)  # compilers wrap only one of the two
    originals = {module: module.manual_seed for module in modules}
    for module, original in originals.items():
        module.manual_seed = functools.partial(_seed_moved, original, offset)
    try:
        yield
    finally:
        for module, original in originals.items():
            module.manual_seed = original


def _seed_moved(original: Callable[[int], torch.Generator], offset: int, seed: int) -> torch.Generator:
    return original(int(seed) + offset)


def _tangents(outputs: list[RawLeaf], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Differentiable outputs, each with a seeded tangent of its shape and dtype.

    An output that is returned twice has two tangents, which add up. So the gradients do not depend on whether the two are one
    object, which the alias graph records.
    """
    generator = torch.Generator().manual_seed(seed)
    return [
        (leaf.value, _tangent_like(leaf.value, generator))
        for leaf in outputs
        if isinstance(leaf.value, torch.Tensor) and leaf.value.requires_grad
    ]


def _tangent_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Non-zero multiples of 1/4 between -2 and 2: exact in every float dtype, so the run in fp64 gets the same tangent."""
    if tensor.layout is not torch.strided or tensor.is_nested or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return torch.ones_like(tensor.detach())
    shape = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
    quarters = torch.randint(1, 9, shape, generator=generator, dtype=torch.float32)
    signs = torch.randint(0, 2, shape, generator=generator, dtype=torch.float32)
    drawn = quarters.mul_(signs.sub_(0.5).mul_(0.5))
    if tensor.is_complex():
        drawn = torch.view_as_complex(drawn)
    return drawn.to(dtype=tensor.dtype, device=tensor.device)


def _gradients_of(leaves: Iterable[RawLeaf]) -> list[RawLeaf]:
    return [
        RawLeaf(f"grad of {leaf.path}", leaf.value.grad)
        for leaf in leaves
        if isinstance(leaf.value, torch.Tensor) and leaf.value.is_leaf and leaf.value.requires_grad
    ]


def _differentiated_twice(
    tangents: list[tuple[torch.Tensor, torch.Tensor]], leaves: list[RawLeaf], seed: int
) -> list[RawLeaf]:
    """The gradients, detached, then the gradients of these: zeros where they have no `grad_fn`."""
    if not tangents:
        return _gradients_of(leaves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a reference cycle, which is broken below
        torch.autograd.backward([t for t, _ in tangents], [g for _, g in tangents], create_graph=True)
    first = _gradients_of(leaves)
    paths = {one.path for one in first}
    holders = {id(leaf.value): leaf for leaf in leaves if f"grad of {leaf.path}" in paths}
    pairs = _tangents(list({id(one.value): one for one in first}.values()), seed)
    second: list[torch.Tensor | None] = [None] * len(holders)
    if pairs:
        roots, given = [root for root, _ in pairs], [tangent for _, tangent in pairs]
        second = [*torch.autograd.grad(roots, [leaf.value for leaf in holders.values()], given, allow_unused=True)]
    for leaf in holders.values():
        leaf.value.grad = None
    return [
        *(replace(one, value=None if one.value is None else one.value.detach()) for one in first),
        *(
            RawLeaf(f"{SECOND}{leaf.path}", torch.zeros_like(leaf.value) if value is None else value)
            for leaf, value in zip(holders.values(), second, strict=True)
        ),
    ]


def _kept(
    results: Iterable[RawLeaf], copies: Iterable[Leaf], call: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Results whose memory a later call may reuse, with their copies."""
    for result, copied in zip(results, copies, strict=False):
        tensor = result.value
        if isinstance(tensor, torch.Tensor) and storage_key(tensor) is not None and not tensor.is_quantized:
            yield f"{result.path} of call {call}", tensor.detach(), copied.value


def _still_holds(tensor: torch.Tensor, held: torch.Tensor) -> bool:
    """Whether the tensor still has the same bits. True if reading it raises, as CUDA graphs do for memory they reuse."""
    with contextlib.suppress(NotImplementedError, RuntimeError):  # also dtypes that cannot be compared
        if torch.equal(tensor, held):
            return True
    try:
        return torch.equal(bytes_of(tensor), bytes_of(held))
    except RuntimeError:
        return True


def _exception_facts(error: BaseException, call: int, phase: str) -> ExceptionFacts:
    message = str(error)
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(text in message.lower() for text in _OUT_OF_MEMORY_TEXTS)
    )
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
    return ExceptionFacts(
        type_name=_qualified(type(error)),
        ancestry=tuple(_qualified(kind) for kind in type(error).__mro__),
        message=message[:4000],
        traceback="\n".join(lines[-TRACEBACK_LINES:]),
        call=call,
        phase=phase,
        is_out_of_memory=out_of_memory,
    )


def _qualified(kind: type) -> str:
    """Name of a class that is the same in all instances of one program."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    module = PROGRAM_MODULE if kind.__module__.startswith(PROGRAM_MODULE) else kind.__module__
    return f"{module}.{kind.__qualname__}"
