"""Records refimpl's graphs, guards, kernels and verdicts for a fixed corpus of programs, and compares two recordings.

`make steady` shows what a refactoring changes. Only workers import torch: they trace, and the parent stores and compares.

A recording has, for each program and subject, the verdict of the judge and texts by kind: graphs with the metadata of every
tensor, guards, kernels, exported programs. Refusals are verdicts. Text that differs between two runs of the same code (addresses,
counters of instances) is normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_KERNELS = "triton"  # capture, AOT autograd and the code generator: captured graphs, guards, decomposed graphs, kernels
_PARTITIONED = "refimpl.partitioned"  # AOT autograd without capture and decompositions
_SYMBOLIC = "refimpl.make_fx[mode=symbolic]"
_EXPORTS = ("refimpl.export", "refimpl.export[strict=false]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Programs of one suite on subjects. `dtypes` and `directions` are like the options of `sweep`; empty: the suite's
    defaults.
    """

    suite: str
    subjects: tuple[str, ...]
    tags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    max_samples: int | None = None


CORPUS: tuple[Part, ...] = (
    Part(suite="features", subjects=(_KERNELS, _PARTITIONED, *_EXPORTS)),
    Part(suite="regressions", subjects=(_KERNELS, _PARTITIONED, *_EXPORTS)),
    Part(suite="exports", subjects=_EXPORTS),
    Part(suite="models", subjects=(_PARTITIONED,), directions=("forward", "backward")),
    Part(
        suite="opinfo", subjects=(_KERNELS, _SYMBOLIC), tags=("sample",), dtypes=("float32",), directions=("backward",),
        max_samples=2,
    ),
    Part(
        suite="opinfo", subjects=(_KERNELS, _SYMBOLIC), tags=("sample",), dtypes=("bfloat16", "complex64", "int64", "bool"),
        directions=("forward",), max_samples=2,
    ),
)  # fmt: skip
DRAWN_SUBJECTS = (_KERNELS, _PARTITIONED)
DRAWN = 4000  # number of programs drawn by the fuzzer, with this seed
DRAWN_OF_ALL = 2000  # the first ones have the focus "all", the others the focus "views"
DRAWN_SEED = 27

Texts = Mapping[str, str]  # kind -> text
