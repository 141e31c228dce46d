"""ModelsSuite: every architecture in eval and in training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from oracle.program import Call, Program
from suites.base import Selection, SuiteProgram, group_of
from suites.models.architecture import Architecture
from suites.models.catalog import ARCHITECTURES

_SOURCE = """\
from suites.models.zoo import build, make_inputs


def program():
    return build({name!r}, mode={mode!r}, dtype={dtype!r}, device={device!r})


def inputs(call):
    return make_inputs({name!r}, mode={mode!r}, dtype={dtype!r}, device={device!r}, call=call)
"""
# direction -> mode, and calls. Each call has other values (make_inputs): the later ones show constants baked in at the first.
_MODES = {
    "forward": ("eval", (Call(grad_mode="no_grad", training=False), *[Call(grad_mode="no_grad")] * 2)),
    "backward": ("train", (Call(backward=True, training=True), *[Call(backward=True)] * 2)),
}


class ModelsSuite:
    """Groups are architectures. Programs are "bert/float32/forward/eval" and "bert/float32/backward/train".

    Eager takes under 0.1 s a call, capture or `aot_eager` 0.1 to 12 s (the object detector), Inductor 3 to 70 s (the UNet
    in training), on one core.

    There is one program for each architecture, dtype and direction, so `max_samples` has no effect. The default sweep takes the
    architectures tagged "quick".
    """

    def groups(self, selection: Selection) -> list[str]:
        return [
            name
            for name, architecture in ARCHITECTURES.items()
            if selection.may_want_group(name) and _has_tag(architecture, selection)
        ]

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a group that does not exist."""
        architecture = group_of(ARCHITECTURES, group, suite="models", what="model")
        if not _has_tag(architecture, selection):
            return
        yield from programs_of_model(
            group,
            selection,
            source=_SOURCE,
            dtypes=architecture.dtypes,
            modes=_MODES,
            tags=architecture.tags,
            timeout_s=architecture.timeout_s,
        )


def programs_of_model(
    model: str,
    selection: Selection,
    *,
    source: str,
    dtypes: Collection[str],
    modes: Mapping[str, tuple[str, tuple[Call, ...]]],
    tags: tuple[str, ...],
    timeout_s: float | None = None,
) -> Iterator[SuiteProgram]:
    """One program for each selected dtype and direction of a model.

    `source` has the fields name, mode, dtype and device; `modes` has the mode ("eval", "train") and the calls of each direction.
    """
    for dtype in selection.dtypes or ("float32",):
        if dtype not in dtypes:
            continue
        for direction, (mode, calls) in modes.items():
            name = f"{model}/{dtype}/{direction}/{mode}"
            if selection.directions and direction not in selection.directions:
                continue
            if not selection.wants(group=model, name=name):
                continue
            text = source.format(name=model, mode=mode, dtype=dtype, device=selection.device)
            yield SuiteProgram(
                program=Program(name=name, source=text, calls=calls, is_module=True),
                group=model,
                dtype=dtype,
                direction=direction,
                tags=tags,
                timeout_s=timeout_s,
            )


def _has_tag(architecture: Architecture, selection: Selection) -> bool:
    if selection.quick and "quick" not in architecture.tags:
        return False
    return not selection.tags or any(tag in selection.tags for tag in architecture.tags)
