"""The registry of subjects: resolves a name to a SubjectSpec, and loads the Subject in a worker. Does not import torch.

Only `load` imports a subject's code. A new subject is a file in this folder with a class of the protocol
`oracle.subjects.base.Subject` that takes its spec, and a row in `BUILT_IN`.
"""

from __future__ import annotations

import ctypes
import difflib
import importlib
import importlib.util
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from oracle.subjects.base import Subject
from oracle.subjects.naming import name_of_callable
from oracle.subjects.options import OptionSpec, check_options, split_names, split_options
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.subjects_file import SubjectEntry, read_subjects_file

__all__ = ["BUILT_IN", "BuiltIn", "check_requirements", "known", "load", "of_callable", "resolve", "split_names"]

_FLAG = OptionSpec(types=(bool,))
_FLAG_OR_NONE = OptionSpec(types=(bool, type(None)))
_ANY = OptionSpec()
_COMPILE = {"dynamic": _FLAG_OR_NONE, "fullgraph": _FLAG}
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """One row of the table of built-in subjects."""

    kind: str
    code: str  # "module:class", imported in the worker
    description: str
    options: Mapping[str, OptionSpec] = field(default_factory=dict)
    rng: str = "eager"
    eager_stream: Mapping[str, Any] = field(default_factory=dict)  # as in SubjectSpec
    rung: int | None = None
    requires: tuple[str, ...] = ()
    guards: bool = True
    ranges: bool = False


