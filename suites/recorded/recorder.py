"""Makes a recording of a program in a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from oracle.errors import UsageError
from oracle.program.build import instantiate
from oracle.program.user_file import program_of_file
from oracle.recording import Recorder, text_of
from results.files import write_atomically


def make_recording(target: str, *, inputs: str, output: Path, seed: int, allow_effects: bool) -> str:
    """Record one run of the program, and its backward if it has one; returns a sentence about the file.

    Raises UsageError for what `program_of_file` refuses (no such file or name, inputs that do not fit, a program that raises) and
    for a place that cannot be written. A file that exists is replaced when the recording is complete.
    """
    program = program_of_file(target, inputs=inputs, calls=1, seed=seed, allow_effects=allow_effects)
    recorder = Recorder()
    try:
        instance = instantiate(program)
        instance.prepare(0)
        args, kwargs = instance.inputs(0)
        with recorder:
            _run(instance.target, args, kwargs, backward=program.calls[0].backward)
    except Exception as error:  # the user's code: told to the user
        raise UsageError(
            seen=f"{target} raises while it is recorded: {type(error).__name__}: {error}",
            expected="a program that runs, also a second time",
            do="run it alone",
        ) from error
    write_atomically(output, text_of(recorder, source=target))
    lines = recorder.lines()
    left_out = sum("unreplayable" in line for line in lines)
    operators = len({line["op"] for line in lines})
    said = f"{recorder.calls} calls of {operators} operators, {len(lines)} of them different, are in {output}"
    return said + (f"; {left_out} cannot be replayed" if left_out else "")


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, backward: bool) -> None:
    result = function(*args, **kwargs)
    if backward:
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
