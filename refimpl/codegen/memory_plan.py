"""Plans which buffers share memory: a buffer takes the memory of a dead one, or overwrites an input that its kernel reads.

Counterpart: torch/_inductor/codegen/wrapper.py MemoryPlanningLine, torch/_inductor/scheduler.py decide_inplace_update
Differs: in-place writes are proved safe from indices and from the kernel's source; each plan is verified against the uses.

Note [what may alias]: memory is reused only if it is known which buffers alias it. Inputs, constants and results of the graph
keep theirs, and so do arguments and results of operators that may return an argument, or a view of one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from refimpl._torch import OpOverload, has_composite_kernel, pytree
from refimpl.codegen.configurations import Configuration
from refimpl.codegen.indices import is_provably_equal, product
from refimpl.codegen.loop_ir import Attention, Buffer, Extern, Opaque, Tiled
from refimpl.codegen.printing.kernels import PrintedKernel
from refimpl.codegen.scalars import Load, walk
from refimpl.codegen.schedule import Group, guess
from refimpl.errors import RefimplError

THREADS_IN_A_WARP = 32


class BadMemoryPlan(RefimplError):
    """A plan that would overwrite a value which is still needed: a bug of this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The effect of one entry of a schedule on memory.

    made: buffers that are allocated before it runs. given: buffers that it returns, with memory of their own unless
    `is_aliasing`: then its arguments and results may share memory. overwrites: for a buffer of `made`, those that it may
    overwrite.
    is_hiding: some argument or result is opaque, and may hold memory that the plan does not see.
    """

    reads: frozenset[str] = frozenset()
    made: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    overwrites: Mapping[str, tuple[str, ...]]
    is_aliasing: bool = False
    is_hiding: bool = False

    @property
    def names(self) -> frozenset[str]:
        """All buffers that must exist while it runs."""
        return self.reads.union(self.made, self.given)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """donors: for a buffer, the one whose memory it takes. last_uses: the last entry that uses the name of a buffer."""

    donors: Mapping[str, str]
    last_uses: Mapping[str, int]


def plan_memory(
    uses: Sequence[Use], buffers: Mapping[str, Buffer], fixed: frozenset[str], needed: frozenset[str], *, reuse: bool
) -> MemoryPlan:
    """Plans memory for the entries in order. `fixed` are inputs and constants, `needed` outlive the graph. Raises
    BadMemoryPlan."""
    found = _PlanningState(uses, buffers, fixed, needed).run() if reuse else MemoryPlan({}, _last_uses(uses, needed))
    verify(found, uses, buffers, fixed, needed)
    return found


def verify(
    plan: MemoryPlan,
    uses: Sequence[Use],
    buffers: Mapping[str, Buffer],
    fixed: frozenset[str],
    needed: frozenset[str],
) -> None:
    """Replays the plan. Raises BadMemoryPlan if something is read after it was overwritten."""
    kept = fixed | needed | _shared(uses)
    owner: dict[str, str] = {}  # keyed by the buffer that the memory was allocated for
    home: dict[str, str] = {}

    def lost(name: str, why: str) -> BadMemoryPlan:
        return BadMemoryPlan(
            f"memory plan: {name} {why}\n  expected: memory that nobody needs\n  donors: {plan.donors}"
        )

    for position, use in enumerate(uses):
        for name in use.made:
            donor = plan.donors.get(name)
            if donor is None:
                home[name] = name
                owner[name] = name
                continue
            if donor in kept:
                raise lost(name, f"takes the memory of {donor}, which is not free")
            if not _amount(buffers[name]).is_same(_amount(buffers[donor])):
                raise lost(name, f"takes the memory of {donor}, which is another amount")
            if donor in use.reads and donor not in use.overwrites.get(name, ()):
                raise lost(name, f"takes the memory of {donor}, which is still read")
            if owner.get(home[donor]) != donor:
                raise lost(name, f"takes the memory of {donor}, which has lost it")
            home[name] = home[donor]
            owner[home[name]] = name
        for name in use.given:
            home[name] = name
            owner[name] = name
        for name in use.reads - fixed:
            is_overwritten_now = any(plan.donors.get(made) == name for made in use.made)
            if not is_overwritten_now and owner.get(home[name]) != name:
                raise lost(name, f"is read by entry {position} and has lost its memory")
    for name in needed & home.keys():
        if owner[home[name]] != name:
            raise lost(name, "outlives the graph and has lost its memory")


# ---------------------------------------------------------------------------------------------------------------- planning


class _PlanningState:
    def __init__(
        self, uses: Sequence[Use], buffers: Mapping[str, Buffer], fixed: frozenset[str], needed: frozenset[str]
    ) -> None:
        self.uses = uses
        self.buffers = buffers
        self.fixed = fixed
        self.needed = needed
        self.last_uses = _last_uses(uses, needed)
        kept = fixed | needed | _shared(uses)
        self.deaths = {name: position for name, position in self.last_uses.items() if name not in kept}
        self.live = self._live_bytes()
        self.allowed = max(self.live, default=0)  # memory kept for reuse must not raise the peak
        self.free: list[str] = []  # the last to die is the last in the list
        self.donors: dict[str, str] = {}
        self.amounts: dict[str, _Amount] = {}

    def run(self) -> MemoryPlan:
        dying: dict[int, list[str]] = {}
        for name, position in self.deaths.items():
            dying.setdefault(position, []).append(name)
        for position, use in enumerate(self.uses):
            for name in use.made:
                donor = self._donor(name, position)
                if donor is not None:
                    self._give(donor, name, position)
            taken = set(self.donors.values())
            self.free += [name for name in sorted(dying.get(position, ())) if name not in taken]
        return MemoryPlan(self.donors, self.last_uses)

    def _donor(self, name: str, position: int) -> str | None:
        taken = set(self.donors.values())
        for other in self.uses[position].overwrites.get(name, ()):
            if other not in taken and self.deaths.get(other) == position and self._fits(name, other):
                return other
        for other in reversed(self.free):
            if self._fits(name, other) and self._can_wait(other, position):
                return other
        return None

    def _fits(self, name: str, donor: str) -> bool:
        if not self._amount(name).is_same(self._amount(donor)):
            return False
        # A result of the graph must not be a view of a tensor that nobody else holds.
        return name not in self.needed or not needs_view(self.buffers[name], self.buffers[donor])

    def _amount(self, name: str) -> _Amount:
        if name not in self.amounts:
            self.amounts[name] = _amount(self.buffers[name])
        return self.amounts[name]

    def _can_wait(self, donor: str, position: int) -> bool:
        size = _bytes(self.buffers[donor])
        return all(self.live[at] + size <= self.allowed for at in range(self.deaths[donor] + 1, position))

    def _give(self, donor: str, name: str, position: int) -> None:
        size = _bytes(self.buffers[donor])
        died = self.deaths[donor]
        for at in range(died + 1, position):
            self.live[at] += size
        if died == position:
            self.live[position] -= size
        self.donors[name] = donor
        self.last_uses[donor] = position
        if donor in self.free:
            self.free.remove(donor)

    def _live_bytes(self) -> list[int]:
        live = [0] * len(self.uses)
        born: dict[str, int] = {}
        for position, use in enumerate(self.uses):
            for name in (*use.made, *use.given):
                born.setdefault(name, position)
        for name, start in born.items():
            end = self.last_uses.get(name, len(self.uses) - 1)
            for at in range(start, end + 1):
                live[at] += _bytes(self.buffers[name])
        return live


def _last_uses(uses: Sequence[Use], needed: frozenset[str]) -> dict[str, int]:
    last: dict[str, int] = {}
    for position, use in enumerate(uses):
        for name in sorted(use.names):
            last[name] = position
    return {name: position for name, position in last.items() if name not in needed}


def _shared(uses: Sequence[Use]) -> frozenset[str]:
    """Buffers that may share memory with another buffer, or with an opaque value."""
    return frozenset[str]().union(*(use.names for use in uses if use.is_hiding or (use.is_aliasing and use.given)))


@dataclass(frozen=True, slots=True)
class _Amount:
    """The dtype, device and number of elements of a buffer. `numel` is None unless the buffer is provably without gaps."""

    dtype: torch.dtype
    device: torch.device
    numel: sympy.Expr | None

    def is_same(self, other: _Amount) -> bool:
        if self.numel is None or other.numel is None or (self.dtype, self.device) != (other.dtype, other.device):
            return False
        return is_provably_equal(self.numel, other.numel)


def _amount(buffer: Buffer) -> _Amount:
    numel = product(buffer.shape)
    last = sympy.Add(*((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True)))
    return _Amount(buffer.dtype, buffer.device, numel if is_provably_equal(last + 1, numel) else None)


def needs_view(buffer: Buffer, donor: Buffer) -> bool:
    """Whether a buffer has other sizes or strides than the one whose memory it takes."""
    numbers, others = (*buffer.shape, *buffer.strides), (*donor.shape, *donor.strides)
    return len(numbers) != len(others) or not all(map(is_provably_equal, numbers, others))


def _bytes(buffer: Buffer) -> int:
    """Bytes of the buffer. Symbolic sizes are guessed, so use the number for choices only."""
    return guess(product(buffer.shape)) * buffer.dtype.itemsize


# ----------------------------------------------------------------------------------------------------------- what is known


def use_of_extern(extern: Extern) -> Use:
    """The effect of an extern call on memory."""
    given = tuple(output.buffer.name for output in extern.outputs if output.buffer is not None)
    leaves = pytree.tree_leaves((extern.arguments, extern.keywords))
    is_hiding = any(output.opaque is not None for output in extern.outputs) or any(
        isinstance(leaf, Opaque) for leaf in leaves
    )
    return Use(
        reads=extern.reads, given=given, overwrites={}, is_hiding=is_hiding, is_aliasing=may_alias(extern.target)
    )


def may_alias(target: Any) -> bool:
    """Whether a result may share memory with an argument, or with another result. Schemas of operators with kernels of their own
    say so, except for a few called unsafe. Schemas of composite operators may not."""
    if target is torch.empty_strided:
        return False
    if not isinstance(target, OpOverload) or target.namespace != "aten" or "unsafe" in str(target):
        return True
    schema = target._schema
    if any(value.alias_info is not None for value in (*schema.arguments, *schema.returns)):
        return True
    return has_composite_kernel(target)


def use_of_attention(attention: Attention | Tiled, printed: PrintedKernel) -> Use:
    """The effect of an attention kernel on memory. Its programs read elements that others write, so it overwrites nothing."""
    return Use(reads=attention.reads, made=printed.written, overwrites={})


def use_of_kernel(group: Group, printed: PrintedKernel, begun: Collection[str] = ()) -> Use:
    """The effect of a kernel on memory. Buffers in `begun` exist already; it changes them."""
    made = tuple(written for written in printed.written if written not in begun)
    loads = frozenset(group.reads() - group.produces().keys())
    names = {
        argument: parameter.name
        for argument, parameter in zip(printed.arguments, printed.kernel.arguments, strict=True)
        if isinstance(argument, str)
    }
    source = printed.kernel.source
    overwrites = {
        written: tuple(
            read
            for read in sorted(loads & names.keys())
            if is_read_where_written(group, written, read) and is_read_before(source, names[read], names[written])
        )
        for written in made
        if written in group.produces() and has_a_point_for_each_thread(printed.default)
    }
    return Use(reads=loads.union(printed.written) - set(made), made=made, overwrites=overwrites)


def has_a_point_for_each_thread(configuration: Configuration) -> bool:
    """Whether no two threads load the same element for the same point: the later one could see what the other has stored."""
    return math.prod(configuration.constants.values()) >= THREADS_IN_A_WARP * configuration.num_warps


def is_read_where_written(group: Group, written: str, read: str) -> bool:
    """Whether each element of the buffer `read` is loaded only by the point that stores this element of `written`.

    No two points may share the element, so its index must depend on all axes of the kernel.
    """
    nest = group.produces()[written]
    if not {axis.symbol for axis in group.order} <= nest.index.free_symbols:
        return False
    for other in group.nests:
        for part in walk(*other.scalars()):
            if isinstance(part, Load) and part.buffer == read and (part.indirect or part.index != nest.index):
                return False
    return True


def is_read_before(source: str, read: str, written: str) -> bool:
    """Whether a kernel's last load from one parameter comes before its first store to the other. The names are parameters'."""
    body = source[source.rindex("@triton.jit") :].split(":\n", 1)[1]
    reads = [match.start() for match in re.finditer(rf"\b{read}\b", body)]
    writes = [match.start() for match in re.finditer(rf"\b{written}\b", body)]
    return bool(writes) and (not reads or reads[-1] < writes[0])