_COMPILED = "oracle.subjects.torch_compile:TorchCompile"
_FALLBACK_RANDOM = {"torch._inductor.config.fallback_random": True}  # calls eager's random operators
_CAPTURE = {"fullgraph": _FLAG, "dynamic": _FLAG_OR_NONE, "breaks": OptionSpec(choices=("needed", "first", "second"))}
_EXPORT = {
    "strict": _FLAG,
    "dynamic": _FLAG_OR_NONE,
    "decomposed": OptionSpec(choices=("no", "functional", "all")),
}
# Options of subjects with kernels: where the kernels run, compute capabilities for which they are also compiled, which random
# numbers they draw, and whether attention written as single operators is fused.
_KERNELS = {
    "level": OptionSpec(choices=("emulator", "interpreter", "device")),
    "cubin": OptionSpec(choices=(80, 86, 89, 90, 100), several=True),
    "random": OptionSpec(choices=("eager", "philox")),
    "fuse_attention": _FLAG,
}
_INTERPRET = "TRITON_INTERPRET"
_REFIMPL_AOT = "oracle.subjects.refimpl:RefimplAot"
_REFIMPL_CODEGEN = "oracle.subjects.refimpl:RefimplCodegen"
BUILT_IN: dict[str, BuiltIn] = {
    "eager": BuiltIn(
        kind="eager",
        code="oracle.subjects.eager:Eager",
        options={"process": OptionSpec(choices=("same", "second"))},
        rung=0,
        description="the program as it is: eager judged against itself, in the same process or in a second one",
    ),
    "eager_fp64": BuiltIn(
        kind="eager_fp64",
        code="oracle.subjects.eager_fp64:EagerFp64",
        rng="own",  # drawing float64 uses other bits of the generator
        description="eager computed in float64, results in the program's dtypes",
    ),
    "dynamo": BuiltIn(
        kind="torch_compile",
        code=_COMPILED,
        options=_COMPILE,
        rung=1,
        description='torch.compile(backend="eager"): capture only',
    ),
    "aot_eager": BuiltIn(
        kind="torch_compile",
        code=_COMPILED,
        options=_COMPILE,
        rung=2,
        description="capture and AOTAutograd, no decompositions",
    ),
    "aot_eager_decomp_partition": BuiltIn(
        kind="torch_compile",
        code=_COMPILED,
        options=_COMPILE,
        rng="own",  # decompositions draw by rand, eager's kernels by bernoulli
        eager_stream=_FALLBACK_RANDOM,
        rung=3,
        description="capture, AOTAutograd, inductor's decompositions, min-cut partitioner",
    ),
    "inductor": BuiltIn(
        kind="torch_compile",
        code=_COMPILED,
        options={**_COMPILE, "mode": OptionSpec(choices=_MODES), "options.*": _ANY},
        rng="own",
        eager_stream=_FALLBACK_RANDOM,
        rung=4,
        requires=("g++",),
        description="torch.compile as it comes: fused kernels",
    ),
    "make_fx": BuiltIn(
        kind="make_fx",
        guards=False,
        code="oracle.subjects.make_fx:MakeFx",
        options={"mode": OptionSpec(choices=("real", "fake", "symbolic"))},
        description="torch's proxy tracing to an aten graph, then the graph",
    ),
    "export": BuiltIn(
        kind="export",
        guards=False,
        code="oracle.subjects.export:Export",
        options={**_EXPORT, "through": OptionSpec(choices=("saved", "retraced", "unflattened"))},
        ranges=True,
        description="torch.export.export (strict unless said otherwise), then its module(), or that of what it is put through",
    ),
    "jit_trace": BuiltIn(
        guards=False,
        kind="jit_trace",
        code="oracle.subjects.jit_trace:JitTrace",
        description="torch.jit.trace, then its graph",
    ),
    "refimpl.make_fx": BuiltIn(
        kind="refimpl.make_fx",
        guards=False,
        code="oracle.subjects.refimpl:RefimplMakeFx",
        options={"mode": OptionSpec(choices=("real", "fake", "symbolic"))},
        description="the reference implementation's proxy tracing, then the graph",
    ),
    "refimpl.functionalized": BuiltIn(
        kind="refimpl.functionalized",
        guards=False,
        code="oracle.subjects.refimpl:RefimplFunctionalized",
        description="the reference implementation's forward graph without mutation, differentiated by autograd",
    ),
    "refimpl.joint": BuiltIn(
        kind="refimpl.joint",
        guards=False,
        code=_REFIMPL_AOT,
        options={"dynamic": _FLAG},
        description="the reference implementation's joint graph, functional, run as forward and backward without a partitioner",
    ),
    "refimpl.partitioned": BuiltIn(
        kind="refimpl.partitioned",
        guards=False,
        code=_REFIMPL_AOT,
        options={"dynamic": _FLAG},
        description="the same, split by the reference implementation's min-cut partitioner",
    ),
    "refimpl.aot": BuiltIn(
        kind="refimpl.aot",
        guards=False,
        code=_REFIMPL_AOT,
        options={"dynamic": _FLAG},
        description="the same, split by need: refimpl.compile_aot as it comes",
    ),
    "refimpl.decomposed": BuiltIn(
        kind="refimpl.decomposed",
        guards=False,
        code=_REFIMPL_CODEGEN,
        options={"dynamic": _FLAG},
        description="the graphs that the Triton code generator is given, run as they are",
    ),
    "refimpl.triton": BuiltIn(
        kind="refimpl.triton",
        guards=False,
        code=_REFIMPL_CODEGEN,
        options={"dynamic": _FLAG, "strict": _FLAG, **_KERNELS},
        description="the same as Triton kernels, emulated for tensors on the CPU; no capture before it",
    ),
    "triton": BuiltIn(
        kind="triton",
        code="oracle.subjects.refimpl:RefimplCapture",
        options={**_CAPTURE, "strict": _FLAG, **_KERNELS},
        description="the reference implementation's whole road: capture, AOT autograd, Triton kernels, emulated on the CPU",
    ),
    "refimpl.capture": BuiltIn(
        kind="refimpl.capture",
        code="oracle.subjects.refimpl:RefimplCapture",
        options={**_CAPTURE, "backend": OptionSpec(types=(str,))},
        description="the reference implementation's capture; graphs run as they are",
    ),
    "refimpl.full": BuiltIn(
        kind="refimpl.full",
        code="oracle.subjects.refimpl:RefimplCapture",
        options=_CAPTURE,
        description="the reference implementation's capture, AOT autograd behind it, aten graphs run as they are",
    ),
    "refimpl.export": BuiltIn(
        kind="refimpl.export",
        guards=False,
        code="oracle.subjects.refimpl:RefimplExport",
        options={**_EXPORT, "through": OptionSpec(choices=("saved", "retraced", "unflattened", "torch"))},
        ranges=True,
        description="the reference implementation's export (strict unless said otherwise), then its module(), or that of what it "
        "is put through",
    ),
}
_GIVEN_BY_USER = {
    "backend": BuiltIn(
        kind="backend",
        code="oracle.subjects.import_path:GivenBackend",
        options={**_COMPILE, "mode": OptionSpec(types=(str,)), "options.*": _ANY},
        description="torch.compile with the backend module:function",
    ),
    "compiler": BuiltIn(
        kind="compiler",
        code="oracle.subjects.import_path:GivenCompiler",
        options={"*": _ANY},
        description="the whole compiler compile:module:function, f(fn, *, dynamic=None) -> compiled",
    ),
}


