"""Python bindings of the kernels of one translation unit, said once. Torch-free.

Below each kernel stands the text that makes it a Python module: 80 lines that differ in the number of arguments and the call.
Here what two kernels have in common word for word stands in a namespace before them. A source that does not end in bindings as
expected keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BINDINGS = re.compile(
    r"^// Python bindings to call kernel\(\):\n"
    r"(?P<parsing>.*?)"  # of an argument: a variable, a template and its specializations
    r"^static PyObject\* kernel_py\(PyObject\* self, PyObject\* args\) \{\n"
    r"(?P<head>.*?)"
    r"^[ \t]*(?P<call>kernel\([^\n]*\);) Py_RETURN_NONE;\n"
    r"(?P<tail>.*?^\}\n)"
    r"(?P<tables>.*?)"  # of methods, and the module
    r"^PyMODINIT_FUNC PyInit_kernel\(void\) \{\n"
    r"(?P<start>.*?^\}\n)\s*\Z",
    re.MULTILINE | re.DOTALL,
)
_KERNEL = re.compile(r'^extern "C"(?=\s+void\s+kernel\()', re.MULTILINE)
_COUNT = re.compile(r"PyTuple_GET_SIZE\(args\) != (\d+)\)")
_MODULE = re.compile(r"^static struct PyModuleDef py_module\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bindings:
    """The end of one source."""

    common: str  # what other kernels may have as well, with COUNT for the number of arguments
    count: str
    call: str
    tables: str

    def text(self, namespace: str) -> str:
        """What is left of it below its own kernel."""
        return (
            f"using {namespace}::parse_arg;\n"
            f"static void kernel_run(PyObject* args) {{\n    {self.call}\n}}\n"
            "static PyObject* kernel_py(PyObject* self, PyObject* args) {\n"
            f"    return {namespace}::call_kernel(self, args, {self.count}, kernel_run);\n}}\n"
            f"{self.tables}"
            f"PyMODINIT_FUNC PyInit_kernel(void) {{\n    return {namespace}::start_module(py_module);\n}}\n"
        )


def with_common_bindings(bodies: Sequence[str]) -> tuple[list[str], list[str]]:
    """Namespaces to stand in front, and the bodies, which use them. Bodies are sources without their includes."""
    namespaces: dict[str, str] = {}
    changed = []
    for body in bodies:
        found = _BINDINGS.search(body)
        bindings = None if found is None else _bindings(found)
        if found is None or bindings is None:
            changed.append(body)
            continue
        namespace = namespaces.setdefault(bindings.common, f"unity_bindings_{len(namespaces)}")
        # Exported, it is compiled by itself: within its only caller it would be compiled once more.
        kernel = _KERNEL.sub('extern "C" __attribute__((noinline))', body[: found.start()])
        changed.append(kernel + bindings.text(namespace))
    return [f"namespace {name} {{\n{common}}}\n" for common, name in namespaces.items()], changed


def _bindings(found: re.Match[str]) -> _Bindings | None:
    counts = _COUNT.findall(found["head"])
    if len(counts) != 1 or "parse_arg" not in found["parsing"] or not _MODULE.search(found["tables"]):
        return None
    head = _COUNT.sub("PyTuple_GET_SIZE(args) != count)", found["head"])
    head = head.replace(f"requires {counts[0]} args", "requires another number of args")
    common = (
        f"{found['parsing']}"
        "static PyObject* call_kernel(PyObject* self, PyObject* args, Py_ssize_t count, void (*run)(PyObject*)) {\n"
        f"{head}        run(args);\n        Py_RETURN_NONE;\n{found['tail']}"
        f"static PyObject* start_module(PyModuleDef& py_module) {{\n{found['start']}"
    )
    return _Bindings(common=common, count=counts[0], call=found["call"], tables=found["tables"])
