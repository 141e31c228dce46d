"""Kernels of many programs in one call of the C++ compiler.

A call of g++ costs half a CPU second before it reads a line of a kernel (headers, pending templates, linking), a kernel of
a small program under a tenth. Inductor makes a call for each kernel: most of a campaign's time would be headers.

Here several worker processes judge programs at once, a few of them running (`turns`), the others waiting for their kernels; what
waits is compiled together. `unity.py` makes one source of many, `server.py` is the campaign's side, `inductor.py` the worker's.
What Inductor generates and which flags it asks for stay as they are: no two graphs become one by this.
"""
