"""What was found, in the tracker that people have already."""
