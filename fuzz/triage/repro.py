"""Writes a finding as a script that needs only torch: it makes the inputs, runs eager and compiled, and prints what differs.

The script is for a bug report. It exits with 1 while the bug exists and with 0 when both agree.
"""

from __future__ import annotations

import math
import platform
import textwrap
from collections.abc import Mapping, Sequence

import torch

from fuzz.draw.inputs.source import input_source
from fuzz.program.render import render
from fuzz.program.structure import FuzzProgram
from oracle.configure import CONFIG_MODULES
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

_EXPLICIT = 512  # storages up to this size are written out; for larger ones the script draws the elements
_ARGUMENTS = ("argument", "derived argument")  # as the caller made them, and as `derive` passes them to the program
# The comparisons that show the bug, by status.
_ASPECTS: Mapping[Status, tuple[str, ...]] = {
    Status.FAIL_ACCURACY: ("value of output",),
    Status.FAIL_MUTATION: tuple(
        f"{aspect} of {argument}" for argument in _ARGUMENTS for aspect in ("value", "layout", "flags")
    ),
    Status.FAIL_GRAD: ("gradient",),
    Status.FAIL_METADATA: ("kind of output", "flags of output"),
    Status.FAIL_STRIDE: ("layout of output",),
    Status.FAIL_ALIAS: ("aliases", "layout of output"),
    Status.FAIL_STATE: ("value of state", *(f"value of {argument}" for argument in _ARGUMENTS)),
    Status.FAIL_RNG: ("generator",),
    Status.FAIL_EXCEPTION: ("exception",),
    Status.FAIL_TO_RUN: ("exception",),
}
_PLAIN_LIMIT = 0.05  # torch.testing.assert_close finds larger errors in every dtype
_ALL = ("value", "layout", "flags", "kind", "gradient", "aliases", "generator", "exception")


def repro_script(program: FuzzProgram, subject: SubjectSpec, verdict: Verdict, *, notes: Sequence[str] = ()) -> str:
    """The script's text; `notes` are lines at its top. Raises UsageError for a subject that torch does not have."""
    is_deadly = verdict.status in (Status.CRASH, Status.TIMEOUT, Status.OOM)
    inputs = [_inputs(program, number) for number in range(len(program.calls))]
    parts = [
        _header(subject, verdict, notes),
        _standard_imports(inputs),
        *_imports(program, subject),
        _source(program),
        *inputs,
        _plan(program),
        _compile(program, subject),
        _RUN.replace("SEED", str(program.seed)),
        _comparison(verdict),
        _MAIN_DEADLY if is_deadly else _MAIN,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip()).replace("\n\n\n\n", "\n\n\n")


def text_script(program: Program, subject: SubjectSpec, verdict: Verdict, *, notes: Sequence[str] = ()) -> str:
    """The script for a program whose source makes its own inputs (`inputs(call)`), such as that of a known issue.

    Raises UsageError for a subject that torch does not have, and for a program whose calls have input specs.
    """
    if any(call.args is not None or call.kwargs is not None for call in program.calls):
        raise UsageError(
            seen=f"program {program.name!r}, whose calls carry input specs",
            expected="a program whose source makes its inputs",
            do="for a finding of a campaign, use the script beside it (`torch-oracle fuzz --corpus DIR`)",
        )
    source = program.source.strip("\n").replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    plan = _plan_text(program.calls, program.is_module, derives="def derive(" in program.source)
    inputs = "".join(_TEXT_INPUTS.replace("NUMBER", str(number)) for number in range(len(program.calls)))
    parts = [
        _header(subject, verdict, notes),
        "import random\nimport subprocess\nimport sys\n\nimport torch\n",
        *_imports(program, subject),
        f"\nSOURCE = '''\n{source}\n'''\n",
        _AS_A_CALLER,
        inputs.replace("SEED", str(program.seed)),
        plan,
        _EXPORTED.replace("STRICT", str(subject.options.get("strict", True)))
        if subject.kind == "export"
        else _compile(program, subject),
        _RUN.replace("SEED", str(program.seed)).replace(
            "    return names, names", "    NAMES.update(program=names)\n    return names, names"
        ),
        _comparison(verdict),
        _MAIN,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip()).replace("\n\n\n\n", "\n\n\n")


