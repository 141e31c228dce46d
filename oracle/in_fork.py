"""The first steps of a forked process: it must not use thread pools of its parent, since threads do not survive a fork."""

from __future__ import annotations

import os
import sys

import torch

_INDUCTOR = "torch._inductor.config"


def settle_in_fork() -> None:
    """Use one thread for operators, and none besides for Inductor's compiles: it would wait for the parent's for ever."""
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # for an Inductor that is imported later
    if _INDUCTOR in sys.modules:
        setattr(sys.modules[_INDUCTOR], "compile_threads", 1)
