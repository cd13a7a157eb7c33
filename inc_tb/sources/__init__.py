"""What other tools have left on disk."""
