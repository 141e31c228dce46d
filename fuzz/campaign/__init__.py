"""A campaign: rounds of drawn programs judged by a pool of workers, findings confirmed, reduced and put into buckets.

The road: `settings.py` says what was asked; `state.py` is everything a campaign knows, as JSON, so that it can be paused and
resumed; `rounds.py` begins and closes rounds and steers; `work.py` makes tasks of what is to be done; `results.py` takes in how
tasks ended; `run.py` is the loop. The package imports no torch: programs are drawn and judged in workers
(`fuzz.campaign.worker`).
"""
