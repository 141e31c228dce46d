"""Errors of several types: each is listed in docs/errors.md with the callers that need it, and is raised where they meet it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode, UnsupportedOperatorException

import refimpl
from refimpl._torch import upstream_shape_error
from refimpl.errors import RefimplError
from refimpl.export.errors import translated

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
_BASES = (Exception, BaseException, object)


def _errors(of: type[BaseException] = RefimplError) -> Iterator[type[BaseException]]:
    for error in of.__subclasses__():
        if error.__module__.startswith("refimpl.") and ".tests" not in error.__module__:
            yield error
            yield from _errors(error)


def _types(error: type[BaseException]) -> set[str]:
    """The types outside refimpl that it is of, without those that follow from others."""
    found = [base for base in error.__mro__ if not base.__module__.startswith("refimpl") and base not in _BASES]
    own = [base for base in found if not any(base in other.__mro__[1:] for other in found)]
    return {base.__name__ if base.__module__ == "builtins" else f"{base.__module__}.{base.__name__}" for base in own}


def test_errors_of_several_types_are_listed_with_each_type() -> None:
    for module in pkgutil.walk_packages(refimpl.__path__, "refimpl."):
        if ".tests" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    translated(upstream_shape_error("ConstraintViolationError")("Received user-specified bounds"))  # makes a class
    several = {error.__name__: _types(error) for error in _errors() if len(_types(error)) > 1}
    listed: defaultdict[str, set[str]] = defaultdict(set)
    for name, types in re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE):
        listed[name] |= set(re.findall(r"`(.+?)`", types))
    # A type that follows from another one of the same error need not be listed, but may be.
    assert set(listed) == set(several)
    assert {name: types - listed[name] for name, types in several.items() if types - listed[name]} == {}


def _exported(x: Any) -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> torch.Tensor:
            return x["a"] + 1

    return refimpl.export.export(Model(), (x,))


def _dynamic_one(x: torch.Tensor) -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    return refimpl.export.export(Model(), (x,), dynamic_shapes=({0: refimpl.export.Dim.DYNAMIC},))


def _exported_sparse() -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

    return refimpl.export.export(Model(), (torch.ones(2),))


_X = {"a": torch.ones(3)}


@pytest.mark.parametrize(
    ("call", "types"),
    [
        pytest.param(
            lambda: refimpl.make_fx(torch.sin, tracing_mode="spam")(torch.ones(2)), (AssertionError,), id="tracing mode"
        ),
        pytest.param(lambda: refimpl.export.Dim("n", min=4, max=1), (ValueError,), id="bounds of a Dim"),
        pytest.param(lambda: refimpl.compile(torch.sin, backend="spam")(torch.ones(2)), (RuntimeError,), id="backend"),
        pytest.param(
            lambda: refimpl.compile_aot(torch.sin, backend="spam"), (AssertionError, ValueError), id="AOT backend"
        ),
        pytest.param(
            lambda: refimpl.make_fx(torch.nonzero, tracing_mode="fake")(FakeTensorMode().from_tensor(torch.ones(2))),
            (NotImplementedError, DynamicOutputShapeException),
            id="size from data",
        ),
        pytest.param(lambda: _dynamic_one(torch.ones(1)), (RuntimeError, ValueError), id="size of one"),
        pytest.param(_exported_sparse, (NotImplementedError, UnsupportedOperatorException), id="no fake kernel"),
        pytest.param(
            lambda: _exported(_X).module()({"a": torch.ones(4)}), (AssertionError, RuntimeError), id="another size"
        ),
        pytest.param(lambda: _exported(_X).module()([torch.ones(3)]), (ValueError,), id="another container"),
        pytest.param(
            lambda: refimpl.export.unflatten(_exported(_X))([torch.ones(3)]),
            (TypeError,),
            id="another container, unflattened",
        ),
    ],
)
def test_callers_meet_the_types_that_they_catch(
    call: Callable[[], Any], types: tuple[type[BaseException], ...]
) -> None:
    with pytest.raises(RefimplError) as raised:
        call()
    assert [kind for kind in types if not isinstance(raised.value, kind)] == []
