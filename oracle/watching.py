"""Watch a model while it trains: one call in N is judged against eager, and the training is not changed by it.

    with oracle.watch(model, every=100, subject="inductor") as watching:
        for batch in loader:
            loss = model(batch).sum()
            ...
    print(watching.summary())

A sampled call is judged in a forked child (`oracle.background`), so training waits only for the fork. There is one child at a
time: a call that is to be sampled while one runs is skipped, and counted.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch._dynamo import OptimizedModule
from torch._subclasses.fake_tensor import FakeTensor

from oracle.background import CallToJudge, ForkedJudgement, Judgement, OwnCode, judged_here
from oracle.checking import DisagreementError, GivenSubject, chosen_subjects
from oracle.errors import UsageError
from oracle.hygiene import rng_digest
from oracle.observe.flatten import flatten
from oracle.subjects.base import Subject
from oracle.verdict import Status, Verdict, describe

_LOG = logging.getLogger(__name__)
_AGREES = (Status.PASS, Status.KNOWN, Status.XPASS)
_SHOWN_ERRORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A call on which the subject differs from eager."""

    call: int  # its number among the calls of the watched model, from 0
    subject: str
    verdict: Verdict
    saved: Path | None = None  # the folder that `oracle.saved_call.load_call` reads

    def __str__(self) -> str:
        where = f"\n  saved in {self.saved}" if self.saved is not None else ""
        return f"call {self.call}: {describe(self.subject, self.verdict)}{where}"


def watch(
    model: Callable[..., Any],
    *,
    every: int = 100,
    subject: GivenSubject | None = "inductor",
    save_to: str | Path | None = None,
    on_difference: str = "report",
    timeout_s: float = 300.0,
    isolate: bool = True,
) -> Watching:
    """Judge calls 0, `every`, 2 * `every` ... of `model` by `subject`, from `with` until its end.

    `model` is an nn.Module, compiled or not, or a function. Calls of a module are seen wherever they are made; for a function,
    call the Watching object in its place. `subject` is one subject as `oracle.check` takes it; it compiles a copy of the original
    model. With None it is the compiled code that the model has, which needs no compile. Gradients are compared if the call is in
    grad mode, something requires grad, and the module is in training mode.

    The first difference is logged, and with `save_to` saved there. `on_difference="raise"` raises DisagreementError once it is
    known, which is at a later call or at the end; nothing else is ever raised into the loop. The end of the `with` block waits
    for the last child; an exception in the block ends it at once. `timeout_s` is the limit of each child, in seconds.

    With `isolate=False`, once CUDA is in use, where a process cannot fork, and with `subject=None` if torch uses several threads,
    the call is judged in this process before it is made: training then waits for the compile and the runs, and the subject's code
    joins Dynamo's compiled code of the same function. State, generators and gradients are kept all the same.

    Raises UsageError for an option of a wrong type, for an unknown subject, and for None if torch.compile did not make `model`.
    """
    rules = (
        ("model", callable(model) and not isinstance(model, type), "an nn.Module or a function", "pass the model itself"),
        ("every", isinstance(every, int) and not isinstance(every, bool) and every >= 1, "an integer, at least 1",
         "leave it out for 100"),
        ("on_difference", on_difference in ("report", "raise"), "'report' or 'raise'", "leave it out for 'report'"),
        ("timeout_s", isinstance(timeout_s, (int, float)) and timeout_s > 0, "seconds, more than 0",
         "leave it out for 300"),
    )  # fmt: skip
    given = {"model": model, "every": every, "on_difference": on_difference, "timeout_s": timeout_s}
    for name, is_right, expected, do in rules:
        if not is_right:
            raise UsageError(seen=f"{name}={given[name]!r:.80}", expected=expected, do=do)
    tensors = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    if subject is None:
        chosen: Subject = OwnCode(_compiled_like(model))
    else:
        (chosen,) = chosen_subjects([subject], device="cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu")
    return Watching(
        model, every=every, subject=chosen, save_to=None if save_to is None else Path(save_to),
        is_raised=on_difference == "raise", timeout_s=timeout_s, forks=isolate and _can_fork(subject),
    )  # fmt: skip


