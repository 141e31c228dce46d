"""Judges the calls that one test makes, and keeps a row for each target and subject."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch
from torch._dynamo import OptimizedModule

import oracle
from fuzz.campaign import warming
from fuzz.campaign.settings import is_inductor
from oracle.background import CallToJudge, ForkedJudgement, Judgement, judged_here, saved_if_differs
from oracle.checking import DisagreementError, check_target, chosen_subjects
from oracle.errors import UsageError
from oracle.observe.flatten import flatten
from oracle.subjects.base import Subject
from oracle.verdict import Compared, Status, Verdict
from suites.pytest_plugin.targets import Call, Watched, find_target, name_of

_AGREES: Final = (Status.PASS, Status.KNOWN, Status.XPASS)
_COMPILERS: Final = ("torch_compile", "backend", "compiler", "export")  # kinds of subjects


@dataclass(slots=True, kw_only=True)
class Row:
    """The calls that a test made of one target, judged on one subject. Mutable: calls are added."""

    test: str  # pytest's node id
    target: str
    subject: str
    dtype: str = ""  # of the first float tensor
    direction: str = "forward"
    device: str = "cpu"
    verdicts: list[Verdict] = field(default_factory=list)
    wall_s: float = 0.0
    left_out: int = 0  # calls beyond the limit
    started_at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="milliseconds"))
    repro: str = ""

    def verdict(self) -> Verdict:
        """The verdict on all calls: the first finding, else agreement, else why none was compared. Counts are summed."""
        first = next((each for each in self.verdicts if each.status.is_finding), None)
        agrees = next((each for each in self.verdicts if each.status in _AGREES), None)
        return replace(
            first or agrees or self.verdicts[0], compared=sum((v.compared for v in self.verdicts), Compared())
        )

    def to_json(self) -> dict[str, Any]:
        data = {**asdict(self), "verdict": self.verdict().to_json(), "calls": len(self.verdicts)}
        del data["verdicts"]
        return data


class TestJudge:
    """Judges calls of one test. Mutable."""

    __test__ = False  # it is no test, whatever pytest thinks of its name

    def __init__(
        self, test: str, subjects: Any, *, calls: int, timeout_s: float, save_to: Path | None, repro: str
    ) -> None:
        """`subjects` are as `oracle.check` takes them. Raises UsageError for what is none."""
        self._test, self._given, self._repro = test, subjects, repro
        self._subjects = load_subjects(subjects)
        self._limit, self._timeout_s, self._save_to = calls, timeout_s, save_to
        self._place = (os.getpid(), threading.get_ident())
        self._calls: Counter[str] = Counter()  # of each target
        self._is_inside = False  # of a call that was seen: the calls that it makes are part of it
        self._rows: dict[tuple[str, str], Row] = {}
        self.difference: DisagreementError | None = None
        """The first one. The test may have caught it."""

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def watching(self, targets: Sequence[Any], arguments: dict[str, Any]) -> AbstractContextManager[None]:
        """While the context is open, calls of the targets are judged before they are made. `arguments` are the test's.

        The call raises DisagreementError if a subject differs. The calls that a judged call makes are part of it.
        Raises UsageError for what is no target.
        """
        return self._watching([find_target(target) for target in targets], arguments)

    @contextmanager
    def _watching(self, targets: Sequence[Any], arguments: dict[str, Any]) -> Iterator[None]:

        def see(call: Call) -> Any:
            __tracebackhide__ = True
            if self._is_inside or (os.getpid(), threading.get_ident()) != self._place:
                return call.make()
            self._is_inside = True
            try:
                if _is_for_compilers(call):
                    self._see(call, watched)
                return call.make()
            finally:
                self._is_inside = False

        watched = Watched(targets, see, arguments=arguments)
        watched.begin()
        try:
            yield
        finally:
            watched.end()

    def _see(self, call: Call, watched: Watched) -> None:
        __tracebackhide__ = True
        # After a difference every call is judged: Hypothesis makes calls again, to find the smallest that differs.
        self._calls[call.of] += 1
        is_left_out = self._calls[call.of] > self._limit and self.difference is None
        differs: DisagreementError | None = None
        for subject in self._subjects:
            row = self._row(call.of, subject.spec.name, call.target, call.args, call.kwargs)
            if is_left_out:
                row.left_out += 1
                continue
            began = time.perf_counter()
            with watched.paused():
                verdict = self._judged(call, subject)
            row.wall_s += time.perf_counter() - began
            row.verdicts.append(verdict)
            if verdict.status.is_finding and differs is None:
                differs = DisagreementError(f"{call.of} on {subject.spec.name}", verdict)
        if differs is not None:
            self.difference = self.difference or differs
            raise differs

    def _judged(self, call: Call, subject: Subject) -> Verdict:
        try:
            check_target(call.target, call.args, call.kwargs)
        except UsageError as error:  # for example, arguments without values; the call itself shows what eager refuses
            return Verdict(status=Status.PASS_DUE_TO_SKIP, symptom=f"not compared: {error.seen}")
        tensors = _tensors(call.target, call.args, call.kwargs)
        to_judge = CallToJudge(
            number=0, target=call.target, args=call.args, kwargs=call.kwargs, seed=zlib.crc32(self._test.encode()),
            backward=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
        )  # fmt: skip
        save_to = self._save_to if self.difference is None else None
        if torch.cuda.is_initialized() or not hasattr(os, "fork"):
            return verdict_of(judged_here(to_judge, subject, save_to))
        found = ForkedJudgement(to_judge, subject, save_to=save_to, timeout_s=self._timeout_s).result()
        return verdict_of(judged_here(to_judge, subject, save_to) if found.refused else found)

    def check(self, fn: Callable[..., Any], *inputs: Any, subjects: Any = None, **options: Any) -> dict[str, Verdict]:
        """`oracle.check`, with a row for each subject. Raises DisagreementError unless all agree; comparing nothing is none."""
        __tracebackhide__ = True
        began = time.perf_counter()
        chosen = self._given if subjects is None else subjects
        verdicts = oracle.check(fn, *inputs, subjects=chosen, **{"timeout_s": self._timeout_s, **options})
        for subject, verdict in verdicts.items():
            row = self._row(name_of(fn), subject, fn, inputs, options.get("kwargs") or {})
            row.wall_s += (time.perf_counter() - began) / len(verdicts)
            row.verdicts.append(verdict)
        for subject, verdict in verdicts.items():
            if verdict.status not in _AGREES:
                if self.difference is None:
                    self._save(subject, verdict, fn, inputs, options)
                self.difference = DisagreementError(f"{name_of(fn)} on {subject}", verdict)
                raise self.difference
        return verdicts

    def _save(
        self, subject: str, verdict: Verdict, fn: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        backward = options.get("backward")
        call = CallToJudge(
            number=0, target=fn, args=inputs, kwargs=dict(options.get("kwargs") or {}), seed=options.get("seed", 0),
            backward=self._rows[name_of(fn), subject].direction == "backward" if backward is None else backward,
        )  # fmt: skip
        saved_if_differs(call, subject, verdict, self._save_to)

    def _row(self, target: str, subject: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row:
        row = self._rows.get((target, subject))
        if row is None:
            tensors = _tensors(fn, args, kwargs)
            floats = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
            is_backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
            row = self._rows[target, subject] = Row(
                test=self._test,
                target=target,
                subject=subject,
                dtype=str(floats[0].dtype).removeprefix("torch.") if floats else "",
                direction="backward" if is_backward else "forward",
                device=tensors[0].device.type if tensors else "cpu",
                repro=self._repro,
            )
        return row


def _is_for_compilers(call: Call) -> bool:
    """Whether the call computes with tensors, and eagerly: einops, for one, takes arrays of NumPy too."""
    is_compiled = isinstance(call.target, (OptimizedModule, torch.jit.ScriptModule))
    return not is_compiled and bool(_tensors(call.target, call.args, call.kwargs))


def _tensors(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    tensors = [leaf.value for leaf in flatten((args, kwargs), "")[0] if isinstance(leaf.value, torch.Tensor)]
    return tensors + (list(target.parameters()) if isinstance(target, torch.nn.Module) else [])


def verdict_of(found: Judgement) -> Verdict:
    """The verdict; where there is none, a row that says why nothing was compared."""
    if found.verdict is not None:
        return found.verdict
    if found.is_late:
        return Verdict(status=Status.TIMEOUT, symptom=found.error)
    return Verdict(status=Status.PASS_DUE_TO_SKIP, symptom=f"not compared: {found.error.splitlines()[0]}")


def load_subjects(given: Any) -> list[Subject]:
    """Subjects by name, path or backend, as `oracle.check` takes them. Raises UsageError."""
    return chosen_subjects(given, device="cuda" if torch.cuda.is_initialized() else "cpu")


def warm_up(subjects: Sequence[Subject]) -> None:
    """Load the compilers here and compile a small program, which each forked process would do again: 0.4 s a call, not 2.4."""
    if not hasattr(os, "fork"):
        return
    if any(is_inductor(subject.spec) for subject in subjects):
        warming.inductor()
    elif any(subject.spec.kind in _COMPILERS for subject in subjects):
        warming.aot_eager()
