"""A campaign: rounds of drawn programs judged by a pool of workers, findings confirmed, reduced and put into buckets.

`settings.py` holds the options, `state.py` everything a campaign knows (as JSON, so that it can be resumed). `rounds.py` begins
and closes rounds and steers them by coverage, `work.py` makes tasks, `results.py` adds the results of tasks to the state, and
`run.py` is the loop. Only workers import torch: they draw and judge the programs (`fuzz.campaign.worker`).
"""
