"""Programs that follow the code examples of PyTorch's public documentation, run with refimpl's entry points."""
