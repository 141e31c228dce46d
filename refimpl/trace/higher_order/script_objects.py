"""The rule of call_torchbind, which a method of a script object becomes in a trace (direct_calls).

Counterpart: torch/_higher_order_ops/torchbind.py call_torchbind, enable_torchbind_tracing
Differs: methods of objects whose class has a registered fake are recorded in every trace. A fake runs the methods while a trace
with fake tensors runs, so that the object itself changes only when the graph runs.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import fake_object, has_fake_class
from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded


def method_of_script_object(call: HigherOrderCall, given: Any, method: str, *args: Any, **kwargs: Any) -> Recorded:
    """Node: call_torchbind(object, method, *args)."""
    runs = given
    if call.fake_mode is not None and isinstance(given, torch.ScriptObject) and has_fake_class(given):
        fakes = call.recording.fakes_of_objects
        runs = fakes.get(hash(given))
        if runs is None:
            runs = fakes[hash(given)] = fake_object(call.fake_mode, given)
    return Recorded(args=(given, method, *args), kwargs=kwargs, result=call.run(runs, method, *args, **kwargs))
