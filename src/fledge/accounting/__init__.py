"""What a model costs, from its settings alone: parameters, FLOPs, memory, time; and diagrams of it."""

from fledge.accounting import devices
from fledge.accounting.budget import optimum
from fledge.accounting.devices import peak_flops
from fledge.accounting.forecast import Forecast, forecast, usual_speed
from fledge.accounting.ledger import Account, account, account_run
from fledge.accounting.parameters import SHAPES, Shape

__all__ = [
    "SHAPES",
    "Account",
    "Forecast",
    "Shape",
    "account",
    "account_run",
    "devices",
    "forecast",
    "optimum",
    "peak_flops",
    "usual_speed",
]
