"""Parts that benchmarks, experiments and the report share; they import neither of these.

results.py        results files: one JSON format for everything that is measured
machine.py        date, load, versions and processor, which every results file stores
resumption.py     starts a results file, or continues that of an interrupted run
option_values.py  parsers of option values
progress.py       the progress bar of a long run
text_tables.py    tables for the terminal and in Markdown
plotting.py       figures without a window, and tick labels
"""
