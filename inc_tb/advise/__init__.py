"""From numbers to advice: what is wrong with an op, what to change, and how each tool is told so."""
