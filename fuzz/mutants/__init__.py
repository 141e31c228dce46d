"""Mutants: backends and compilers with one planted bug each, which measure how many bugs a campaign finds.

Each is a subject by import path, `fuzz.mutants.values:add_ignores_alpha` or `compile:fuzz.mutants.guards:attribute_is_kept`, with
a trigger (a program on which it is wrong, and how) and a control (a similar program on which it is right). They differ in the
stage that is wrong, in the symptom, and in how rarely it shows. `python -m benchmarks.measurements.fuzz_mutants` measures the
fraction found.
"""

from __future__ import annotations

from fuzz.mutants.failures import FAILURES
from fuzz.mutants.gradients import GRADIENTS
from fuzz.mutants.guards import GUARDS
from fuzz.mutants.layouts import LAYOUTS
from fuzz.mutants.mutant import Mutant
from fuzz.mutants.values import VALUES

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: dict[str, Mutant] = {m.name: m for m in (*VALUES, *LAYOUTS, *GRADIENTS, *GUARDS, *FAILURES)}
