"""What to try next: one generator a strategy.

It yields attempts and is sent what came of each. To add one: write the generator and give it to `inc_tb.tune`, name
it on the command line, or put it into STRATEGIES (named.py). It must depend on nothing but the trials it was sent,
the seed, and what the bench measures, so that a tuning can be resumed.
"""
