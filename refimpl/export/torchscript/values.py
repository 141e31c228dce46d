"""Values of a TorchScript graph that Python has no type for, and the numbers by which it names dtypes.

Counterpart: torch/_export/converter.py kind_to_standard_operators, get_dtype_as_int
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES

# The numbers of c10::ScalarType, c10::Layout and c10::MemoryFormat, which are part of the format of saved scripts. Torch defines
# its dtypes in the order of their numbers.
DTYPES: tuple[torch.dtype, ...] = tuple(
    dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype))
)
LAYOUTS: tuple[torch.layout, ...] = (torch.strided, torch.sparse_coo, torch.sparse_csr)
MEMORY_FORMATS: tuple[torch.memory_format, ...] = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)
ENUMERATIONS: dict[str, tuple[Any, ...]] = {
    "ScalarType": DTYPES,
    "Layout": LAYOUTS,
    "MemoryFormat": MEMORY_FORMATS,
}
NUMBERS = (int, float, bool, complex, *SYMBOLIC_TYPES)


@dataclass(frozen=True, slots=True)
class ModulePath:
    """A submodule, by its full name."""

    path: str

    def joined(self, name: str) -> str:
        """The full name of an attribute."""
        return f"{self.path}.{name}" if self.path else name


@dataclass(frozen=True, slots=True)
class TruthOfTensor:
    """`bool(tensor)`, which is read only where a branch cannot depend on the tensor itself."""

    tensor: torch.Tensor

    def __bool__(self) -> bool:
        return bool(self.tensor)


def plain(value: Any) -> Any:
    """What is computed with: the truth of a tensor is read."""
    return bool(value) if isinstance(value, TruthOfTensor) else value


def contains_tensor(value: Any) -> bool:
    """Whether it is one, or has one among its elements."""
    if isinstance(value, (list, tuple)):
        return any(map(contains_tensor, value))
    return isinstance(value, torch.Tensor)
