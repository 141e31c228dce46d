"""Modules made again from a flat exported graph: which calls belong to which module, and what flows between them."""
