"""Everything goes wrong at once, on real nodes, a real Redis and real clients, and each event is judged."""
