"""What a compiler does once in a process (imports, registrations, probes, precompiled headers), done before a case is timed.

The first program of a process would be charged for it otherwise: seconds, and ten times that on a busy machine.
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

_OF_THE_USER = ("backend", "compiler")  # kinds whose code is given by path
_WITHOUT_COMPILER = ("eager", "eager_fp64")


def load_warm(spec: SubjectSpec, *, device: str = "cpu") -> Subject:
    """The subject, imported, with what it needs warmed up in this process. Raises what `oracle.subjects.registry.load` does."""
    subject = load(spec)
    if spec.kind in _OF_THE_USER:
        # Their code runs on the user's programs only: what it does to the process must show there. Dynamo and AOTAutograd
        # are torch's, and most of what such a subject waits for.
        _warm_up("aot_eager", device)
    elif spec.kind not in _WITHOUT_COMPILER:
        _compile_and_run(subject, device)
    return subject


@functools.cache
def _warm_up(name: str, device: str) -> None:
    _compile_and_run(load(resolve(name)), device)


def _compile_and_run(subject: Subject, device: str) -> None:
    """One small program, forward and backward. Whatever comes of it: the cases will show it."""
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
    """With torch's caches of graphs on, a process would load what another one made, and do nothing of what it is to have done."""
    if subject.spec.kind != "torch_compile":
        yield
        return
    inductor_config: Any = importlib.import_module("torch._inductor.config")
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def _program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.softmax(x @ x.t(), dim=-1)).sum()
