"""Where the time goes: timed runs, rows of ops, whether two times differ, and traces."""
