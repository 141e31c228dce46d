"""The ladder of subjects from eager to kernels, and the place of a subject on it."""

from __future__ import annotations

from typing import Final

# The ladder from eager to kernels, as names of subjects without options ("inductor[mode=...]" is "inductor"). Repeated here,
# since `results` must not import oracle.subjects.
LADDER: Final = ("eager", "dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")

# Subjects with their own ladder: the exported program, and above it its transformations by these options.
EXPORTERS: Final = ("export", "refimpl.export")
STAGES: Final = ("decomposed", "through")


def rung_of(subject: str) -> int | None:
    """Position of a subject on its ladder; None for a subject that is on no ladder.

    On LADDER options are ignored. An exported program has 1, and one more for each transformation.
    """
    base, options = _parts(subject)
    if base in EXPORTERS:
        return 1 + sum(option.partition("=")[0] in STAGES for option in options)
    return LADDER.index(base) if base in LADDER else None


def ladder_of(subject: str) -> str:
    """The ladder of a subject: "" for LADDER; for an exported program, the subject without its transformations."""
    base, options = _parts(subject)
    if base not in EXPORTERS:
        return ""
    kept = sorted(option for option in options if option.partition("=")[0] not in STAGES)
    return f"{base}[{','.join(kept)}]" if kept else base


def _parts(subject: str) -> tuple[str, list[str]]:
    base, _, options = subject.partition("[")
    return base, [option.strip() for option in options.rstrip("]").split(",") if option.strip()]
