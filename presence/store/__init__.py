"""The only rooms that know Redis: client, scripts, key names, shards."""
