"""The suite of torch's operator database: every entry of `op_db`, by dtype, direction and kind of input.

This module is torch-free: the registry reads the constants below in the parent process and imports `SUITE_PATH` only
in a worker, because the database costs more than two seconds and pulls in all of torch's test helpers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NAME = "opinfo"
DESCRIPTION = "torch's operator database: all entries, dtypes and sample inputs, forward and backward, and error inputs"

# Without a tag, the kinds "sample" and "error": 18 800 float32 programs, one per way upstream calls an operator. The
# other kinds repeat the same calls in another form and would make the default sweep three times as long.
TAGS: Mapping[str, str] = MappingProxyType(
    {
        "sample": "the entry's sample inputs (default)",
        "error": "inputs that eager refuses, and the subject must too (default; forward, under the first dtype only)",
        "inplace": "the in-place variant on each sample, where eager takes it",
        "out": "the out= variant on each sample, with a dense and with a strided buffer, where eager takes it (forward only)",
        "noncontiguous": "each sample with a non-contiguous copy of its tensors, where that differs and eager takes it",
        "reference": "the entry's reference inputs: many, with large tensors and extremal values; only when asked for",
        "all": "every kind but reference",
    }
)

# In the order in which programs are listed.
DTYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "complex64",
    "complex128",
    "complex32",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
DEFAULT_DTYPES = ("float32",)
DIRECTIONS = ("forward", "backward")
DEFAULT_SUBJECTS = ("aot_eager",)
QUICK_SUBJECTS = ("inductor",)
SUITE_PATH = "suites.opinfo.suite:OpInfoSuite"
