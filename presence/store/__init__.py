"""Redis: clients, routes, scripts, key names and shards. No other package imports redis-py."""
