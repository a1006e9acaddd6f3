"""Random calls of every operator of the samples, checked against the references of the samples.

A case is drawn from an operator, a seed and a number: sizes, batches and flags (``recipes``), values
(``values``), where the operands lie in memory and what they share (``memory``), scale, dtype, threads and
instruction set (``attack``). What is expected, and how far a right result may be from it, is measured for
each case (``expected``).

    make fuzz SECONDS=600 SEED=1
"""
