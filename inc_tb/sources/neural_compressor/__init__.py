"""Neural Compressor: its workspaces as runs of ours."""
