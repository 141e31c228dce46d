"""Decompositions of in-place and `out=` variants: the functional op's result, copied into the argument or into `out`.

`out` is resized if needed. The rules return NotImplemented, so that the variant itself raises, if eager refuses the variant but
not the functional op: the argument cannot hold the result dtype, or `out` has another dtype. They do so as well for an expanded
argument, to which some kernels write and `copy_` does not.

Counterpart: torch/_decomp/decompositions.py register_inplace, torch/_prims_common/wrappers.py out_wrapper
Differs: variants are found by comparing schemas, so that none is missed; those of core ops are decomposed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.registry import aten, decomposition_table, register
from refimpl.trace.refusals import is_expanded

Tensor = torch.Tensor
_OPTIONS = ("dtype", "layout", "device", "pin_memory")


def register_variants(core: Sequence[OpOverload]) -> None:
    """Register the in-place and out variants of every op in the table or in `core`, unless they have a rule or are core."""
    kept = frozenset(core)
    for functional in (*decomposition_table, *core):
        for variant, rule in variant_rules(functional, decomposition_table.get(functional, functional)):
            if variant not in kept and variant not in decomposition_table:
                register(variant, rule)


def variant_rules(
    functional: OpOverload, compute: Callable[..., Any]
) -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    """The in-place and the out variant of a functional op, as far as there are any, each with its rule; `compute` is the op."""
    if not _is_functional(functional):
        return
    for variant, rule_of in ((in_place_variant(functional), _in_place), (out_variant(functional), _into_out)):
        if variant is not None:
            yield variant, rule_of(functional, variant, compute)


def in_place_variant(overload: OpOverload) -> OpOverload | None:
    """`aten.add_.Tensor` for `aten.add.Tensor`."""
    wanted = _signature(overload)
    return next((found for found in _overloads(f"{_name(overload)}_") if _signature(found) == wanted), None)


def out_variant(overload: OpOverload) -> OpOverload | None:
    """`aten.add.out` for `aten.add.Tensor`."""
    wanted = _signature(overload)
    return next((found for found in _overloads(_name(overload)) if _outs(found) and _signature(found) == wanted), None)


def _name(overload: OpOverload) -> str:
    return overload._schema.name.removeprefix("aten::")


def _outs(overload: OpOverload) -> list[str]:
    return [a.name for a in overload._schema.arguments if a.is_out]


def _is_factory(overload: OpOverload) -> bool:
    """Whether the op takes dtype, layout and device of its result, which its out variant takes from `out`."""
    return any(a.name == "layout" for a in overload._schema.arguments)


def _signature(overload: OpOverload) -> tuple[tuple[str, str], ...]:
    """Names and types of the arguments, without `out=` arguments and without a factory's dtype, layout and device."""
    left_out = _OPTIONS if _is_factory(overload) else ()
    arguments = overload._schema.arguments
    return tuple((a.name, str(a.type)) for a in arguments if not a.is_out and a.name not in left_out)


def _overloads(packet_name: str) -> Iterator[OpOverload]:
    packet = getattr(aten, packet_name, None)
    if packet is not None:
        yield from (getattr(packet, name) for name in packet.overloads())


def _is_functional(overload: OpOverload) -> bool:
    """Whether the op only returns new tensors, mutates no argument, and is not random."""
    schema = overload._schema
    is_aliasing = any(x.alias_info is not None for x in (*schema.arguments, *schema.returns))
    is_random = torch.Tag.nondeterministic_seeded in overload.tags
    return not is_aliasing and not is_random and {str(r.type) for r in schema.returns} == {"Tensor"}


def _in_place(functional: OpOverload, variant: OpOverload, compute: Callable[..., Any]) -> Any:
    def in_place(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if is_expanded(x):
            return NotImplemented
        result = compute(x, *args, **kwargs)
        if result is NotImplemented or result.shape != x.shape or not torch.can_cast(result.dtype, x.dtype):
            return NotImplemented  # eager raises
        return aten.copy_.default(x, result)

    in_place.__name__ = in_place.__qualname__ = f"{functional} copied into its first argument"
    return in_place


def _into_out(functional: OpOverload, variant: OpOverload, compute: Callable[..., Any]) -> Any:
    names = _outs(variant)

    def into_out(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        if any(map(is_expanded, outs)):
            return NotImplemented
        if _is_factory(functional):
            kwargs |= {"dtype": outs[0].dtype, "device": outs[0].device}
        result = compute(*args, **kwargs)
        if result is NotImplemented:
            return NotImplemented
        results = [result] if isinstance(result, Tensor) else list(result)
        if any(value is None for value in results):
            return NotImplemented  # a backward op with a False in its output_mask
        for out, value in zip(outs, results, strict=True):
            is_resized = out.shape != value.shape
            if out.dtype is not value.dtype or out.device != value.device or (is_resized and not value.is_contiguous()):
                return NotImplemented  # some ops cast, some raise, and they resize to different strides
        for out, value in zip(outs, results, strict=True):
            if out.shape != value.shape:
                aten.resize_.default(out, value.shape)
            aten.copy_.default(out, value)
        return outs[0] if len(outs) == 1 else tuple(outs)

    into_out.__name__ = into_out.__qualname__ = f"{functional} copied into out"
    return into_out
