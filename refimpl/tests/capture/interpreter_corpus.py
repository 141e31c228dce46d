"""CPython's own tests of its pure-Python modules, run by CPython and with the modules and tests interpreted.

    python3.12 refimpl/tests/capture/interpreter_corpus.py [MODULE ...] [--seconds N]

Any Python 3.10 to 3.13 that has its `test` package will do; neither torch nor refimpl needs to be installed. The tests of each
module run twice, in processes of their own: as they are, and with the code of every function of the module and of its tests
replaced by a call of the interpreter. A test agrees if its outcome is the same. Prints a line for each module and the sums.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import subprocess
import sys
import threading
import types
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_NAMES = """
    abc argparse ast augassign base64 binop bisect bool calendar call class cmd code codeop collections colorsys
    compare complex configparser contains contextlib copy copyreg csv dataclasses decorators descr dict dictcomps
    difflib dis email enum enumerate except_star exception_group exceptions extcall filecmp fileinput float fnmatch
    fractions fstring funcattrs functools generator_stop generators genericpath genexps getopt gettext glob global
    grammar graphlib heapq hmac html http.cookies inspect int ipaddress iter json keyword keywordonlyarg linecache
    list listcomps locale metaclass mimetypes modulefinder named_expressions netrc numbers opcode opcodes operator
    optparse pathlib patma pep479 pep646_syntax pickle pickletools pkgutil plistlib positional_only_arg posixpath
    pow pprint property pyclbr queue quopri raise random range re reprlib richcmp sched scope secrets set setcomps
    shelve shlex slice sort statistics string string_literals stringprep super symtable syntax tabnanny tempfile
    textwrap timeit tokenize tomllib traceback tuple type_aliases type_params types typing unary unpack unpack_ex
    urllib.parse userdict userlist userstring uu wave weakref with xdrlib yield_from zipapp zipfile
"""
MODULES = tuple(_NAMES.split())


def main() -> None:
    """Run both modes of every module."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--child"]:
        print("\n" + json.dumps(_run(arguments[1], is_interpreted=arguments[2] == "interpreted")))
        return
    seconds = int(arguments[arguments.index("--seconds") + 1]) if "--seconds" in arguments else 120
    named = [argument for argument in arguments if not argument.startswith("--") and not argument.isdigit()]
    sums = {"functions": 0, "tests": 0, "agree": 0, "modules": 0}
    for module in dict.fromkeys(named or MODULES):
        native = _child(module, "native", seconds)
        seen = _child(module, "interpreted", seconds * 4)
        if not isinstance(native, dict) or not isinstance(seen, dict):
            print(f"{module:24} left out: {native if isinstance(native, str) else seen}", flush=True)
            continue
        outcomes = native["outcomes"]
        differ = sorted(test for test, outcome in outcomes.items() if seen["outcomes"].get(test) != outcome)
        sums["modules"] += 1
        sums["functions"] += seen["functions"]
        sums["tests"] += len(outcomes)
        sums["agree"] += len(outcomes) - len(differ)
        print(
            f"{module:24} {seen['functions']:5} functions, {len(outcomes) - len(differ)} of {len(outcomes)} tests",
            flush=True,
        )
        for test in differ[:40]:
            print(
                f"    {test}: {outcomes[test]} -> {seen['outcomes'].get(test)}  {seen['messages'].get(test, '')}",
                flush=True,
            )
    print(f"Python {sys.version.split()[0]}: {json.dumps(sums)}")


def _child(module: str, mode: str, seconds: int) -> dict[str, Any] | str:
    command = [sys.executable, "-W", "ignore", __file__, "--child", module, mode]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{mode}: more than {seconds} s"
    if done.returncode:
        return f"{mode}: exit code {done.returncode} {done.stderr.strip().splitlines()[-1:]}"
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except ValueError:
        return f"{mode}: {done.stdout[-80:]!r}"


