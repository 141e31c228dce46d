"""The levels on which kernels run: emulated on tensors, in Triton's interpreter, compiled without a device, on a device."""
