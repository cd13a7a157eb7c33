"""What notebooks show of results: HTML of a few kB, without scripts and without anything from elsewhere."""
