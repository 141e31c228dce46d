"""`set_stance`: what calls of captured functions do, whatever `compile` said.

Counterpart: torch/compiler/__init__.py set_stance; torch/_dynamo/eval_frame.py DynamoStance, _callback_from_stance
Differs: `skip_guard_eval_unsafe` skips no guard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refimpl.capture.public.marks import FORBIDDEN

NAMES = (
    "default", "eager_then_compile", "aot_eager_then_compile", "force_eager", "eager_on_recompile", "fail_on_recompile",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stance:
    """A name of `NAMES`, and for "default" a backend that takes the place of all others."""

    stance: str = "default"
    skip_guard_eval_unsafe: bool = False
    backend: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether calls do what `compile` said."""
        return self.stance == "default" and self.backend is None


class _Current:
    """The stance of the process; None where calls do what `compile` said."""

    stance: Stance | None = None


current = _Current()


def _set(stance: Stance | None) -> Stance | None:
    before, current.stance = current.stance, stance
    return before


class StanceContext:
    """What `set_stance` gives: a stance that is set, and that a `with` block or decorator takes back.

    Upstream has this class under the name `torch._dynamo.set_stance`.
    """

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        if force_backend is not None and stance != "default":
            raise RuntimeError(
                f"non-default stance cannot have force_backend set: stance={stance!r}\n  what to do: use stance='default'"
            )
        if stance not in NAMES:
            raise RuntimeError(f"invalid torch.compile stance {stance!r}\n  expected: one of {', '.join(NAMES)}")
        made = Stance(stance, skip_guard_eval_unsafe, force_backend)
        self.stance = None if made.is_plain else made
        self.prev = _set(self.stance)

    def __enter__(self) -> None:
        _set(self.stance)

    def __exit__(self, *error: object) -> None:
        _set(self.prev)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        _set(self.prev)
        stance = self.stance

        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            before = _set(stance)
            try:
                return function(*args, **kwargs)
            finally:
                _set(before)

        FORBIDDEN[id(within)] = within
        return within


def set_stance(
    stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: str | Callable[..., Any] | None = None
) -> StanceContext:  # fmt: skip
    """Sets the stance at once; as a `with` block or decorator, only within it. Captured code may not call it.

    Raises RuntimeError for an unknown name, and for a `force_backend` with a name other than "default".
    """
    return StanceContext(stance, skip_guard_eval_unsafe=skip_guard_eval_unsafe, force_backend=force_backend)


FORBIDDEN.update({id(name): name for name in (set_stance, StanceContext)})
