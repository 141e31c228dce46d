"""The child process that runs a launcher on one level. A wild pointer kills this process, not the command's.

It reads one request as JSON from standard input and writes lines of JSON to the file descriptor it is given.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from oracle.errors import UsageError
from oracle.kernels.checking import Checked, Finding, check_case
from oracle.kernels.input_specs import DrawnCase, Spec, build, default_inputs, draw, parse_inputs, simpler
from oracle.kernels.target import check_call, load_function, parameter_names
from oracle.subjects.refimpl_kernels import interpret_triton

LARGEST = {"emulator": 1 << 16, "interpreter": 1 << 12, "gpu": 1 << 20}  # elements of a tensor
SIMPLER_S = 5.0  # for one finding


def run(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> None:
    """All cases of a request: "started" and "done" lines, "finding" lines, and a "summary"."""
    level = request["level"]
    device = _prepare(level)
    launcher = load_function(request["launcher"], "FILE.py:LAUNCHER", emulated=level == "emulator")
    reference = load_function(request["reference"], "--reference", emulated=level == "emulator")
    make = _CaseMaker(request, launcher, reference, LARGEST[level])
    deadline = time.monotonic() + request["seconds"] if request["seconds"] else None
    tally = {"passed": 0, "skipped": 0, "refused": 0, "found": 0}
    reasons: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    launches = 0
    for number in request["cases"]:
        if deadline is not None and time.monotonic() > deadline:
            break
        case = make(number)
        tell({"started": number, "case": str(case)})
        checked = _check(launcher, reference, case, device)
        launches += checked.launches
        if checked.finding is not None:
            tally["found"] += 1
            key = (checked.finding.kind, checked.finding.where)
            if key not in seen:
                seen.add(key)
                small, finding = _simplest(launcher, reference, case, checked.finding, device, make.specs)
                tell({"finding": asdict(finding), "number": number, "case": str(small)})
        else:
            tally["skipped" if checked.skipped else "refused" if checked.refused else "passed"] += 1
            reason = checked.skipped or checked.refused
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
        tell({"done": number})
    if not launches and tally["passed"] + tally["found"]:
        raise UsageError(
            seen=f"{request['launcher']} returned and launched no kernel, in every case",
            expected="a function that calls kernel[grid](...)", do="name the function that launches the kernel",
        )  # fmt: skip
    tell({"summary": tally, "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])[:3])})


def _prepare(level: str) -> str:
    """Prepare this process for the level; returns the device of the tensors."""
    if level == "gpu":
        if not torch.cuda.is_available():
            raise UsageError(
                seen="--level gpu, and no CUDA device", expected="a GPU", do="use --level emulator or interpreter"
            )
        return "cuda"
    torch.set_num_threads(1)
    if level == "interpreter":
        interpret_triton()
    return "cpu"


class _CaseMaker:
    """Makes a case from its number. `specs`: descriptions of the arguments; empty if a function of the user makes them."""

    def __init__(
        self, request: Mapping[str, Any], launcher: Callable[..., Any], reference: Callable[..., Any], largest: int
    ) -> None:
        self.seed, self.largest = request["seed"], largest
        self.function: Callable[..., Any] | None = None
        self.specs: Sequence[Spec] = ()
        inputs = request["inputs"]
        if inputs and ".py:" in inputs and "[" not in inputs:
            self.function = load_function(inputs, "--inputs", emulated=request["level"] == "emulator")
            names: Sequence[str] = [f"argument {i}" for i in range(len(self._made(0)))]
        else:
            self.specs = parse_inputs(inputs) if inputs else default_inputs(parameter_names(launcher))
            names = [spec.name for spec in self.specs]
        check_call(launcher, "launcher", names)
        check_call(reference, "--reference", names)

    def _made(self, number: int) -> Sequence[Any]:
        assert self.function is not None
        try:
            made = self.function(random.Random(self.seed * 1_000_003 + number))
        except Exception as error:
            raise UsageError(
                seen=f"--inputs function raised {type(error).__name__}: {error}",
                expected="a function that takes a random.Random and returns the arguments", do="correct it",
            ) from error  # fmt: skip
        if not isinstance(made, (tuple, list)):
            raise UsageError(
                seen=f"--inputs function returned a {type(made).__name__}",
                expected="a tuple of arguments",
                do="correct it",
            )
        return made

    def __call__(self, number: int) -> DrawnCase | _MadeCase:
        if self.function is not None:
            return _MadeCase(self._made(number))
        return draw(self.specs, random.Random(self.seed * 1_000_003 + number), largest=self.largest)


class _MadeCase:
    """Arguments made by a function of the user."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.values = arguments

    def __str__(self) -> str:
        return "\n".join(f"  {_described(value)}" for value in self.values)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} stride {list(value.stride())}"
    return repr(value)


def _arguments(case: DrawnCase | _MadeCase) -> list[Any]:
    return list(case.values) if isinstance(case, _MadeCase) else [build(drawn) for drawn in case.arguments]


def _check(
    launcher: Callable[..., Any], reference: Callable[..., Any], case: DrawnCase | _MadeCase, device: str
) -> Checked:
    return check_case(launcher, reference, _arguments(case), device=device)


def _simplest(
    launcher: Callable[..., Any],
    reference: Callable[..., Any],
    case: DrawnCase | _MadeCase,
    finding: Finding,
    device: str,
    specs: Sequence[Spec],
) -> tuple[DrawnCase | _MadeCase, Finding]:
    """Simplify a case step by step while it shows the same finding."""
    deadline = time.monotonic() + SIMPLER_S
    going = isinstance(case, DrawnCase)
    while going and isinstance(case, DrawnCase):
        going = False
        for candidate in simpler(case, specs):
            if time.monotonic() > deadline:
                return case, finding
            found = _check(launcher, reference, candidate, device).finding
            if found is not None and (found.kind, found.where) == (finding.kind, finding.where):
                case, finding, going = candidate, found, True
                break
    return case, finding


def main() -> None:
    """The process: request on standard input, lines on the descriptor in argv."""
    request = json.loads(sys.stdin.read())
    with os.fdopen(int(sys.argv[1]), "w") as answers:

        def tell(line: Mapping[str, Any]) -> None:
            answers.write(json.dumps(line) + "\n")
            answers.flush()

        try:
            run(request, tell)
        except UsageError as error:
            tell({"usage": {"seen": error.seen, "expected": error.expected, "do": error.do}})


if __name__ == "__main__":
    main()