_TEXT_INPUTS = """

def inputs_NUMBER():
    torch.manual_seed(SEED)
    return as_a_caller(NAMES["program"]["inputs"](NUMBER), {}, {})
"""
_AS_A_CALLER = """
NAMES = {}  # of the program that is being run


def as_a_caller(value, storages, tensors):
    '''The same values. Leaf tensors that share memory are made one by one on it, so that autograd knows of no base.'''
    if isinstance(value, dict):
        return {key: as_a_caller(item, storages, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(as_a_caller(item, storages, tensors) for item in value)
    if type(value) is not torch.Tensor or value.layout is not torch.strided or not value.is_leaf:
        return value
    if id(value) not in tensors:
        memory = value.detach().untyped_storage()
        memory = storages.setdefault(memory.data_ptr() or id(memory), memory)
        with torch.no_grad():
            own = torch.empty(0, dtype=value.dtype, device=value.device)
            own.set_(memory, value.storage_offset(), value.shape, value.stride())
        own = own.conj() if value.is_conj() else own
        own = torch._neg_view(own) if value.is_neg() else own
        tensors[id(value)] = (own.requires_grad_(value.requires_grad), value)
    return tensors[id(value)][0]
"""
_EXPORTED = """
class Called(torch.nn.Module):
    '''A function as the module that export wants.'''

    def __init__(self, target):
        super().__init__()
        self.target = target

    def forward(self, *args, **kwargs):
        return self.target(*args, **kwargs)


def compiled(target):
    modules = []

    def call(*args, **kwargs):
        if not modules:  # exported by the first call's arguments
            module = target if isinstance(target, torch.nn.Module) else Called(target)
            modules.append(torch.export.export(module, tuple(args), kwargs, strict=STRICT).module())
        return modules[0](*args, **kwargs)

    return call
"""


def _standard_imports(inputs: Sequence[str]) -> str:
    needs_bytes = any("zlib.decompress" in text for text in inputs)
    modules = ["random", "subprocess", "sys", *(["base64", "zlib"] if needs_bytes else [])]
    return "".join(f"import {module}\n" for module in sorted(modules)) + "\nimport torch\n"


def _comparison(verdict: Verdict) -> str:
    texts = {
        "ASPECTS": repr(_ASPECTS.get(verdict.status, _ALL)),
        "SIGNS": str("sign of zero" in verdict.symptom),
        "TOLERANCES": repr(_tolerances(verdict)),
    }
    found = _COMPARE
    for name, text in texts.items():
        found = found.replace(name, text)
    return found


def _tolerances(verdict: Verdict) -> dict[str, float]:
    """torch's tolerances; if the wrong element is within them, tighter ones from the error that the judge allows."""
    worst = verdict.worst
    if worst is None or worst.allowed_error is None:
        return {}
    try:
        eager, subject = float(worst.eager), float(worst.subject)
    except ValueError:  # a complex number
        return {}
    seen = abs(subject - eager)
    if not math.isfinite(seen) or seen > _PLAIN_LIMIT * max(1.0, abs(eager)):
        return {}
    limit = min(worst.allowed_error, seen) / 2
    return {"rtol": float(f"{limit / abs(eager):.3g}") if eager else 0.0, "atol": float(f"{limit:.3g}")}


