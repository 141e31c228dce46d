"""TorchScript to exported programs: its graph is run by Python, and that is exported."""