def _can_fork(subject: GivenSubject | None) -> bool:
    """Whether calls can be judged in a fork, which has one thread.

    Dynamo guards the number of threads: the model's own compiled code would not be used in a fork of a process with several.
    """
    return hasattr(os, "fork") and (subject is not None or torch.get_num_threads() == 1)


class Watching:
    """A watched model: counts, verdicts and differences so far. Calling it calls the model."""

    def __init__(
        self, model: Callable[..., Any], *, every: int, subject: Subject, save_to: Path | None, is_raised: bool,
        timeout_s: float, forks: bool,
    ) -> None:  # fmt: skip
        self.calls = 0
        """Calls of the model seen so far."""
        self.skipped = 0
        """Calls that were to be sampled while an earlier one was being judged."""
        self.verdicts: Counter[Status] = Counter()
        self.differences: list[Difference] = []
        self.errors: list[str] = []
        """Why calls were not judged."""
        self.delay_s = 0.0
        """Time by which the watched calls were delayed, in all."""
        self._model, self._target = model, _original(model)
        self._every, self._subject, self._save_to = every, subject, save_to
        self._is_raised, self._timeout_s, self._forks = is_raised, timeout_s, forks
        self._attached: Callable[[], None] | None = None  # detaches
        self._running: ForkedJudgement | None = None
        self._is_judging = False
        self._process = os.getpid()

    def __enter__(self) -> Watching:
        self._process = os.getpid()
        if isinstance(self._model, torch.nn.Module):
            self._attached = _attach(self._model, self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._detach()
        if self._running is not None:
            if kind is None:
                self._guarded(self._collect, is_last=True)
            else:
                self._running.stop()
                self._running = None
        if kind is None:
            self._raise()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._model, torch.nn.Module):
            self._before(args, kwargs)
        return self._model(*args, **kwargs)

    def summary(self) -> str:
        """The counts, the first difference and the first errors, as text."""
        agree = sum(self.verdicts[status] for status in _AGREES)
        undecided = {
            status.value: count
            for status, count in self.verdicts.items()
            if status not in _AGREES and not status.is_finding
        }
        name = type(self._target).__name__ if isinstance(self._target, torch.nn.Module) else _name(self._target)
        parts = [f"{agree} agree", f"{len(self.differences)} differ"]
        parts += [f"{count} {status}" for status, count in undecided.items()]
        parts += [f"{len(self.errors)} not judged"] if self.errors else []
        parts += [f"{self.skipped} skipped while another was judged"] if self.skipped else []
        lines = [f"{name} watched with {self._subject.spec.name}: {self.calls} calls, one in {self._every} sampled"]
        lines.append(f"  {', '.join(parts)}; delayed by {self.delay_s:.3f} s in all")
        if not self.calls:
            lines.append("  no call was seen: if a compiled function calls the model, watch that function")
        lines += [f"first difference, {self.differences[0]}"] if self.differences else []
        lines += [f"not judged, {text}" for text in self.errors[:_SHOWN_ERRORS]]
        return "\n".join(lines)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See a call before it is made."""
        if torch.compiler.is_compiling() or self._is_judging or os.getpid() != self._process:
            return
        began = time.perf_counter()
        self._guarded(self._see, args, kwargs)
        self.delay_s += time.perf_counter() - began
        self._raise()

    def _guarded(self, step: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            step(*args, **kwargs)
        except Exception as error:  # the user's loop must go on, whatever happens in watching it
            self._note_error(self.calls - 1, f"{type(error).__name__}: {error}")

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number = self.calls
        self.calls += 1
        if self._running is not None:
            self._collect()
        if number % self._every:
            return
        if self._running is not None:
            self.skipped += 1
            return
        self._judge(number, args, kwargs)

    def _judge(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [leaf.value for leaf in flatten((args, kwargs), "")[0] if isinstance(leaf.value, torch.Tensor)]
        if any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors):
            self._note_error(number, "an argument is a fake tensor or on the meta device: there are no values")
            return
        target, is_training = self._target, True
        if isinstance(target, torch.nn.Module):
            tensors += [*target.parameters(), *target.buffers()]
            is_training = target.training
        call = CallToJudge(
            number=number, target=target, args=args, kwargs=kwargs, seed=zlib.crc32(rng_digest().encode()),
            backward=is_training and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
        )  # fmt: skip
        save_to = self._save_to if not self.differences else None
        if self._forks and not torch.cuda.is_initialized():
            self._running = ForkedJudgement(call, self._subject, save_to=save_to, timeout_s=self._timeout_s)
            return
        self._detach()  # the copy that is judged must not have the hook
        self._is_judging = True
        try:
            self._note(judged_here(call, self._subject, save_to))
        finally:
            self._is_judging = False
            if isinstance(self._model, torch.nn.Module):
                self._attached = _attach(self._model, self._before)

    def _collect(self, *, is_last: bool = False) -> None:
        """Note the child's result if it has one, or wait for it."""
        assert self._running is not None
        found = self._running.result() if is_last else self._running.poll()
        if found is not None:
            self._running = None
            self._note(found)

    def _note(self, found: Judgement) -> None:
        if found.refused:
            self._forks = False  # from the next sampled call on
        elif found.verdict is None:
            self._note_error(found.number, found.error)
        else:
            self.verdicts[found.verdict.status] += 1
            if found.unsaved:
                self._note_error(found.number, f"judged, but not saved: {found.unsaved}")
            if found.verdict.status.is_finding:
                self._note_difference(found, found.verdict)

    def _note_difference(self, found: Judgement, verdict: Verdict) -> None:
        saved = Path(found.saved) if found.saved else None
        self.differences.append(
            Difference(call=found.number, subject=self._subject.spec.name, verdict=verdict, saved=saved)
        )
        if len(self.differences) == 1:
            _LOG.warning("%s", self.differences[0])

    def _note_error(self, number: int, text: str) -> None:
        self.errors.append(f"call {number}: {text}")

    def _raise(self) -> None:
        if self._is_raised and self.differences:
            self._is_raised = False  # once: a loop that catches it goes on
            raise DisagreementError(
                f"call {self.differences[0].call}: {self._subject.spec.name}", self.differences[0].verdict
            )

    def _detach(self) -> None:
        if self._attached is not None:
            self._attached()
            self._attached = None


