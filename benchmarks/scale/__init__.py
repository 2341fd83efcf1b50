"""A hundred thousand real connections, and each event held against what that client truly did."""
