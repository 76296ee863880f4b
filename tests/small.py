"""The settings of a run that trains in a second, for every test that needs one."""

SMALL = [
    "tokenizer.vocabulary_size=300",
    "tokens.context_length=16",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "training.steps=6",
    "training.batch_size=4",
    "training.threads=1",
    "training.device=cpu",
    "training.evaluate_windows=4",
]