def _run(name: str, *, is_interpreted: bool) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    tests = importlib.import_module("test.test_" + name.replace(".", "_"))
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = tests
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    used: set[int] = set()
    if is_interpreted:
        _interpret([vars(module), vars(tests)], used)
    suite = unittest.TestSuite(test for test in _tests(suite) if "recursi" not in test.id().lower())  # depth is another
    result = _Outcomes()
    sys.setrecursionlimit(6000 if is_interpreted else sys.getrecursionlimit())
    out, sys.stdout = sys.stdout, io.StringIO()
    try:
        suite.run(result)
    finally:
        sys.stdout = out
    return {"outcomes": result.outcomes, "messages": result.messages, "functions": len(used)}


def _tests(suite: Any) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test


class _Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}

    def _note(self, test: Any, outcome: str, error: Any = None) -> None:
        # A test that fails keeps the failure, whatever is noted of it later.
        if self.outcomes.get(test.id(), "ok") in ("ok", "expected failure"):
            self.outcomes[test.id()] = outcome
        if error is not None and error[1] is not None:
            text = " ".join(f"{error[0].__name__}: {error[1]}".split())
            self.messages[test.id()] = text[:200]

    def addSuccess(self, test: Any) -> None:
        self._note(test, "ok")

    def addError(self, test: Any, err: Any) -> None:
        self._note(test, f"error {err[0].__name__}", err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(test, "failure", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._note(test, "skip")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note(test, "unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note(test, f"subtest {err[0].__name__}", err)


def _interpret(namespaces: list[dict[str, Any]], used: set[int]) -> None:
    """Replace the code of all functions of some modules by a call of the interpreter. `used` gets what has run."""
    package = types.ModuleType("refimpl")
    package.__path__ = [str(ROOT)]  # without refimpl/__init__.py, which needs torch
    sys.modules["refimpl"] = package
    concrete = importlib.import_module("refimpl.capture.interpreter.concrete")
    normalize = importlib.import_module("refimpl.capture.bytecode.normalize").normalize
    unsupported = importlib.import_module("refimpl.capture.bytecode.errors").UnsupportedCode
    ids = {id(namespace) for namespace in namespaces}
    replaced: set[types.CodeType] = set()

    def enters(function: types.FunctionType) -> bool:
        if id(function.__globals__) not in ids or function.__code__ in replaced:
            return False
        used.add(id(function.__code__))
        return True

    domain = concrete.ConcreteDomain(enters=enters)
    for function in gc.get_objects():
        if type(function) is types.FunctionType and id(function.__globals__) in ids:
            try:
                normalize(function.__code__)
            except unsupported:
                continue
            _replace(function, domain, used, replaced)


def _replace(function: Any, domain: Any, used: set[int], replaced: set[types.CodeType]) -> None:
    code = function.__code__
    inner = threading.local()

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        used.add(id(code))
        original = getattr(inner, "function", None)
        if original is None:
            original = inner.function = types.FunctionType(
                code, function.__globals__, code.co_name, None, function.__closure__
            )
            original.__qualname__ = function.__qualname__
        original.__defaults__, original.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return domain.call_function(original, args, kwargs)

    free = code.co_freevars
    names = "".join(f"{name}, " for name in free)
    uses = f"        ({names})\n" if free else ""
    source = (
        f"def make({names}):\n    def stub(*args, **kwargs):\n        return 'run'(args, kwargs)\n{uses}    return stub"
    )
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    stub = namespace["make"](*[None] * len(free)).__code__
    order = tuple(name for name in stub.co_freevars)
    if order != free:
        return  # CPython sorts them; a closure in another order cannot be given to the stub
    consts = tuple(run if value == "run" else value for value in stub.co_consts)
    changes: dict[str, Any] = {"co_consts": consts, "co_name": code.co_name, "co_filename": code.co_filename}
    changes["co_firstlineno"] = code.co_firstlineno
    if hasattr(code, "co_qualname"):
        changes["co_qualname"] = getattr(code, "co_qualname")
    function.__code__ = stub.replace(**changes)
    replaced.add(function.__code__)


if __name__ == "__main__":
    main()
