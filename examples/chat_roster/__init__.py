"""A chat roster in the browser: a small gateway from WebSockets to a presence server."""
