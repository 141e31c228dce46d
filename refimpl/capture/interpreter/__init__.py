"""Runs normalised bytecode on values of any kind: the loop is here, what a value is and does is a domain's.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase
Differs: frames are data (`FrameState`), also those of calls and generators: a run can stop between two instructions, and go on
later, in another domain. The concrete domain is here; it needs no torch.
"""
