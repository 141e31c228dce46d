"""Options of the code generator. Except for `random`, they change results only by rounding.

Counterpart: torch/_inductor/config.py
Differs: frozen, and passed to each compilation; there are no global settings.
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
    """Options of one compilation. Raises BadParameter for a value that an option does not have."""

    contractions: Contractions = "measured"
    """Lower matrix products and convolutions to template kernels ("template"), to calls of the operators ("extern"), or to what
    suits the device and the size ("measured")."""
    deterministic: bool = False
    """Avoid sums whose order differs from run to run. Implied by torch.use_deterministic_algorithms."""

    fuse_attention: bool = True
    """Fuse attention that the graph computes in several operators into kernels that keep the scores out of memory."""

    reuse_buffers: bool = True
    """Let results take the memory of dead buffers, or overwrite an input that their kernel reads."""

    autotune: bool = False
    """Launch kernels with the fastest of their configurations, measured on a GPU at the first launch for sizes of a kind, and
    cached on disk."""

    cuda_graphs: bool = False
    """Record graphs on a GPU after some calls and replay them: inputs whose address changes are copied in, outputs are copied
    out. Graphs that cannot be recorded run as they are; `CompiledGraph.unrecorded` says why."""

    random: Random = "eager"
    """Draw random numbers with the operators' own kernels, as eager does ("eager"), or inside of kernels ("philox"): same
    distribution, other numbers."""

    strict: bool = False
    """Raise an error that names an operator without a lowering, and its source line, instead of calling it."""

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
    """Options from those of a backend, by name as in `torch.compile(..., options=)`. Raises BadParameter for names that are no
    fields."""
    if given is None or isinstance(given, CodegenOptions):
        return given or CodegenOptions()
    names = [field.name for field in fields(CodegenOptions)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise BadParameter(seen=f"options {', '.join(unknown)}", expected=f"options among {', '.join(names)}")
    return CodegenOptions(**given)
