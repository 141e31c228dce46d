"""Compiled programs where forward-mode AD is on: they run as they are, as graphs and kernels give no tangents.

Counterpart: none; torch's graphs give results without tangents there, or raise for want of a jvp
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from refimpl._torch import forward_mode_level
from refimpl.errors import UnsupportedByRefimpl


def as_it_is_in_forward_mode(
    call: Callable[[list[Any]], list[Any]], function: Callable[..., Sequence[Any]]
) -> Callable[[list[Any]], list[Any]]:
    """`call`, or `function` where a level of forward-mode AD is entered."""

    def call_or_run(args: list[Any]) -> list[Any]:
        return list(function(*args)) if forward_mode_level() >= 0 else call(args)

    return call_or_run


def refuse_dual(gradients: Iterable[torch.Tensor | None]) -> None:
    """Raises UnsupportedByRefimpl where one of what arrives at a compiled backward has a tangent."""
    if forward_mode_level() >= 0 and any(
        g is not None and forward_ad.unpack_dual(g).tangent is not None for g in gradients
    ):
        raise UnsupportedByRefimpl(
            seen="a gradient with a tangent of forward-mode AD, which arrives at the backward of a compiled graph",
            supported="forward-mode AD of calls that are made within its level: they run without graphs",
            do="call the compiled function within the level",
        )
