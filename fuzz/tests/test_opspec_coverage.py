"""Compares the vocabulary with OpInfo, torch's own list: an operator has a reason if and only if it is not covered."""

from __future__ import annotations

from collections.abc import Iterator

from torch.testing._internal.common_methods_invocations import op_db

from fuzz.tests.uncovered import UNCOVERED
from fuzz.vocabulary.operators import OPERATORS

# OpInfo's own names for operators that are Python syntax.
_SYNTAX = {
    "__getitem__": "getitem(slices)",
    "__radd__": "operator.add(reflected)",
    "__rdiv__": "operator.truediv(reflected)",
    "__rmul__": "operator.mul(reflected)",
    "__rand__": "operator.and_(reflected)",
    "__ror__": "operator.or_",
    "__rxor__": "operator.xor",
    "__rmatmul__": "operator.matmul",
    "__rmod__": "operator.mod(reflected)",
    "__rpow__": "operator.pow(reflected)",
    "__rsub__": "operator.sub(reflected)",
    "T": "getattr(T)",
    "H": "getattr(H)",
    "mT": "getattr(mT)",
    "mH": "getattr(mH)",
}


def _covered() -> set[str]:
    """Names that OpInfo may have for what is specified."""
    return {name for specified in OPERATORS for name in _names(specified.split("(")[0])} | set(_SYNTAX)


def _names(target: str) -> Iterator[str]:
    for prefix in ("torch.ops.aten.", "torch.", "operator.", "."):
        if target.startswith(prefix):
            name = target[len(prefix) :]
            yield name
            yield name.removesuffix("_")  # OpInfo lists an operator once, with its in-place form
            if prefix == "torch.ops.aten.":
                yield name.split(".")[0]
                yield f"{target}.default"


def test_every_name_of_opinfo_is_covered_or_has_a_reason() -> None:
    missing = {info.name for info in op_db} - _covered() - set(UNCOVERED)
    assert missing == set()


def test_no_reason_is_given_for_what_is_covered() -> None:
    assert set(UNCOVERED) & _covered() == set()
    assert all(UNCOVERED.values())


def test_the_names_of_syntax_are_specified() -> None:
    assert set(_SYNTAX.values()) <= set(OPERATORS)


def test_most_of_opinfo_is_covered() -> None:
    names = {info.name for info in op_db}
    assert len(names & _covered()) > 0.9 * len(names)
