"""Warm a compiler up (imports, registrations, probes, precompiled headers) before the first case of a process is timed.

Otherwise the first program would be charged for it: seconds, and ten times that on a busy machine.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from oracle.hygiene import differences, restore, snapshot
from oracle.subjects.base import CompileRequest, Subject
from oracle.subjects.registry import load, resolve
from oracle.subjects.spec import SubjectSpec

_OF_THE_USER = ("backend", "compiler")  # kinds whose code the user gives by path
_WITHOUT_COMPILER = ("eager", "eager_fp64")


def load_warm(spec: SubjectSpec, *, device: str = "cpu") -> Subject:
    """Load the subject and warm up the compilers that it uses. Raises the errors of `oracle.subjects.registry.load`."""
    subject = load(spec)
    if spec.kind in _OF_THE_USER:
        # The user's code runs on the programs only, so that its effects on the process are observed there. Dynamo and AOTAutograd
        # take most of its start-up time.
        _warm_up("aot_eager", device)
    elif spec.kind not in _WITHOUT_COMPILER:
        _compile_and_run(subject, device)
    return subject


@functools.cache
def _warm_up(name: str, device: str) -> None:
    _compile_and_run(load(resolve(name)), device)


def _compile_and_run(subject: Subject, device: str) -> None:
    """Compile and run a small program with its backward. Errors are ignored here, since the cases will show them."""
    before = snapshot()
    with contextlib.suppress(Exception), _without_caches(subject):
        subject.reset()
        x = torch.arange(16.0, device=device).reshape(4, 4).requires_grad_()
        compiled = subject.compile(CompileRequest(target=_program, args=(x,), backward=True))
        compiled(x).backward()
    subject.reset()
    if differences(before, snapshot()):
        restore(before)


@contextlib.contextmanager
def _without_caches(subject: Subject) -> Iterator[None]:
    """Turn off torch's graph caches: loading a cached graph would warm up nothing."""
    if subject.spec.kind != "torch_compile":
        yield
        return
    inductor_config: Any = importlib.import_module("torch._inductor.config")
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def _program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.softmax(x @ x.t(), dim=-1)).sum()
