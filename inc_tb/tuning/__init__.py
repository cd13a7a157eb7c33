"""Trials until the accuracy holds: what to try next, carrying it out, and what a resumed tuning knows."""
