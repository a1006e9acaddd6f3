"""One matrix over many processes: blocks on a grid, and the engines that factorise it."""
