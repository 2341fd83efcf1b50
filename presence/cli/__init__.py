"""One module per subcommand, loaded when it is called, so that no command loads what only another needs."""
