"""Fake kernels as a trace runs them: results remembered, shapes that upstream refuses, zeros without memory."""
