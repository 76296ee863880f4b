"""The names in a run's folder.

Beside them lie `loss.svg`, a folder `tokenizer` and a folder `tokens`, each made when it is first needed.
"""

CONFIG = "config.json"
"Every setting. A folder is a run from the moment that this file is in it."
ORIGIN = "origin.json"
"Which weights the run began with, where they were not random."
START = "start.json"
"What `fledge start` was asked, and what it chose and reached."
METRICS = "metrics.csv"
SAMPLES = "samples.txt"
CURVES = "loss.svg"
REPORT = "report.html"
EVENTS = "tensorboard"
TOKENIZER, TOKENS = "tokenizer", "tokens"
CHECKPOINTS = "checkpoints"
"A whole bundle for each step that was saved."
BRANCH = "branch"
"What training writes after it went back to an older step; see `runs/branches.py`."
