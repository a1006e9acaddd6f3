"""One HTML page from results files: what was measured, where, and who is ahead.

sources.py    files: read, or found in a folder; those of one machine come together
rows.py       rows of the files as typed records, checked
findings.py   comparisons with peers, and what they come to
sections/     one file per part of the page
cards.py      what is said at the top
tables.py     tables that scroll in their own box and can be sorted; case_tables.py: one line per case
axes.py       scales of plots
panels.py     line plots; dots.py: plots of one dot per case
markup.py     HTML in which all text is escaped
means.py      means over folds
quantities.py seconds, bytes and ratios as text
page.py       the whole page, with style.css and page.js in it
command.py    the command `lapgrad report`
"""
