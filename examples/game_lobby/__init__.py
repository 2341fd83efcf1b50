"""A game lobby: a room for each game, which opens with its first player and closes with its last."""
