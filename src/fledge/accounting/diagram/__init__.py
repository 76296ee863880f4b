"""Flow charts of models, and of the house: drawn by our own code as SVG, or written as Mermaid text."""

from fledge.accounting.diagram.draw import draw_chart
from fledge.accounting.diagram.house import draw_house, house_mermaid
from fledge.accounting.diagram.mermaid import write_mermaid
from fledge.accounting.diagram.models import model_chart

__all__ = ["draw_chart", "draw_house", "house_mermaid", "model_chart", "write_mermaid"]
