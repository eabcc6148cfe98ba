"""The subcommands of `orbax-gds` that change, compare and tidy up checkpoints."""
