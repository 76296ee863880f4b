"""Sizes that the model, its loss and its optimizer work with, and that their account counts with: numbers, no torch."""

RECURRENT_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"Matrices of a recurrent cell, side by side."
SHORTEST, LONGEST, SHORT_HEADS = 16, 1024, (16, 32, 64)
"Tokens, and sizes of a head, that the kernel for short attention is made for."
KEPT_SHARE = 4
"BDH keeps all layers' neurons where they take at most one part in so many of the GPU's memory."
CHUNK, CPU_CHUNK, KERNEL_CHUNK, KERNEL_SHARE = 1 << 26, 1 << 21, 1 << 30, 64
"Logits that the fused loss works on at once; with our kernel also at most one for so many bytes of the GPU's memory."
NEWTON_SCHULZ_STEPS = 5
"Of Muon, to make a matrix nearly orthogonal."


def padded(vocabulary_size: int) -> int:
    """Rows of an embedding in memory: as many as matrix units like."""
    step = 128 if vocabulary_size >= 2048 else 8
    return -(-vocabulary_size // step) * step