def resolve(name: str, *, subjects_file: Path | None = None) -> SubjectSpec:
    """The spec of a name of the table, of the subjects file or of an installed backend, `module:function`, or
    `compile:module:function`.

    Each may have options in brackets. Raises UsageError for an unknown name (with similar ones), a malformed path, an unknown
    option or an invalid value.
    """
    entries = read_subjects_file(subjects_file) if subjects_file is not None else {}
    _check_entry_names(entries, subjects_file)
    base, options = split_options(name.strip())
    if base in entries:
        return _from_entry(name.strip(), entries[base], options)
    if base in BUILT_IN:
        return _spec(name.strip(), BUILT_IN[base], options, base=base)
    if ":" in base:
        return _from_path(name.strip(), base, options)
    installed = _installed_backends()
    if base in installed:
        return _from_path(name.strip(), installed[base], options)
    names = [*BUILT_IN, *entries, *installed]
    near = difflib.get_close_matches(base, names, n=3, cutoff=0.5)
    raise UsageError(
        seen=f"subject {name!r}",
        expected=f"one of {', '.join(names)}; or module:function (a torch.compile backend); or compile:module:function",
        do=f"did you mean {' or '.join(near)}?" if near else "choose one of these",
    )


def _installed_backends() -> dict[str, str]:
    """The import paths of the backends that installed packages register for torch.compile by an entry point, by their names."""
    found = metadata.entry_points(group="torch_dynamo_backends")
    return {
        point.name: f"{point.module}:{point.attr}" for point in found if point.attr and "torch_oracle" not in point.name
    }


def known(*, subjects_file: Path | None = None) -> list[tuple[SubjectSpec, str]]:
    """Every named subject with its description, options included, in the order of the table and the file."""
    listed = [(_spec(name, row, {}, base=name), row.description + _options_text(row)) for name, row in BUILT_IN.items()]
    entries = read_subjects_file(subjects_file) if subjects_file is not None else {}
    _check_entry_names(entries, subjects_file)
    for name, entry in entries.items():
        listed.append((_from_entry(name, entry, {}), f"{entry.path or entry.kind}, from {subjects_file}"))
    for name, path in _installed_backends().items():
        if name not in BUILT_IN and name not in entries:
            listed.append((_from_path(name, path, {}), f"{path}, a backend that an installed package registers"))
    return listed


def check_requirements(spec: SubjectSpec, *, device: str = "cpu") -> None:
    """Raises UsageError if this machine lacks something that the subject needs on that device."""
    requires = set(spec.requires)
    _check_level(spec, device)
    if device.startswith("cuda"):
        requires.add("cuda")
        if spec.kind == "torch_compile" and spec.rung == BUILT_IN["inductor"].rung:
            requires.add("triton")
    for requirement in sorted(requires):
        match requirement:
            case "g++":
                _check_compiler(spec)
            case "triton":
                _check_triton(spec)
            case "cuda":
                _check_cuda(spec)
            case _:
                raise UsageError(
                    seen=f"requirement {requirement!r} of subject {spec.name!r}",
                    expected="g++, triton or cuda",
                    do="use the torch-oracle version that wrote it",
                )


