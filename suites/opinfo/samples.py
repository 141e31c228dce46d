"""`bind`, the function that the source of every opinfo program calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracle.errors import UsageError
from suites.opinfo.calls import KINDS
from suites.opinfo.database import entry
from suites.opinfo.generate import SampleKey, sample

Inputs = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]


def bind(
    op: str, *, dtype: str, kind: str, index: int, device: str, direction: str
) -> tuple[Callable[..., Any], Inputs]:
    """Returns `(program, inputs)`: the function to compile, and a function that returns its arguments for a call.

    `op` is an entry's full name, `kind` a key of `calls.KINDS`, `index` the sample's number in upstream's list. The tensors come
    from a list shared by all cases of the entry: the caller clones before it runs anything. Raises UsageError for an unknown
    entry or kind, SampleGenerationError if there is no such sample.
    """
    found = KINDS.get(kind)
    if found is None:
        raise UsageError(
            seen=f"kind {kind!r}", expected=f"one of {', '.join(KINDS)}", do="correct the program's source"
        )
    backward = direction == "backward"
    key = SampleKey(op=op, dtype=dtype, source=found.source, device=device, requires_grad=backward)
    call = found.call(entry(op), sample(key, index), backward)

    def inputs(number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return call.args, call.kwargs

    return call.function, inputs


def source_of(op: str, *, dtype: str, kind: str, index: int, device: str, direction: str) -> str:
    """The source text of the program that `bind` makes of the same arguments."""
    return (
        "from suites.opinfo.samples import bind\n"
        "\n"
        f"program, inputs = bind(\n"
        f'    "{op}", dtype="{dtype}", kind="{kind}", index={index}, device="{device}", direction="{direction}"\n'
        ")\n"
    )
