"""Export: a module as one graph, with the signature of its inputs and outputs, its state, and its range constraints."""

from refimpl.export.archive.files import load, save
from refimpl.export.decomposition_table import default_decompositions
from refimpl.export.draft import draft_export
from refimpl.export.draft_report import DraftExportReport, FailureReport, FailureType
from refimpl.export.entry_points import export, register_dataclass
from refimpl.export.errors import SpecViolationError
from refimpl.export.exported_program import ExportedProgram
from refimpl.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    ExportBackwardSignature,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)
from refimpl.export.module_call_graph import ModuleCallEntry, ModuleCallSignature
from refimpl.export.shapes.additional_inputs import AdditionalInputs
from refimpl.export.shapes.collection import ShapesCollection
from refimpl.export.shapes.dims import Dim, dims
from refimpl.export.unflatten import FlatArgsAdapter, UnflattenedModule, unflatten

__all__ = [
    "AdditionalInputs",
    "ConstantArgument",
    "CustomObjArgument",
    "Dim",
    "DraftExportReport",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "ExportedProgram",
    "FailureReport",
    "FailureType",
    "FlatArgsAdapter",
    "InputKind",
    "InputSpec",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "OutputKind",
    "OutputSpec",
    "ShapesCollection",
    "SpecViolationError",
    "SymBoolArgument",
    "SymFloatArgument",
    "SymIntArgument",
    "TensorArgument",
    "TokenArgument",
    "UnflattenedModule",
    "default_decompositions",
    "dims",
    "draft_export",
    "export",
    "load",
    "register_dataclass",
    "save",
    "unflatten",
]
