"""Authentication: keys, tokens, and the processor time that checking tokens may take."""
