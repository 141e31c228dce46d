"""The table of layouts: which roots a program has, and what its arguments are of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from suites.mutations.recipe import Argument, Root

_SHAPES = ((6,), (4, 4), (3, 4), (2, 3, 2), (4, 2), (5,), (1, 4), (2, 2))
# Arguments as expressions over one root of one or more dims; "{0}" is the root.
_ALONE = ("{0}",)
_SHARED: tuple[tuple[str, ...], ...] = (
    ("{0}", "{0}"),  # the same tensor twice
    ("{0}[:2]", "{0}[1:]"),
    ("{0}[:2]", "{0}[2:]"),
    ("{0}[::2]", "{0}[1::2]"),
    ("{0}", "{0}[1:]"),
    ("{0}[0]", "{0}"),
    ("{0}", "{0}.view(-1)"),
    ("{0}.view(-1)", "{0}"),
    ("{0}", "{0}.mT"),
    ("{0}.mT", "{0}[0]"),
    ("{0}[..., 0]", "{0}[..., 1]"),
    ("{0}.as_strided((2, 2), (1, 1))", "{0}"),
    ("{0}.as_strided((2, 2), (2, 1), 1)", "{0}.as_strided((3,), (1,), 0)"),
    ("{0}", "{0}.detach()"),
    ("{0}.detach()[1:]", "{0}"),
    ("{0}.view_as({0})", "{0}"),
    ("{0}[:2]", "{0}[:2]"),
    ("{0}", "{0}[1:]", "{0}[:1]"),
    ("{0}[0]", "{0}[1]", "{0}"),
    ("{0}.unsqueeze(0)", "{0}"),
    ("{0}.expand(2, *{0}.shape)", "{0}"),
)
_ONE_VIEW: tuple[tuple[str, ...], ...] = (
    ("{0}[1:]",),
    ("{0}.mT",),
    ("{0}[::2]",),
    ("{0}.as_strided((2, 2), (2, 1), 1)",),
    ("{0}.unsqueeze(0)",),
    ("{0}[..., 0]",),
    ("{0}.as_strided((2, 2), (1, 1))",),
)
_COMPLEX: tuple[tuple[str, ...], ...] = (
    ("{0}", "torch.view_as_real({0})"),
    ("{0}.real", "{0}"),
    ("{0}.real", "{0}.imag"),
    ("{0}", "{0}.conj()"),
)
_HISTORIES = {"none": 3, "leaf": 2, "result": 4}
_DTYPES = {"float32": 12, "float64": 2, "int64": 2, "complex64": 2, "bool": 1}


def _weighted(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _value(dtype: str, shape: Sequence[int]) -> str:
    """Small exact numbers, drawn anew in every call."""
    size = str(tuple(shape))
    drawn = f"torch.randint(-8, 9, {size})"
    match dtype:
        case "bool":
            return f"{drawn} > 0"
        case "int64":
            return drawn
        case "complex64":
            return f"torch.complex({drawn} / 4.0, {drawn} / 4.0)"
        case _:
            return f"{drawn}.to(torch.{dtype}) / 4"


def draw_layout(rng: random.Random, theme: str) -> tuple[tuple[Root, ...], tuple[Argument, ...]]:
    """One to three arguments over one or two roots."""
    roots: list[Root] = []
    arguments: list[str] = []
    is_shared = theme in ("aliased-inputs", "overlap") or rng.random() < 0.3
    for number in range(rng.choice((1, 1, 2))):
        shared = is_shared and number == 0
        weights = {**_DTYPES, "complex64": 10, "int64": 4} if theme == "dtypes" else _DTYPES
        dtype = _weighted(rng, weights) if number or theme in ("dtypes", "all") or rng.random() < 0.25 else "float32"
        history = _weighted(rng, _HISTORIES) if dtype not in ("int64", "bool") else "none"
        if theme == "saved" and dtype not in ("int64", "bool"):
            history = "result"
        roots.append(Root(name=f"root{number}", value=_value(dtype, rng.choice(_SHAPES)), history=history))
        if dtype == "complex64" and shared:
            chosen = rng.choice(_COMPLEX)
        elif shared:
            chosen = rng.choice(_SHARED)
        else:
            chosen = rng.choice(_ONE_VIEW) if rng.random() < 0.3 else _ALONE
        arguments += [text.format(f"root{number}") for text in chosen]
    if len(arguments) > 1 and rng.random() < 0.3:
        rng.shuffle(arguments)
    names = "abc"
    return tuple(roots), tuple(Argument(name=name, text=text) for name, text in zip(names, arguments[:3], strict=False))