def _header(subject: SubjectSpec, verdict: Verdict, notes: Sequence[str]) -> str:
    lines = textwrap.wrap(f"{subject.name}: {verdict.status.value}: {verdict.symptom}", 110)
    lines.append(
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    lines += [line for note in notes for line in textwrap.wrap(note, 110)]
    return "\n".join(f"# {line}" for line in lines)


def _imports(program: FuzzProgram | Program, subject: SubjectSpec) -> list[str]:
    modules = sorted({m for m in CONFIG_MODULES for name in program.config if name.startswith(m + ".")})
    if subject.kind == "backend":
        modules.append(subject.path.partition(":")[0])
    lines = [f"import {module}" for module in modules]
    lines += [f"{name} = {value!r}" for name, value in program.config.items()]
    return ["\n".join(lines)] if lines else []


def _source(program: FuzzProgram) -> str:
    """The program at module level; or as text that each run executes again, if the call plan changes globals or attributes."""
    source = render(program).replace("import torch\n", "", 1).strip("\n")
    if _is_plain(program):
        return f"\n{source}\n"
    return f"\nSOURCE = '''\nimport torch\n\n{source}\n'''\n"


def _is_plain(program: FuzzProgram) -> bool:
    return not program.definitions and not any(call.before for call in program.calls)


# --------------------------------------------------------------------------------------------------------------- inputs


def _inputs(program: FuzzProgram, number: int) -> str:
    made = input_source(program, number, explicit=_EXPLICIT)
    keywords = ", ".join(f"{name!r}: {text}" for name, text in made.kwargs)
    body = [*made.lines, f"return [{', '.join(made.args)}], {{{keywords}}}"]
    return f"\ndef inputs_{number}():\n" + textwrap.indent("\n".join(body), "    ") + "\n"


# ----------------------------------------------------------------------------------------------------------- plan and run


def _plan(program: FuzzProgram) -> str:
    return _plan_text(program.calls, program.is_module, derives=bool(program.derive))


def _plan_text(calls: Sequence[Call], is_module: bool, *, derives: bool) -> str:
    rows = []
    for number, call in enumerate(calls):
        said = {
            "before": call.before,
            "backward": call.backward,
            "grad_mode": call.grad_mode,
            "training": call.training,
        }
        defaults = Call()
        fields = {key: value for key, value in said.items() if value != getattr(defaults, key)}
        rows.append(f"    (inputs_{number}, {fields!r}),")
    return "\nCALLS = [\n" + "\n".join(rows) + "\n]\n" + f"IS_MODULE = {is_module}\nDERIVES = {derives}\n"


def _compile(program: FuzzProgram | Program, subject: SubjectSpec) -> str:
    options = {key: value for key, value in subject.options.items() if key in ("dynamic", "fullgraph", "mode")}
    if program.dynamic is not None:
        options.setdefault("dynamic", program.dynamic)
    nested = {k.removeprefix("options."): v for k, v in subject.options.items() if k.startswith("options.")}
    if nested:
        options["options"] = nested
    match subject.kind:
        case "torch_compile":
            options = {"backend": subject.options.get("backend", "inductor"), **options}
            call = f"torch.compile(target, {', '.join(f'{key}={value!r}' for key, value in options.items())})"
        case "backend":
            keywords = "".join(f", {key}={value!r}" for key, value in options.items())
            call = f"torch.compile(target, backend={subject.path.replace(':', '.')}{keywords})"
        case _:
            raise UsageError(
                seen=f"a script for subject {subject.name!r}",
                expected="torch.compile with one of its backends, or a backend by path",
                do="ask for the first wrong rung",
            )
    return f"\ndef compiled(target):\n    return {call}\n"


_RUN = '''
def make():
    """A fresh program: its names, and what is called."""
    names = globals() if "SOURCE" not in globals() else {"__name__": "program_under_test"}
    if "SOURCE" in globals():
        exec(SOURCE, names)
    torch.manual_seed(SEED)
    return names, names["program"]() if IS_MODULE else names["program"]


def flatten(value, path):
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in flatten(item, f"{path}[{i}]")]
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in flatten(item, f"{path}[{key!r}]")]
    return [(path, value)]


def tangents(outputs, seed):
    """Each output that has a gradient, and quarters between -2 and 2 to begin with."""
    generator, pairs = torch.Generator().manual_seed(seed), {}
    for _, t in outputs:
        if isinstance(t, torch.Tensor) and t.requires_grad and id(t) not in pairs:
            shape = (*t.shape, 2) if t.is_complex() else tuple(t.shape)
            sizes = torch.randint(1, 9, shape, generator=generator)
            drawn = sizes * (torch.randint(0, 2, shape, generator=generator) * 2 - 1) / 4
            pairs[id(t)] = (t, (torch.view_as_complex(drawn) if t.is_complex() else drawn).to(t.dtype))
    return list(pairs.values())


def state_of(target, names):
    """What a call may leave behind: parameters, buffers and other tensors of the module, and those of the program's globals."""
    state = list(target.state_dict(keep_vars=True).items()) if IS_MODULE else []
    owners = [(name, vars(child)) for name, child in target.named_modules()] if IS_MODULE else []
    owners += [("globals", names)] if "SOURCE" in globals() else []
    for name, values in owners:
        kept = flatten({key: value for key, value in values.items() if key[0] != "_"}, name)
        state += [(path, value) for path, value in kept if isinstance(value, torch.Tensor)]
    return [(f"state {name}", value) for name, value in state]


def run(wrap):
    """What can be seen of every call: a dict of aspects."""
    names, target = make()
    f, seen = wrap(target), {}
    for number, (make_inputs, plan) in enumerate(CALLS):
        names["target"] = target
        exec(plan.get("before", ""), names)
        if plan.get("training") is not None:
            target.train(plan["training"])
        args, kwargs = make_inputs()
        leaves = flatten(args, "argument") + flatten(kwargs, "argument")
        if DERIVES:
            args, kwargs = names["derive"](*args, **kwargs)
            leaves += flatten(args, "derived argument")
        leaves += state_of(target, names)
        torch.manual_seed(SEED + number)
        random.seed(SEED + number)
        mode = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(plan.get("grad_mode"), torch.enable_grad)
        try:
            with mode():
                result = f(*args, **kwargs)
            outputs = flatten(result, "output")
            found = {**dict(outputs + leaves), **dict(state_of(target, names))}
            look(seen, f"call {number}: ", list(found.items()))
            seen[f"call {number}: generator"] = torch.get_rng_state()
            if plan.get("backward"):
                pairs = tangents(outputs, SEED + number)
                torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
                for path, leaf in leaves:
                    if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.requires_grad:
                        seen[f"call {number}: gradient of {path}"] = leaf.grad
                seen[f"call {number}: generator after the backward"] = torch.get_rng_state()
        except Exception as error:
            message = str(error).strip().splitlines()[:1]
            print(f"    raises {type(error).__name__}: {message}")
            seen[f"call {number}: exception"] = type(error).__name__
    return seen


def look(seen, call, leaves):
    storages = {}
    for path, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            seen[f"{call}value of {path}"] = leaf
            continue
        seen[f"{call}value of {path}"] = leaf.detach().clone()
        seen[f"{call}kind of {path}"] = (tuple(leaf.shape), leaf.dtype)
        strides = [stride for stride, size in zip(leaf.stride(), leaf.shape) if size != 1]
        seen[f"{call}layout of {path}"] = strides if leaf.numel() else []
        seen[f"{call}flags of {path}"] = (
            leaf.requires_grad, leaf.is_leaf, leaf.is_conj(), leaf.is_neg(), leaf.is_inference(),
        )
        memory = leaf.untyped_storage()
        begins = leaf.storage_offset() if leaf.numel() else None
        storages.setdefault(memory.data_ptr() if memory.nbytes() else (id(leaf),), []).append((path, id(leaf), begins))
    groups = []
    for paths in storages.values():
        first = min((begins for _, _, begins in paths if begins is not None), default=0)
        same = [mine for _, mine, _ in paths]
        groups.append(
            [(path, same.index(mine), 0 if begins is None else begins - first) for path, mine, begins in paths]
        )
    seen[f"{call}aliases"] = sorted(paths for paths in groups if len(paths) > 1)
'''
_COMPARE = """
ASKED = ASPECTS  # what the report is about; other differences are printed and not counted
LIMITS = TOLERANCES  # of torch.testing.assert_close


def differ(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        if SIGNS and bool((one.signbit() != other.signbit()).any()):
            return True
        try:
            torch.testing.assert_close(other, one, equal_nan=True, **LIMITS)
        except AssertionError:
            return True
        return False
    if isinstance(one, float) and isinstance(other, float):
        return not (one == other or one != one and other != other or abs(one - other) <= 1e-6 * abs(one))
    return type(one) is not type(other) or (not isinstance(one, torch.Tensor) and repr(one) != repr(other))


def differences(eager, seen):
    return [key for key in {**eager, **seen} if key not in eager or key not in seen or differ(eager[key], seen[key])]
"""
_MAIN = """
if __name__ == "__main__":
    print("torch", torch.__version__, "Python", sys.version.split()[0], sys.platform)
    print("eager:")
    eager = run(lambda target: target)
    print("compiled:")
    seen = run(compiled)
    found = differences(eager, seen)
    for key in found:
        print(f"{key}\\n    eager:    {eager.get(key, 'nothing')}\\n    compiled: {seen.get(key, 'nothing')}")
    is_live = any(key.partition(": ")[2].startswith(ASKED) for key in found)
    print("DIFFERENT" if is_live else "the same")
    sys.exit(1 if is_live else 0)
"""
_MAIN_DEADLY = """
if __name__ == "__main__":
    if sys.argv[1:] == ["compiled"]:
        run(compiled)
        sys.exit(0)
    print("torch", torch.__version__, "Python", sys.version.split()[0], sys.platform)
    print("eager:", differences({}, run(lambda target: target)) and "runs")
    try:
        code = subprocess.run([sys.executable, __file__, "compiled"], timeout=120).returncode
    except subprocess.TimeoutExpired:
        code = "no end within 120 s"
    print("compiled:", "runs" if code == 0 else f"dies: {code}")
    sys.exit(1 if code else 0)
"""
