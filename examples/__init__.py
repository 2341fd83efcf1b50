"""Small applications on a presence server, each started by one command."""
