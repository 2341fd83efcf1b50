"""Who a client is: keys, tokens, and what is done about those who guess."""
