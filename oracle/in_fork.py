"""The first steps of a forked process: it must not use thread pools of its parent, since threads do not survive a fork."""

from __future__ import annotations

import os
import sys

import torch

_INDUCTOR = "torch._inductor.config"


def settle_in_fork() -> None:
    """Use one thread for operators, and none of the parent's for Inductor's compiles and for prints: it would wait for ever."""
    torch.set_num_threads(1)
    # A terminal's status line belongs to a thread of the parent, which may hold the line's lock for ever.
    for name in ("stdout", "stderr"):
        setattr(sys, name, getattr(getattr(sys, name), "rich_proxied_file", getattr(sys, name)))
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # for an Inductor that is imported later
    if _INDUCTOR in sys.modules:
        setattr(sys.modules[_INDUCTOR], "compile_threads", 1)
