"""Worker processes and their supervisor, the control pipe between them, and notifications to systemd."""
