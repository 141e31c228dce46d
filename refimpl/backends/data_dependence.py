"""The error that a backend raises for data-dependent control flow, after which torch.compile runs the graph without the backend.

Counterpart: torch/_dynamo/exc.py exceptions_allowed_to_be_fallback
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from refimpl._torch import upstream_shape_error
from refimpl.errors import DataDependentFakeRead


@contextlib.contextmanager
def left_to_the_front_end() -> Iterator[None]:
    """Turn the error of a guard on an unbacked symbol into DataDependentFakeRead, which torch.compile catches."""
    try:
        yield
    except upstream_shape_error("GuardOnDataDependentSymNode") as error:
        raise DataDependentFakeRead(f"a guard on {getattr(error, 'cond', None) or error}") from error
