"""What is minimised: a micro-batch in, the sum of its losses out. All that is compiled or sharded is in here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fledge.loss import head_loss

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.training.device import Precision
    from fledge.training.teachers import Teachers


class Objective(nn.Module):
    """The model with its loss. In eval mode the loss is the plain cross-entropy, whatever training adds to it."""

    def __init__(
        self, model: Model, precision: Precision, device: torch.device, smoothing: float, z_loss: float
    ) -> None:
        super().__init__()
        self.model = model
        self.precision, self.device = precision, device
        self.smoothing, self.z_loss = smoothing, z_loss
        self.teachers: Teachers | None = None

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor, plan: Any = None, state: Any = None) -> tuple[Tensor, Any]:
        """The sum over unmasked targets, and the state to carry on where one was given."""
        smoothing, z_loss = (self.smoothing, self.z_loss) if self.training else (0.0, 0.0)
        with self.precision.autocast(self.device):
            hidden_BTD, state = self.model.hidden(inputs_BT, plan, state)
            if self.training and self.teachers is not None:
                return self.teachers.loss(self.model, hidden_BTD, inputs_BT, targets_BT, smoothing, z_loss), state
            total, _ = head_loss(self.model, hidden_BTD, targets_BT, label_smoothing=smoothing, z_loss=z_loss)
        return total, state
