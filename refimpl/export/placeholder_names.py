"""Names of placeholders: arguments of forward by their names, parameters, buffers and constants with a prefix.

Counterpart: torch/_export/utils.py placeholder_naming_pass, placeholder_prefixes
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from refimpl.export.graph_signature import InputKind

PREFIXES = {
    InputKind.USER_INPUT: "",
    InputKind.PARAMETER: "p_",
    InputKind.BUFFER: "b_",
    InputKind.CONSTANT_TENSOR: "c_",
    InputKind.CUSTOM_OBJ: "obj_",
    InputKind.TOKEN: "token",
}


def name_of_state(kind: InputKind, target: str) -> str:
    """`p_lin_weight` for the parameter `lin.weight`."""
    return PREFIXES[kind] + re.sub(r"[^a-zA-Z0-9]", "_", target).lower()


def name_of_input(words: Iterable[str]) -> str:
    """`d_k_0` for the first entry under the key `k` of the argument `d`."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", "_".join(words).lower())
    return name if name.isidentifier() else f"_{name}"


class TakenNames:
    """The names in use. Mutable."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """The name, with a number appended if it is in use."""
        candidate, number = name, 0
        while candidate in self._taken:
            number += 1
            candidate = f"{name}_{number}"
        self._taken.add(candidate)
        return candidate
