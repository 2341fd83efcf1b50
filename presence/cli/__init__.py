"""One module per subcommand, loaded when it is called, so that no command waits for another's rooms."""
