"""Strict export, which captures a program by reading its bytecode.

Submodules keep their signatures where the caller asks for it (`preserve_module_call_signature`).
"""
