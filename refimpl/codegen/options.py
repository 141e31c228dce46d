"""What a caller chooses about compiled graphs. But for random numbers, results are the same within rounding.

Counterpart: torch/_inductor/config.py
Differs: frozen, and given to each compilation; there are no global settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from refimpl.errors import BadParameter

Contractions = Literal["template", "extern", "measured"]
Random = Literal["eager", "philox"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodegenOptions:
    """Of one compilation. Raises BadParameter for a value that a field does not have."""

    contractions: Contractions = "measured"
    """Matrix products and convolutions as kernels of our own ("template"), by calls of the operators' own ("extern"), or by
    whichever suits the device and the size ("measured")."""
    deterministic: bool = False
    """No sums whose order differs from run to run. So it is too while torch.use_deterministic_algorithms is on."""

    fuse_attention: bool = True
    """Attention that a graph holds in pieces becomes kernels without scores in memory."""

    reuse_buffers: bool = True
    """Results take the memory of what is needed no more, or are written over what their kernel reads."""

    autotune: bool = False
    """Kernels are launched with the fastest of their configurations, which is measured on a GPU at the first launch for sizes of
    a kind, and kept on disk."""

    cuda_graphs: bool = False
    """Graphs on a GPU are recorded after some calls, and replayed: inputs that move are copied in, outputs are copied out. Graphs
    with sizes or operators that cannot be recorded run as they are: `CompiledGraph.unrecorded` says why."""

    random: Random = "eager"
    """Random numbers of the operators' own kernels, which are eager's, or computed in kernels ("philox"): the same distributions,
    other numbers."""

    strict: bool = False
    """An operator without a rule is an error that names it and the line of the program, and is not called."""

    def __post_init__(self) -> None:
        for name, choices in (("contractions", get_args(Contractions)), ("random", get_args(Random))):
            value = getattr(self, name)
            if value not in choices:
                raise BadParameter(seen=f"{name}={value!r}", expected=f"one of {', '.join(choices)}")
        for name in ("deterministic", "fuse_attention", "reuse_buffers", "autotune", "cuda_graphs", "strict"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise BadParameter(seen=f"{name}={value!r}", expected="True or False")


def codegen_options(given: CodegenOptions | Mapping[str, Any] | None) -> CodegenOptions:
    """From what backends are given: fields by name, as `torch.compile(..., options=)` has them. Raises BadParameter for names
    that are no fields."""
    if given is None or isinstance(given, CodegenOptions):
        return given or CodegenOptions()
    names = [field.name for field in fields(CodegenOptions)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise BadParameter(seen=f"options {', '.join(unknown)}", expected=f"options among {', '.join(names)}")
    return CodegenOptions(**given)