def _original(model: Callable[..., Any]) -> Callable[..., Any]:
    """The target in eager: the module or function that torch.compile was given."""
    if isinstance(model, OptimizedModule):
        return model._orig_mod
    return getattr(model, "_torchdynamo_orig_callable", model) if not isinstance(model, torch.nn.Module) else model


def _compiled_like(model: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that compiles copies of the original model as `model` is. Raises UsageError if torch.compile did not make it."""
    if isinstance(model, OptimizedModule):
        return lambda target: OptimizedModule(target, model.dynamo_ctx)  # pyright: ignore
    if not isinstance(model, torch.nn.Module) and hasattr(model, "_torchdynamo_orig_callable"):
        return lambda target: model  # a function is not copied
    raise UsageError(
        seen=f"subject=None for a model of type {type(model).__name__}", expected="what torch.compile(...) returned",
        do="name a subject, or watch the compiled model",
    )  # fmt: skip


def _attach(model: torch.nn.Module, see: Callable[..., None]) -> Callable[[], None]:
    """Call `see(args, kwargs)` before each call of the module, outside of compiled code. Returns a function that undoes this."""
    compiled = model._compiled_call_impl
    if compiled is None or isinstance(model, OptimizedModule):
        # An OptimizedModule has hooks of its own, which Dynamo neither compiles nor guards.
        handle = model.register_forward_pre_hook(_Hook(see), prepend=True, with_kwargs=True)
        return handle.remove

    def watched(*args: Any, **kwargs: Any) -> Any:
        see(args, kwargs)
        return compiled(*args, **kwargs)

    model._compiled_call_impl = watched

    def undo() -> None:
        model._compiled_call_impl = compiled

    return undo


@dataclass(frozen=True, slots=True)
class _Hook:
    """A forward pre-hook that changes nothing."""

    see: Callable[..., None]

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.see(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model, deep-copied or pickled, is not watched."""
        return _Hook, (_see_nothing,)


def _see_nothing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    pass


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
