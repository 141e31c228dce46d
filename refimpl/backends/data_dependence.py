"""What a backend says of a graph whose course depends on data, so that torch.compile runs the graph without it.

Counterpart: torch/_dynamo/exc.py exceptions_allowed_to_be_fallback
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from refimpl._torch import upstream_shape_error
from refimpl.errors import DataDependentFakeRead


@contextlib.contextmanager
def left_to_the_front_end() -> Iterator[None]:
    """A guard on a number that only data gives is DataDependentFakeRead, for which front ends have a way on."""
    try:
        yield
    except upstream_shape_error("GuardOnDataDependentSymNode") as error:
        raise DataDependentFakeRead(f"a guard on {getattr(error, 'cond', None) or error}") from error
