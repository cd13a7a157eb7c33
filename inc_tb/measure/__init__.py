"""From pairs of arrays to numbers: running sums and histograms, and the columns of the op table."""
