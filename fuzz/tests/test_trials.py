"""Trials run in a forked process, which shares nothing with its parent that needs a thread."""

from __future__ import annotations

import time

import torch
from torch._inductor import config as inductor_config

from fuzz.reduce.trials import TrialProcess
from oracle.program import Call, Program
from oracle.subjects.registry import resolve
from oracle.verdict import Status


def test_inductor_does_not_wait_for_the_threads_of_the_parent() -> None:
    new = time.time_ns() % 10**9  # in each run another number, so that no kernel is in the cache
    source = f"import torch\n\ndef program(x):\n    return x.sin() + {new}.0\n"
    call = Call(args=[{"$": "tensor", "shape": [8], "dtype": "float32"}])
    with inductor_config.patch(compile_threads=2), TrialProcess(timeout_s=20.0) as trials:
        torch.compile(lambda x: x.cos() - float(new))(torch.ones(8))  # leaves an idle thread in a pool
        verdict = trials.judge_source(Program(name="case", source=source, calls=(call,)), resolve("inductor"))
    assert verdict.status is Status.PASS
