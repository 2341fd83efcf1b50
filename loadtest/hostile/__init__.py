"""What clients may do to a server that they should not, tried on a real one, beside others who behave."""
