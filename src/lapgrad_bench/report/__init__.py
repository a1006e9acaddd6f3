"""One HTML page from results files: where lapgrad is ahead and where it is not, with plots and tables.

sources.py     finds and reads files, and groups those of one machine
rows.py        rows of the files as typed records, checked
findings.py    comparisons with other libraries; means.py: means over folds
sections/      one module per part of the page: it computes the variables of its template
templates/     Jinja2 templates: the words of the page; style.css and page.js are its style and script
cards.py       the cards at the top
tables.py      columns and cells of tables; case_tables.py: tables of one line per case
plots.py       plots that only the page has; the others are those of `lapgrad bench`
svg.py         figures of matplotlib as inline SVG that follows light and dark
quantities.py  seconds, bytes and ratios as text; versions.py: names of libraries with their versions
characters.py  replaces characters that HTML and SVG may not hold
page.py        renders the page; command.py: the command `lapgrad report`
"""
