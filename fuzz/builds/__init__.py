"""Compiles the kernels of many programs with one call of the C++ compiler.

A call of g++ costs half a CPU second before it reads a line of a kernel (headers, templates, linking), and less than a tenth for
the kernel of a small program. Inductor calls it for each kernel, so a campaign would spend most of its time on headers.

Here several worker processes judge programs. A few of them run (they have a turn), the others wait for their kernels, and one
call compiles all kernels that are waiting. `unity.py` joins the sources, `server.py` runs in the campaign, `inductor.py` in the
workers. The code and the flags are Inductor's own, and graphs are not merged.
"""
