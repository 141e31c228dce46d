"""Shares the Python bindings between the kernels of one translation unit. Does not import torch.

Inductor appends to each kernel 80 lines that make it a Python module; they differ only in the number of arguments and in the
call. The part that kernels have in common is moved into a namespace before them. A source that does not end in the expected
bindings keeps its own.
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
    """The bindings at the end of one source."""

    common: str  # the part that other kernels may share; COUNT stands for the number of arguments
    count: str
    call: str
    tables: str

    def text(self, namespace: str) -> str:
        """The remaining part below the kernel."""
        return (
            f"using {namespace}::parse_arg;\n"
            f"static void kernel_run(PyObject* args) {{\n    {self.call}\n}}\n"
            "static PyObject* kernel_py(PyObject* self, PyObject* args) {\n"
            f"    return {namespace}::call_kernel(self, args, {self.count}, kernel_run);\n}}\n"
            f"{self.tables}"
            f"PyMODINIT_FUNC PyInit_kernel(void) {{\n    return {namespace}::start_module(py_module);\n}}\n"
        )


def with_common_bindings(bodies: Sequence[str]) -> tuple[list[str], list[str]]:
    """Namespaces for the start of the unit, and the bodies (sources without their includes), which now use them."""
    namespaces: dict[str, str] = {}
    changed = []
    for body in bodies:
        found = _BINDINGS.search(body)
        bindings = None if found is None else _bindings(found)
        if found is None or bindings is None:
            changed.append(body)
            continue
        namespace = namespaces.setdefault(bindings.common, f"unity_bindings_{len(namespaces)}")
        # exported, so that it is compiled once and not also inlined into its only caller
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
