"""ExportsSuite: every model with one dynamic size; each program exports it once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.program import Call, Program
from suites.base import Selection, SuiteProgram, group_of
from suites.models.architecture import Architecture
from suites.models.catalog import ARCHITECTURES

# Above 2, since exported programs accept sizes 0 and 1 with the default range (docs/export.md).
SMALLEST, EXAMPLE, LARGEST = 3, 4, 8
# kind of program -> the sizes of its calls. The first call is the example that is exported.
INSIDE = {"inside": (EXAMPLE, SMALLEST, LARGEST)}
OUTSIDE = {"above": (EXAMPLE, LARGEST + 1), "below": (EXAMPLE, SMALLEST - 1)}
# Model -> input -> the dynamic dimension, if it is not the first one of every input.
VARYING: Mapping[str, Mapping[str, int]] = {"gcn": {"edges": 1}, "gat": {"edges": 1}}

_SOURCE = """\
from suites.models.zoo import build, make_inputs


def program():
    return build({name!r}, mode={mode!r}, dtype={dtype!r}, device={device!r})


def inputs(call):
    size = {sizes!r}[call]
    return make_inputs({name!r}, mode={mode!r}, dtype={dtype!r}, device={device!r}, call=call, sizes={varying!r}, size=size)
"""
_MODES = {"forward": "eval", "backward": "train"}


class ExportsSuite:
    """Groups are architectures. Programs are "bert/float32/forward/inside", "bert/float32/forward/above", ".../below".

    There is one program for each architecture, dtype, direction and kind, so `max_samples` has no effect. For subjects without
    ranges of sizes (`SubjectSpec.ranges`) calls outside of the range are judged like others. The default sweep takes the
    architectures tagged "quick".
    """

    def groups(self, selection: Selection) -> list[str]:
        return [
            name
            for name, architecture in ARCHITECTURES.items()
            if selection.may_want_group(name) and any(_has_tag(architecture, kind, selection) for kind in _kinds())
        ]

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a group that does not exist."""
        architecture = group_of(ARCHITECTURES, group, suite="exports", what="model")
        for dtype in selection.dtypes or ("float32",):
            for direction in selection.directions or ("forward",):
                for kind, sizes in _kinds().items():
                    name = f"{group}/{dtype}/{direction}/{kind}"
                    if dtype not in architecture.dtypes or not _has_tag(architecture, kind, selection):
                        continue
                    if selection.wants(group=group, name=name):
                        yield SuiteProgram(
                            program=_program(name, architecture, dtype, direction, selection.device, sizes),
                            group=group,
                            dtype=dtype,
                            direction=direction,
                            tags=(*architecture.tags, _tag(kind)),
                            timeout_s=architecture.timeout_s,
                        )


def _program(
    name: str, architecture: Architecture, dtype: str, direction: str, device: str, sizes: tuple[int, ...]
) -> Program:
    mode = _MODES[direction]
    inputs = {**architecture.inputs, **(architecture.labels if mode == "train" else {})}
    varying = VARYING.get(architecture.name) or dict.fromkeys(inputs, 0)
    training = mode == "train"
    call = Call(training=training, backward=training, grad_mode="grad" if training else "no_grad")
    is_outside = not SMALLEST <= sizes[-1] <= LARGEST
    return Program(
        name=name,
        source=_SOURCE.format(
            name=architecture.name, mode=mode, dtype=dtype, device=device, sizes=sizes, varying=varying
        ),
        calls=(
            *(call for _ in sizes[:-1]),
            Call(training=training, backward=call.backward, grad_mode=call.grad_mode, outside=is_outside),
        ),
        is_module=True,
        sizes={key: {str(dim): ["batch", SMALLEST, LARGEST]} for key, dim in varying.items()},
    )


def _kinds() -> dict[str, tuple[int, ...]]:
    return {**INSIDE, **OUTSIDE}


def _tag(kind: str) -> str:
    return "inside" if kind in INSIDE else "outside"


def _has_tag(architecture: Architecture, kind: str, selection: Selection) -> bool:
    """Whether the tags match: some tags belong to models, others to kinds of programs, and both must match if both are given."""
    if selection.quick and "quick" not in architecture.tags:
        return False
    asked = set(selection.tags)
    of_kinds, of_models = asked & {"inside", "outside"}, asked - {"inside", "outside"}
    return (not of_kinds or _tag(kind) in of_kinds) and (not of_models or bool(of_models & set(architecture.tags)))
