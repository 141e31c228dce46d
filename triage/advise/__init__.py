"""Compares one program between two versions of torch: `torch-oracle advise`."""
