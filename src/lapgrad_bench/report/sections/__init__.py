"""Parts of the page, one file each. Those of a kind of results have `cards` (in short) and `body`."""
