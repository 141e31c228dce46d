"""The values that a frame holds during capture, one module for each kind. `value` has the methods that all kinds share."""

from refimpl.capture.values.array import ArrayValue
from refimpl.capture.values.bound import MethodValue, NativeMethodValue
from refimpl.capture.values.constant import ConstantValue, NestedIntValue, NumberValue
from refimpl.capture.values.error import ErrorValue, TracebackValue
from refimpl.capture.values.function import (
    CellValue,
    FunctionValue,
    GetterValue,
    LocalFunctionValue,
    PartialValue,
    UnmadeClassValue,
)
from refimpl.capture.values.generator import GeneratorValue, NativeIteratorValue
from refimpl.capture.values.graph_object import GraphObjectValue
from refimpl.capture.values.instance import AttributesValue, InstanceValue, OwnAttributesValue
from refimpl.capture.values.iterator import CombinedIteratorValue, FoundIteratorValue, IteratorValue, ReversedValue
from refimpl.capture.values.mapping import (
    DefaultDictValue,
    DictValue,
    DictViewValue,
    FrozenDictValue,
    MappingProxyValue,
    ModulesValue,
)
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.region import RegionValue
from refimpl.capture.values.sequence import DequeValue, SequenceValue, SliceValue
from refimpl.capture.values.set import SetValue
from refimpl.capture.values.subclass_tensor import SubclassTensorValue
from refimpl.capture.values.super import SuperValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import LazyValue, Value

__all__ = [
    "ArrayValue",
    "AttributesValue",
    "CellValue",
    "CombinedIteratorValue",
    "ConstantValue",
    "DefaultDictValue",
    "DequeValue",
    "DictValue",
    "DictViewValue",
    "ErrorValue",
    "FoundIteratorValue",
    "FrozenDictValue",
    "FunctionValue",
    "GeneratorValue",
    "GetterValue",
    "GraphObjectValue",
    "InstanceValue",
    "IteratorValue",
    "LazyValue",
    "LocalFunctionValue",
    "MappingProxyValue",
    "MethodValue",
    "ModulesValue",
    "NativeIteratorValue",
    "NativeMethodValue",
    "NestedIntValue",
    "NumberValue",
    "ObjectValue",
    "OwnAttributesValue",
    "PartialValue",
    "RegionValue",
    "ReversedValue",
    "SequenceValue",
    "SetValue",
    "SliceValue",
    "SubclassTensorValue",
    "SuperValue",
    "TensorValue",
    "TracebackValue",
    "UnmadeClassValue",
    "Value",
]
