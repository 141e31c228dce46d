"""Interprets normalised bytecode. The loop is here; a domain decides what values are and what operations do.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase
Differs: frames are data (`FrameState`), also those of calls and generators. A run can stop between two instructions and
continue later in another domain. The concrete domain is here and needs no torch.
"""
