"""Structured forms of a program that was not drawn: what the reducer can take apart of a user's function or module.

The ways are tried in order: the source itself, if it is one function; then each graph that Dynamo captures of it, with large
tensors drawn again, with all values kept, and with sizes as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fuzz.program.structure import FuzzProgram
from fuzz.reduce.capture import captured
from fuzz.reduce.from_source import NotStructuredError, from_source
from oracle.errors import UsageError
from oracle.program import Program
from oracle.program.build import ProgramLoadError, instantiate

SOURCE, CAPTURED = "source", "captured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to a structured form."""

    how: str  # SOURCE or CAPTURED
    is_exact: bool = False  # all values are kept; otherwise large tensors are drawn from a similar distribution
    dynamic: bool = False  # capture with sizes of inputs as inputs, which makes one graph of calls with several sizes


WAYS = (
    Way(how=SOURCE),
    Way(how=SOURCE, is_exact=True),
    Way(how=CAPTURED),
    Way(how=CAPTURED, is_exact=True),
    Way(how=CAPTURED, dynamic=True),
)


def forms(program: Program, way: Way) -> Iterator[FuzzProgram | str]:
    """The forms of a program on one way, and reasons why there are not more. Runs the program."""
    try:
        if way.how == SOURCE:
            yield from_source(instantiate(program), is_exact=way.is_exact)
        else:
            yield from captured(partial(instantiate, program), dynamic=way.dynamic, is_exact=way.is_exact)
    except (NotStructuredError, ProgramLoadError, UsageError) as error:
        yield str(error)
    except Exception as error:  # the program's code and Dynamo run here
        yield f"{way.how} raises {type(error).__name__}: {error}"


def structured(program: Program, shows: Callable[[FuzzProgram], bool]) -> FuzzProgram | None:
    """The first structured form for which `shows` is true; None if there is none."""
    for way in WAYS:
        for form in forms(program, way):
            if not isinstance(form, str) and shows(form):
                return form
    return None
