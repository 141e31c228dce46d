"""How many files a reader crosses who follows one program through an AOT compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# To be lowered when it falls, never raised. The goal is 30; torch's own AOT autograd enters 33 of its files.
MOST_FILES = 52

_FOLLOW_SIN = """
import sys
from pathlib import Path
import torch
import refimpl

folder = str(Path(refimpl.__file__).parent)
entered = set()

def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(folder):
        entered.add(frame.f_code.co_filename.removeprefix(folder + "/"))

x = torch.ones(3, requires_grad=True)
compiled = refimpl.compile_aot(torch.sin)
sys.setprofile(note)
compiled(x).sum().backward()
sys.setprofile(None)
assert torch.equal(x.grad, torch.ones(3).cos()), x.grad
print(*sorted(entered), sep="\\n")
"""


def test_a_sine_and_its_gradient_enter_few_files(run_fresh: Callable[..., Any]) -> None:
    done = run_fresh(_FOLLOW_SIN)
    assert done.returncode == 0, done.stderr
    entered = done.stdout.split()
    assert "aot/compile_program.py" in entered  # it was followed
    assert len(entered) <= MOST_FILES, f"{len(entered)} files:\n" + "\n".join(entered)
