"""Who a client is: keys, tokens, and what checking them may cost."""
