"""Timing and memory of any function, independent of what it computes.

timing.py          several functions timed in turns
memory.py          peak memory of one call
activity.py        the record of the call that a measuring process is making
worker_process.py  a child process that answers requests
"""
