"""The emulator: a kernel's source on torch tensors, all programs of a grid at once, every access checked.

Counterpart: triton/runtime/interpreter.py
Differs: one operation runs for all programs of the grid, which is two orders of magnitude faster than program after program.

Where device and interpreter differ it follows the device:

| operation | here, as on the device | Triton's interpreter |
|---|---|---|
| `maximum`, `minimum`, `max`, `min`, `clamp` of a NaN and a number | the number (with PropagateNan.ALL: NaN) | NaN |
| float to integer: NaN, too large, too small | 0, largest, smallest; 8 bits are cut off from 16 | as numpy |
| float32 to bfloat16 | to nearest even | cut off |
| bfloat16 arithmetic | each operation rounded to nearest | fails, or wrong |
| `fma` | rounded once (fp64: twice) | rounded twice |
| `x * -1.0` | the other sign, NaN's too | NaN keeps its sign |
| integer division by zero | all bits set; the remainder is the dividend | 0 |
| `dot` of fp32 without input_precision | operands cut off to tf32 | exact operands |
| `dot` over less than 16 elements, a loop that changes a type | rejected, as by the compiler | accepted |
| masked lanes of a load without `other` | undefined: NaN, or the bytes 0x5A | 0 |
| sums of half types | rounded after each addition | rounded by numpy |
| `a * b + c` | rounded twice: fusion off (enable_fp_fusion=False) | rounded twice |
| transcendental functions | torch's: within 1 or 2 ULP; the device's are approximate | numpy's |
| order of a float sum | torch's; any order is right | numpy's |

Of two zeros `maximum` and `minimum` with PropagateNan.ALL take the first, as eager's scalar loops on a CPU; a device takes +0 for
the larger one.

Which programs run together shows nowhere: order between programs is open on a device as well (see memory.py, races).
Of what Triton has it lacks: block pointers and tensor descriptors, inline assembly, dot_scaled, fp8, device_print.
"""

from refimpl.codegen.emulator.level import EmulatorLevel

__all__ = ["EmulatorLevel"]
