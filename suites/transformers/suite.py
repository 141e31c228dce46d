"""TransformersSuite: every architecture of the installed transformers, in eval and in training."""

from __future__ import annotations

from collections.abc import Iterator

from oracle.program import Call
from suites.base import Selection, SuiteProgram, group_of
from suites.models.suite import programs_of_model
from suites.transformers import DTYPES
from suites.transformers.catalog import Named, architectures

_SOURCE = """\
from suites.transformers.build import build, make_inputs


def program():
    return build({name!r}, mode={mode!r}, dtype={dtype!r}, device={device!r})


def inputs(call):
    return make_inputs({name!r}, dtype={dtype!r}, device={device!r}, call=call)
"""
# direction -> mode, and calls. The second call has other values (make_inputs), which show constants baked in at the first.
_MODES = {
    "forward": ("eval", (Call(grad_mode="no_grad", training=False), Call(grad_mode="no_grad"))),
    "backward": ("train", (Call(backward=True, training=True), Call(backward=True))),
}


class TransformersSuite:
    """Groups are model types of transformers. Programs are "bert/float32/forward/eval" and "bert/float32/backward/train".

    No architecture is imported before one of its programs runs. There is one program for each architecture, dtype and direction,
    so `max_samples` has no effect.
    """

    def groups(self, selection: Selection) -> list[str]:
        """Raises UsageError without transformers."""
        return [
            name for name, one in architectures().items() if selection.may_want_group(name) and _has_tag(one, selection)
        ]

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a group that does not exist."""
        named = group_of(architectures(), group, suite="transformers", what="architecture")
        if not _has_tag(named, selection):
            return
        yield from programs_of_model(group, selection, source=_SOURCE, dtypes=DTYPES, modes=_MODES, tags=(named.kind,))


def _has_tag(named: Named, selection: Selection) -> bool:
    return not selection.tags or named.kind in selection.tags
