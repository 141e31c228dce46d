"""Find from Python where a function or module goes wrong: `localise` is `check` for a program that is known to differ.

>>> import torch, oracle
>>> found = oracle.localise(lambda x: torch.sin(x) + 1, torch.randn(8), subject="aot_eager")
>>> found.shown  # of 3 runs, none differs from eager
0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracle.checking import check_options, check_target, chosen_subjects, live_program
from oracle.localisation.report import Localisation
from oracle.localisation.search import RUNS, localise_program


def localise(
    fn: Callable[..., Any],
    *inputs: Any,
    subject: str | Callable[..., Any] = "inductor",
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    dynamic: bool | None = None,
    calls: int = 3,
    seed: int = 0,
    runs: int = RUNS,
    progress: Callable[[str], None] = lambda stage: None,
) -> Localisation:
    """Find where `fn(*inputs, **kwargs)` goes wrong on a subject: the first wrong rung, and the part of it to blame.

    The arguments are those of `oracle.check`, with one subject. `runs` is how often the subject is tried before the difference
    is taken to be gone. `progress` is called with each stage as it begins. `print(found.text())` shows the result. Each question
    is asked in a forked process, and arguments on a GPU are not supported.

    Raises UsageError as `check` does.
    """
    check_options(kwargs=kwargs, backward=backward, dynamic=dynamic, calls=calls, seed=seed, timeout_s=1)
    named = dict(kwargs or {})
    check_target(fn, inputs, named)
    live = live_program(fn, inputs, named, backward=backward, dynamic=dynamic, calls=calls, seed=seed)
    (loaded,) = chosen_subjects([subject], device="cpu")
    name = getattr(fn, "__name__", type(fn).__name__)
    return localise_program(live.instantiate, loaded.spec, name=name, given=[loaded], runs=runs, progress=progress)
