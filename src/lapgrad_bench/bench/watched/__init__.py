"""Measurements in a child process, which is killed when a call hangs.

requests.py  answers requests to measure; it is the program of the child
watchdog.py  starts the child, watches it, and starts another one after a failure
"""
