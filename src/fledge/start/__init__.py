"""From a person's own text to their own model: look at the text and the machine, choose, train in the time, report."""
