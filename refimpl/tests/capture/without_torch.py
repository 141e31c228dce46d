"""Runs the interpreter's programs in any Python: `pythonX.Y without_torch.py RANDOM_PROGRAMS` prints JSON. Needs no torch."""

from __future__ import annotations

import importlib
import json
import sys
import types
import warnings
from pathlib import Path


def main() -> None:
    """Compare all programs, and so many random ones."""
    package = types.ModuleType("refimpl")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]  # without refimpl/__init__.py, which needs torch
    sys.modules["refimpl"] = package
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # generators that refuse to close
    agreement = importlib.import_module("refimpl.tests.capture.interpreter_agreement")
    chosen = [*agreement.programs(), *agreement.random_programs(0, int(sys.argv[1]))]
    differences = [agreement.difference(program, mode) for program in chosen for mode in agreement.MODES]
    report = {
        "version": list(sys.version_info[:2]),
        "compared": len(differences),
        "differences": [difference for difference in differences if difference is not None],
        "torch": "torch" in sys.modules,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
