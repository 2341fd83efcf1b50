"""Who is here and until when: registry, timing wheel, one connection's protocol. No sockets and no clock."""
