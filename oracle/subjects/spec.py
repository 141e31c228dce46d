"""SubjectSpec: the description of a subject that plans and workers exchange as JSON. Does not import torch.

A worker finds the subject's code by `kind` (oracle.subjects.registry).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSpec:
    """One subject with its options.

    `rng`: which random numbers it promises to draw: "eager" (the same as eager) or "own" (from the same distribution).
    """

    name: str  # as typed by the user and used in records: "inductor", "inductor[mode=max-autotune]"
    kind: str  # key of the registry: "eager", "torch_compile", "make_fx", "export", "jit_trace", "import_path", ...
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)  # set before torch is imported, in separate workers
    rng: str = "eager"
    # torch configuration with which a subject of rng "own" draws eager's numbers, to compare its values as well
    eager_stream: Mapping[str, Any] = field(default_factory=dict)
    rung: int | None = None  # position on the ladder from eager to kernels; None for subjects beside the ladder
    requires: tuple[str, ...] = ()  # "g++", "triton", "cuda": checked before the run
    path: str = ""  # "module:attribute" for subjects given by the user
    guards: bool = True  # promises to notice changes of state that the program reads besides its inputs; traces do not
    double_backward: bool = False  # promises a double backward, so that refusing one is a finding
    ranges: bool = False  # uses a program's `sizes` and refuses calls outside of them, as an exported program does

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SubjectSpec:
        return cls(**{**data, "requires": tuple(data.get("requires", ()))})
