"""The workshop: a local page to see tokens, runs and models, with the HTTP API below it. One process, offline."""
