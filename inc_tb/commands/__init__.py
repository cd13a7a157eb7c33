"""What `inc-tb` can do: one module a command, registered in inc_tb/cli.py."""
