"""Exports functions and modules as one functional graph without a runtime wrapper; entry points have upstream's names."""
