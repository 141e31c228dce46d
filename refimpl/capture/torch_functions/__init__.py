"""`__torch_function__` during capture: of tensor subclasses, of other objects, and of modes."""
