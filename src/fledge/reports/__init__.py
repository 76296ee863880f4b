"""Pages and figures: the report of a run, and the parts that every other report is written with."""
