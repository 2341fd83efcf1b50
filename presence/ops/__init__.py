"""Operations that need only Redis: kick, forget, explain."""
