"""What other tools have measured and written down, as runs of ours."""
