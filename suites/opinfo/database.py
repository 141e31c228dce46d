"""Database: torch's operator entries by full name. The only module that imports `torch.testing._internal`.

Counterpart: torch/testing/_internal/common_methods_invocations.py op_db
Differs: importing it leaves the process as it was (upstream freezes torch.backends.* for good).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from oracle.errors import UsageError

# Importing torch's test helpers makes assignments to torch.backends.* raise in the whole process. A subject may need to set these
# flags, so the switch is saved before the import and restored after it.
_BACKENDS_MUTABLE = "__allow_nonbracketed_mutation_flag"
_backends_globals = torch.backends.disable_global_flags.__globals__  # torch.backends itself wraps its module
_was_mutable = _backends_globals[_BACKENDS_MUTABLE]

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo.core import OpInfo, SampleInput  # noqa: E402

_backends_globals[_BACKENDS_MUTABLE] = _was_mutable

__all__ = ["CUDA_ONLY", "ENTRIES", "OpInfo", "SampleInput", "dtypes_of", "entry", "runs_on"]

ENTRIES: Mapping[str, OpInfo] = MappingProxyType({info.full_name: info for info in op_db})

# Entries that declare CPU dtypes but have no CPU implementation; upstream skips them by a test decorator.
CUDA_ONLY: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            "jiterator_unary",
            "jiterator_binary",
            "jiterator_4inputs_with_extra_args",
            "jiterator_binary_return_by_ref",
            "jiterator_2inputs_2outputs",
        ),
        "torch.cuda.jiterator compiles CUDA source and takes CUDA tensors only",
    )
)


def entry(name: str) -> OpInfo:
    """The entry of this full name ("add", "linalg.svd", "std_mean.unbiased"); UsageError if there is none."""
    found = ENTRIES.get(name)
    if found is None:
        raise UsageError(
            seen=f"operator {name!r}",
            expected=f"one of the {len(ENTRIES)} entries of op_db in torch {torch.__version__}",
            do="see `torch-oracle list opinfo`; a program from another torch version may name an entry this one lacks",
        )
    return found


def runs_on(info: OpInfo, device: torch.device) -> bool:
    """False for entries that have no implementation on the device, whatever dtypes they declare."""
    return device.type == "cuda" or info.full_name not in CUDA_ONLY


def dtypes_of(info: OpInfo, device: torch.device, direction: str) -> frozenset[torch.dtype]:
    """The dtypes the entry promises on the device, for "forward" or "backward"."""
    if direction == "backward":
        return frozenset(info.supported_backward_dtypes(device.type) or ())
    return frozenset(info.supported_dtypes(device.type))
