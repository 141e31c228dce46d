"""ModelsSuite: every architecture in eval and in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.errors import UsageError
from oracle.program import Call, Program
from suites.base import Selection, SuiteProgram
from suites.models import DEFAULT_SUBJECTS, DESCRIPTION, DTYPES, NAME, TAGS
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

    name: str = NAME
    description: str = DESCRIPTION
    tags: Mapping[str, str] = TAGS
    dtypes: tuple[str, ...] = DTYPES
    default_subjects: tuple[str, ...] = DEFAULT_SUBJECTS

    def groups(self, selection: Selection) -> list[str]:
        return [
            name
            for name, architecture in ARCHITECTURES.items()
            if selection.may_want_group(name) and _has_tag(architecture, selection)
        ]

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a group that does not exist."""
        architecture = ARCHITECTURES.get(group)
        if architecture is None:
            raise UsageError(
                seen=f"model {group!r}",
                expected=f"one of the {len(ARCHITECTURES)} models",
                do="`torch-oracle list models` prints them",
            )
        if not _has_tag(architecture, selection):
            return
        for dtype in selection.dtypes or ("float32",):
            if dtype not in architecture.dtypes:
                continue
            for direction, (mode, calls) in _MODES.items():
                name = f"{group}/{dtype}/{direction}/{mode}"
                if selection.directions and direction not in selection.directions:
                    continue
                if not selection.wants(group=group, name=name):
                    continue
                source = _SOURCE.format(name=group, mode=mode, dtype=dtype, device=selection.device)
                yield SuiteProgram(
                    program=Program(name=name, source=source, calls=calls, is_module=True),
                    group=group,
                    dtype=dtype,
                    direction=direction,
                    tags=architecture.tags,
                    timeout_s=architecture.timeout_s,
                )


def _has_tag(architecture: Architecture, selection: Selection) -> bool:
    if selection.quick and "quick" not in architecture.tags:
        return False
    return not selection.tags or any(tag in selection.tags for tag in architecture.tags)