def load(spec: SubjectSpec) -> Subject:
    """Import the subject's code and make the subject. Called in a worker.

    Raises UsageError if a path given by the user does not import or is not callable, or if torch refuses an option.
    """
    rows = {row.kind: row for row in (*BUILT_IN.values(), *_GIVEN_BY_USER.values())}
    if spec.kind not in rows:
        raise UsageError(
            seen=f"subject {spec.name!r} of kind {spec.kind!r}",
            expected=f"one of {', '.join(rows)}",
            do="use the torch-oracle version that wrote it",
        )
    module_name, _, class_name = rows[spec.kind].code.partition(":")
    return getattr(importlib.import_module(module_name), class_name)(spec)


def of_callable(function: Callable[..., Any], *, name: str = "") -> Subject:
    """The subject of a Dynamo backend `f(gm, example_inputs)` in this process. Its spec has no path.

    `name` is the key of its results; "" stands for `module.qualname`. Raises UsageError for a function of other arguments.
    """
    spec = SubjectSpec(name=name or name_of_callable(function), kind="backend")
    return importlib.import_module("oracle.subjects.import_path").GivenBackend(spec, function)


def _options_text(row: BuiltIn) -> str:
    described = ", ".join(f"{key}={option.describe().replace(', ', '|')}" for key, option in row.options.items())
    return f" [{described}]" if described else ""


def _spec(name: str, row: BuiltIn, options: Mapping[str, Any], *, base: str, **more: Any) -> SubjectSpec:
    check_options(name, options, row.options)
    if "mode" in options and any(key.startswith("options.") for key in options):
        raise UsageError(
            seen=f"both mode and options.* for subject {name!r}",
            expected="one of the two: torch.compile takes either",
            do="write the mode's settings as options.*",
        )
    options = dict(options)
    rng = row.rng
    if "level" in options or "cubin" in options:
        more["requires"] = tuple(sorted({*row.requires, *_requirements_of_level(options)}))
    if options.get("level") == "interpreter":  # Triton reads the variable when it is imported
        more["env"] = {_INTERPRET: "1"}
    if row.kind == "torch_compile":
        options["backend"] = "eager" if base == "dynamo" else base
        if options.get("options.fallback_random") is True:  # inductor then calls eager's random operators
            rng = "eager"
    if options.get("random") == "philox":
        rng = "own"
    return SubjectSpec(
        name=name,
        kind=row.kind,
        options=options,
        eager_stream=row.eager_stream if rng == "own" else {},
        **{"rng": rng, "rung": row.rung, "requires": row.requires, "guards": row.guards, "ranges": row.ranges, **more},
    )


def _from_path(name: str, path: str, options: Mapping[str, Any]) -> SubjectSpec:
    row = _GIVEN_BY_USER["backend"]
    if path.startswith("compile:"):
        row, path = _GIVEN_BY_USER["compiler"], path.removeprefix("compile:")
    module_name, _, attribute = path.partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        is_file = "/" in module_name or module_name.endswith(".py")
        stem = Path(module_name).name.removesuffix(".py")
        raise UsageError(
            seen=f"subject {name!r}",
            expected="module:function or compile:module:function, importable from the current directory or PYTHONPATH",
            do=f"write {stem}:{attribute or 'function'}, with the folder of {stem}.py on PYTHONPATH"
            if is_file and stem.isidentifier()
            else "write for example mypackage.backend:compile_graph",
        )
    # A user's backend or compiler must draw eager's random numbers, unless the subjects file says otherwise.
    return _spec(name, row, options, base=path, path=path)


def _from_entry(name: str, entry: SubjectEntry, more_options: Mapping[str, Any]) -> SubjectSpec:
    options = {**entry.options, **more_options}
    if entry.path:
        path = f"compile:{entry.path}" if entry.kind == "compiler" else entry.path
        spec = _from_path(name, path, {})
        check_options(name, options, _GIVEN_BY_USER[spec.kind].options)
        spec = replace(spec, options=options)
    else:
        spec = _spec(name, BUILT_IN[entry.kind], options, base=entry.kind)
    rng = entry.rng or spec.rng
    eager_stream = {**spec.eager_stream, **entry.eager_stream} if rng == "own" else {}
    more = {"rng": rng, "eager_stream": eager_stream, "double_backward": entry.double_backward}
    return replace(spec, env={**spec.env, **entry.env}, **more)


