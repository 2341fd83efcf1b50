"""Worker processes: started, watched, replaced, and what they and a service manager are told."""
