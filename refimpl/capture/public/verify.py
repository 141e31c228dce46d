"""Checks that a backend's result computes what the graph computes, on copies of the inputs.

Counterpart: torch/_dynamo/output_graph.py WrapperBackend
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from refimpl.capture.public.cloning import checkpoint_params, clone_inputs
from refimpl.capture.public.same import same


def check_backend(module: fx.GraphModule, compiled: Callable[..., Any], examples: Sequence[Any]) -> None:
    """Runs both on copies of the example inputs. Raises RuntimeError where the results differ."""
    restore = checkpoint_params(module)
    correct = module.forward(*clone_inputs(list(examples)))
    restore()
    result = compiled(*clone_inputs(list(examples)))
    restore()
    if not same(correct, result):
        raise RuntimeError(
            f"incorrect results of backend {compiled}\n  expected: {correct}\n  seen: {result}\n"
            "  what to do: mend the backend, or unset config.verify_correctness"
        )
