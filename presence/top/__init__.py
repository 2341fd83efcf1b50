"""``presence top``: a live view of a running server on a terminal, over HTTP."""
