"""Benchmarks: operators and models against torch and other libraries.

Imports point from the bottom of this list to its top:

measure/           timing, memory, child processes
peers/             other libraries in processes of their own
ops/               operators
models/            models
watched/           the process that measures, and the watchdog that ends it when a call hangs
ops_options.py, ops_command.py   the command `lapgrad bench ops`
models_command.py                the command `lapgrad bench models`
acceleration.py                  the command `lapgrad bench accelerate`
"""
