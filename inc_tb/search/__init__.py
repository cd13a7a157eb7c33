"""What quantizing any set of ops does to the output, simulated; and the sets that matter."""
