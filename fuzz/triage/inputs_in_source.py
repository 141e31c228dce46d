"""A program whose calls carry input specs, as one whose source makes its inputs: its text is then complete."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace

from fuzz.draw.inputs.source import InputSource, input_source, values_source
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.program.build import Instance, instantiate

_EXPLICIT = 64  # storages up to this size are written out; for larger ones the text draws the elements
_LONGEST = 1 << 20  # characters of inputs that no expression draws


def inputs_in_source(program: Program) -> Program:
    """The same program with a function `inputs(call)` for all its calls, and with values="given" in each of them.

    A call on other values has these values written out. Executes the program's source if there is such a call. Raises UsageError
    for an input that has no text, and if the text gets too long.
    """
    if all(map(_is_in_source, program.calls)):
        return program
    instance = instantiate(program) if any(call.values != "given" for call in program.calls) else None
    has_own = re.search(r"^def inputs\(", program.source, re.MULTILINE) is not None
    bodies = []
    for number, call in enumerate(program.calls):
        if not _is_in_source(call):
            lines = _lines(_inputs(program, number, instance))
        elif has_own:
            lines = [f"return _inputs_of_source({number})"]
        else:
            lines = ["return [], {}"]
        bodies.append(f"if call == {number}:\n" + textwrap.indent("\n".join(lines), "    "))
    own = "_inputs_of_source = inputs\n\n\n" if has_own else ""
    imports = "import base64\nimport zlib\n\n\n" if "zlib.decompress" in "".join(bodies) else ""
    text = imports + own + "def inputs(call):\n" + textwrap.indent("\n".join(bodies), "    ") + "\n"
    if len(text) > _LONGEST:
        raise UsageError(
            seen=f"program {program.name!r}, whose inputs are {len(text) >> 10} KiB of text",
            expected=f"at most {_LONGEST >> 10} KiB", do="use smaller inputs, or one call (--calls 1)",
        )  # fmt: skip
    calls = tuple(replace(call, args=None, kwargs=None, values="given") for call in program.calls)
    return replace(program, source=program.source.rstrip("\n") + "\n\n\n" + text, calls=calls)


def _is_in_source(call: Call) -> bool:
    return call.args is None and call.kwargs is None and call.values == "given"


def _inputs(program: Program, number: int, instance: Instance | None) -> InputSource:
    if program.calls[number].values == "given":
        return input_source(program, number, explicit=_EXPLICIT)
    assert instance is not None
    args, kwargs = instance.inputs(number)
    return values_source(args, kwargs, explicit=_EXPLICIT, sources={})


def _lines(made: InputSource) -> list[str]:
    keywords = ", ".join(f"{name!r}: {text}" for name, text in made.kwargs)
    return [*made.lines, f"return [{', '.join(made.args)}], {{{keywords}}}"]
