"""Lists the programs of a selection, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from oracle.errors import UsageError
from oracle.program import Call, Program, default_plan
from suites.base import Selection, SuiteProgram
from suites.opinfo import DEFAULT_DTYPES, DIRECTIONS, DTYPES, TAGS
from suites.opinfo.calls import KINDS, eager_takes
from suites.opinfo.database import ENTRIES, OpInfo, dtypes_of, entry, runs_on
from suites.opinfo.generate import SampleKey, sample_list
from suites.opinfo.policies import policy_for
from suites.opinfo.samples import source_of

DEFAULT_KINDS = ("sample", "error")
QUICK_SAMPLES = 1
_STRIDED = "noncontiguous"  # torch's own stages seldom go wrong there; kernels of other compilers do


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A selection with the suite's defaults filled in and every word checked."""

    dtypes: tuple[str, ...]
    directions: tuple[str, ...]
    kinds: tuple[str, ...]
    device: torch.device


def axes(selection: Selection) -> Axes:
    """Raises UsageError for a dtype, direction, tag or device that the suite does not know."""
    _check("dtype", selection.dtypes, DTYPES)
    _check("direction", selection.directions, DIRECTIONS)
    _check("tag", selection.tags, tuple(TAGS))
    wanted_dtypes = selection.dtypes or DEFAULT_DTYPES
    wanted_directions = selection.directions or DIRECTIONS[:1]
    return Axes(
        dtypes=tuple(dtype for dtype in DTYPES if dtype in wanted_dtypes),
        directions=tuple(direction for direction in DIRECTIONS if direction in wanted_directions),
        kinds=tuple(kind for kind in KINDS if _is_selected(kind, selection.tags)),
        device=_device(selection.device),
    )


def list_groups(selection: Selection) -> list[str]:
    """Full names of the entries that can hold a selected program, in upstream's order."""
    wanted = axes(selection)
    names = [
        name
        for name, info in ENTRIES.items()
        if selection.may_want_group(name) and runs_on(info, wanted.device) and any(_cells(info, wanted))
    ]
    return _first_of_each_operator(names) if selection.quick else names


def _first_of_each_operator(names: Sequence[str]) -> list[str]:
    """Keep only the first entry of each operator: drops `nn.functional.interpolate.bicubic` after `.nearest`."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(ENTRIES[name].name, name)
    return list(first.values())


def list_programs(selection: Selection, group: str) -> Iterator[SuiteProgram]:
    """The selected programs of one entry: by dtype, direction, kind, then sample number."""
    wanted = axes(selection)
    info = entry(group)
    if not runs_on(info, wanted.device):
        return
    is_first_dtype = True
    for dtype, direction in _cells(info, wanted):
        names = []
        for kind in wanted.kinds:
            if kind == "error" and not is_first_dtype:
                continue
            names.extend((kind, index) for index in _indices(info, dtype, direction, kind, wanted.device))
        is_first_dtype = is_first_dtype and direction != "forward"
        chosen = [
            (kind, index)
            for kind, index in names
            if selection.wants(group=group, name=_name(group, dtype, direction, kind, index))
        ]
        picked = spread(chosen, QUICK_SAMPLES if selection.quick else selection.max_samples)
        if selection.foreign and direction == "forward":
            picked += [(_STRIDED, i) for i in _indices(info, dtype, direction, _STRIDED, wanted.device)[:QUICK_SAMPLES]]
        for kind, index in picked:
            yield _suite_program(info, dtype=dtype, direction=direction, kind=kind, index=index, device=wanted.device)


def spread(items: Sequence[tuple[str, int]], limit: int | None) -> list[tuple[str, int]]:
    """At most `limit` of the items: the first, the last, and evenly between."""
    if limit is None or len(items) <= limit:
        return list(items)
    if limit <= 1:
        return list(items[:limit])
    return [items[round(position * (len(items) - 1) / (limit - 1))] for position in range(limit)]


def _cells(info: OpInfo, wanted: Axes) -> Iterator[tuple[str, str]]:
    """The (dtype, direction) pairs that the entry has."""
    for dtype in wanted.dtypes:
        for direction in wanted.directions:
            if getattr(torch, dtype, None) in dtypes_of(info, wanted.device, direction):
                yield dtype, direction


def _indices(info: OpInfo, dtype: str, direction: str, kind: str, device: torch.device) -> list[int]:
    """Numbers of the samples of this kind; one past the end if the generator raised, so that the error is reported."""
    rule = KINDS[kind]
    if direction not in rule.directions or not rule.has(info, direction == "backward"):
        return []
    found = sample_list(_key(info, dtype, direction, kind, device))
    indices = [
        index
        for index, one in enumerate(found.samples)
        if rule.fits(info, one) and (not rule.is_derived or eager_takes(rule, info, one, direction == "backward"))
    ]
    is_empty = kind == "sample" and not found.samples
    if found.failure is not None or is_empty:
        indices.append(len(found.samples))
    return indices


def _suite_program(
    info: OpInfo, *, dtype: str, direction: str, kind: str, index: int, device: torch.device
) -> SuiteProgram:
    op, rule = info.full_name, KINDS[kind]
    samples = sample_list(_key(info, dtype, direction, kind, device)).samples
    one = samples[index] if index < len(samples) else None
    # Some of upstream's error inputs are refused only by its Python reference implementations: try them in eager.
    expects_raise = kind == "error" and one is not None and not eager_takes(rule, info, one, False)
    name = _name(op, dtype, direction, kind, index)
    return SuiteProgram(
        program=Program(
            name=name,
            source=source_of(op, dtype=dtype, kind=kind, index=index, device=str(device), direction=direction),
            calls=(Call(),) if expects_raise else default_plan(Call(backward=direction == "backward"), key=name),
            expects_raise=expects_raise,
            policy=policy_for(info, one=one, kind=kind, direction=direction),
        ),
        group=op,
        dtype=dtype,
        direction=direction,
        tags=(rule.tag,),
    )


def _key(info: OpInfo, dtype: str, direction: str, kind: str, device: torch.device) -> SampleKey:
    return SampleKey(
        op=info.full_name,
        dtype=dtype,
        source=KINDS[kind].source,
        device=str(device),
        requires_grad=direction == "backward",
    )


def _name(group: str, dtype: str, direction: str, kind: str, index: int) -> str:
    return f"{group}/{dtype}/{direction}/{kind}-{index}"


def _is_selected(kind: str, tags: tuple[str, ...]) -> bool:
    if not tags:
        return kind in DEFAULT_KINDS
    tag = KINDS[kind].tag
    return tag in tags or ("all" in tags and tag != "reference")


def _check(what: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for word in given:
        if word not in known:
            raise UsageError(
                seen=f"{what} {word!r} for suite opinfo",
                expected=f"one of {', '.join(known)}",
                do=f"choose another {what}, or leave it out for the default",
            )


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise UsageError(
            seen=f"device {text!r}", expected="a torch device such as cpu or cuda:0", do="name another"
        ) from error