def _check_entry_names(entries: Mapping[str, SubjectEntry], subjects_file: Path | None) -> None:
    for name, entry in entries.items():
        if name in BUILT_IN:
            raise UsageError(
                seen=f"[subjects.{name}] in {subjects_file}",
                expected="a name of your own",
                do=f"rename it: {name!r} is built in",
            )
        if not entry.path and entry.kind not in BUILT_IN:
            raise UsageError(
                seen=f"[subjects.{name}] in {subjects_file}: kind = {entry.kind!r} without a path",
                expected=f"a path, or a kind among {', '.join(BUILT_IN)}",
                do='give it path = "module:function"',
            )


def _requirements_of_level(options: Mapping[str, Any]) -> list[str]:
    level = options.get("level")
    needs_triton = "cubin" in options or level in ("interpreter", "device")
    return [*(["triton"] if needs_triton else []), *(["cuda"] if level == "device" else [])]


def _check_level(spec: SubjectSpec, device: str) -> None:
    """Raise UsageError for a level that does not fit the tensors' device or Triton's mode in this process."""
    level = spec.options.get("level") if spec.kind in ("triton", "refimpl.triton") else None
    is_interpreting = {**os.environ, **spec.env}.get(_INTERPRET, "0").lower() in ("1", "true", "on", "yes")
    is_cuda = device.startswith("cuda")
    if level == "device" and not is_cuda:
        raise UsageError(
            seen=f"subject {spec.name!r} with tensors on {device}", expected="tensors on a GPU for the level 'device'",
            do="put them there (--device cuda on the command line), or use another level",
        )  # fmt: skip
    if level in ("emulator", "interpreter") and device != "cpu":
        raise UsageError(
            seen=f"subject {spec.name!r} with tensors on {device}", expected=f"tensors on the CPU for the level {level!r}",
            do="put them on the CPU (--device cpu on the command line), or use the level 'device'",
        )  # fmt: skip
    if (level == "device" and is_interpreting) or (level == "interpreter" and not is_interpreting):
        raise UsageError(
            seen=f"subject {spec.name!r} with {_INTERPRET}={'1' if is_interpreting else '0'}",
            expected=f"Triton {'compiling' if level == 'device' else 'interpreting'} for the level {level!r}",
            do=f"leave {_INTERPRET} out of the environment and of the subjects file",
        )  # fmt: skip


def _check_compiler(spec: SubjectSpec) -> None:
    command = spec.env.get("CXX") or os.environ.get("CXX") or "g++"
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            seen=f"no C++ compiler {command!r} for subject {spec.name!r}",
            expected="g++ on the PATH, or CXX naming another compiler",
            do="install one (Debian: apt-get install g++; Fedora: dnf install gcc-c++), or leave this subject out",
        )


def _check_triton(spec: SubjectSpec) -> None:
    if importlib.util.find_spec("triton") is None:
        raise UsageError(
            seen=f"no triton for subject {spec.name!r}",
            expected="the package triton, which its kernels are written for",
            do="pip install 'torch-oracle[triton]', or use another device or subject",
        )


def _check_cuda(spec: SubjectSpec) -> None:
    if metadata.version("torch").endswith("+cpu"):
        raise UsageError(
            seen=f"a CPU build of torch ({metadata.version('torch')}) for subject {spec.name!r} on cuda",
            expected="a CUDA build of torch",
            do="install one, or use --device cpu",
        )
    if not _has_cuda_device():
        raise UsageError(
            seen=f"no CUDA device for subject {spec.name!r}",
            expected="at least one, visible to the driver",
            do="use --device cpu",
        )


def _has_cuda_device() -> bool:
    """Whether NVML finds a device. Using CUDA itself would make it unusable in processes forked later."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0:
        return False
    found = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value > 0
    nvml.nvmlShutdown()
    return found
