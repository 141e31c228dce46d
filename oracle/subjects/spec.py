"""SubjectSpec: the description of a subject, torch-free, so that plans and workers exchange it as JSON.

A subject's code lives in one small file beside this one and is looked up by `kind` in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSpec:
    """One subject with its options.

    `rng` says which random numbers it promises: "eager" (the same stream as eager) or "own" (the same distribution).
    """

    name: str  # what the user typed, and what stands in records: "inductor", "inductor[mode=max-autotune]"
    kind: str  # key of the registry: "eager", "torch_compile", "make_fx", "export", "jit_trace", "import_path", ...
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)  # set before torch is imported, in workers of its own
    rng: str = "eager"
    # torch configuration under which a subject of rng "own" draws eager's numbers: then values are compared as well
    eager_stream: Mapping[str, Any] = field(default_factory=dict)
    rung: int | None = None  # position on the ladder from eager to kernels; None for subjects beside the ladder
    requires: tuple[str, ...] = ()  # "g++", "triton", "cuda": checked before the run
    path: str = ""  # "module:attribute" for subjects given by the user
    guards: bool = (
        True  # notices when something the program reads besides its inputs has changed; traces do not promise it
    )
    double_backward: bool = False  # promises gradients of gradients: refusing them by name is a finding too
    ranges: bool = False  # takes a program's `sizes`, and refuses others at calls: an exported program

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SubjectSpec:
        return cls(**{**data, "requires": tuple(data.get("requires", ()))})
