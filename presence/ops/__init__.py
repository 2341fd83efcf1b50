"""What operators do without entering a server: kick, ban, forget and explain through Redis; plan."""
