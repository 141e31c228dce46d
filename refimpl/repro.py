"""Runs the scripts that are written for graphs on which a backend fails (capture/repro/scripts.py).

Counterpart: torch/_dynamo/repro/after_dynamo.py run_repro, repro_run, repro_minify
Differs: one file holds inputs and constants. Flags: `--accuracy`, `--no-accuracy`, `--backend`, `--only-fwd`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from refimpl.capture.compile import optimize
from refimpl.capture.config import config
from refimpl.capture.repro.accuracy import AccuracyError, run_fwd_maybe_bwd, same_two_models
from refimpl.capture.repro.minifying import dynamo_accuracy_minifier_backend, dynamo_minifier_backend


def run_repro(
    file: str,
    classes: Mapping[str, type[torch.nn.Module]],
    *,
    command: str = "run",
    accuracy: str = "",
    backend: str | None = None,
    autocast: Mapping[str, str] | None = None,
    is_grad_enabled: bool = True,
    arguments: Sequence[str] | None = None,
) -> None:
    """Runs the graph in eager and with the backend, or makes it smaller; the command line has the last word.

    file: the script; its tensors are in the file beside it. classes: the graphs by their paths, the whole one under "".
    autocast: the dtype for each device for which autocast is on. arguments: a command line in place of the process's.
    Raises what the backend raises, AccuracyError for other values than in eager, RuntimeError for `minify` without a backend's
    name.
    """
    options = _parser(command, accuracy, backend).parse_args(sys.argv[1:] if arguments is None else arguments)
    module, inputs = _loaded(Path(file).with_suffix(".pt"), classes)
    with config.patch(repro_after=None), _modes(autocast or {}, is_grad_enabled):
        (_minify if options.command == "minify" else _run)(module, inputs, options)


def _parser(command: str, accuracy: str, backend: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs a graph that a backend fails on, or makes it smaller.")
    parser.add_argument("command", nargs="?", choices=("run", "minify"), default=command)
    parser.add_argument("--accuracy", action="store_const", const="accuracy", default=accuracy, help="compare values")
    parser.add_argument("--no-accuracy", dest="accuracy", action="store_const", const="", help="look for errors only")
    parser.add_argument("--backend", default=backend, help="the name of a backend")
    parser.add_argument("--only-fwd", action="store_true", default=config.repro_forward_only, help="without gradients")
    return parser


def _loaded(path: Path, classes: Mapping[str, type[torch.nn.Module]]) -> tuple[torch.nn.Module, list[Any]]:
    """The module of the whole graph, with its attributes, and the inputs."""
    held = torch.load(path, weights_only=True)  # the file may come from anywhere
    root = classes[""]()
    parts = {where: made() for where, made in classes.items() if where}
    for where, value in [*parts.items(), *held["attributes"].items()]:
        *parents, name = where.split(".")
        holder = functools.reduce(_child, parents, root)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            holder.register_buffer(name, value)
        else:
            setattr(holder, name, value)
    return root, held["inputs"]


def _child(module: torch.nn.Module, name: str) -> torch.nn.Module:
    """The module's child of this name. It is made if there is none: a graph reads `linear.weight` without the module."""
    if not hasattr(module, name):
        module.add_module(name, torch.nn.Module())
    return getattr(module, name)


@contextlib.contextmanager
def _modes(autocast: Mapping[str, str], is_grad_enabled: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(is_grad_enabled))
        for device, dtype in autocast.items():
            stack.enter_context(torch.autocast(device, dtype=getattr(torch, dtype)))
        yield


def _minify(module: torch.nn.Module, inputs: list[Any], options: argparse.Namespace) -> None:
    if options.backend is None:
        raise RuntimeError(
            "the backend has no name, because the program gave a function\n"
            "  what to do: import it in this script, register it (refimpl.register_backend), and give its name as `backend`"
        )
    minify = dynamo_accuracy_minifier_backend if options.accuracy else dynamo_minifier_backend
    optimize(functools.partial(minify, compiler_name=options.backend))(module)(*inputs)


def _run(module: torch.nn.Module, inputs: list[Any], options: argparse.Namespace) -> None:
    compiled = optimize(options.backend or "eager")(module)
    if options.accuracy:
        module.eval()
        assert same_two_models(module, module, inputs), "Eager itself failed"
        ignores = config.repro_ignore_non_fp
        if not same_two_models(module, compiled, inputs, only_fwd=options.only_fwd, ignore_non_fp=ignores):
            raise AccuracyError(f"the backend {options.backend!r} computes other values than eager")
        return
    for each in (module, compiled):
        run_fwd_maybe_bwd(each, inputs, only_fwd=options.only_fwd)
