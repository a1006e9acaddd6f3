"""Other libraries, each in a process of its own.

client.py  starts these processes and sends them requests
worker/    the program that they run; it needs neither torch nor lapgrad
"""
