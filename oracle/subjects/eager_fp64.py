"""The subject `eager_fp64`: eager with every float widened to float64, and complex to complex128.

A compiler that is compared with it shows how much of a difference is eager's own rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec
from oracle.widen import Widened, widen_module, widen_tree


class EagerFp64:
    """Runs a widened copy of the target on widened inputs. Mutation of the caller's inputs does not show."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec

    def reset(self) -> None:
        """Nothing is kept between cases."""

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        target = request.target
        if isinstance(target, torch.nn.Module):
            widen_module(target)

        def run(*args: Any, **kwargs: Any) -> Any:
            wide_args, wide_kwargs = widen_tree((args, kwargs))
            with Widened():
                return target(*wide_args, **wide_kwargs)

        return run

    def counters(self) -> Counters:
        return Counters()
