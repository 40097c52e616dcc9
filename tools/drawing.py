"""Drawings as texts of SVG, without a library: the boxes, lines, arrows and texts in the documentation's pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from attrs import define, field, frozen

INK, FAINT, FILL, LINE, STRONG = "#1f2937", "#667085", "#eef3fb", "#3b5b92", "#b4540a"
"""The colours of text, of less important text, of the inside of boxes, of outlines, and of highlights."""

LINE_HEIGHT = 13


@define
class Picture:
    """A picture on a white background, to which shapes are added. Lengths are pixels of a screen."""

    width: float
    height: float
    title: str
    """The title, which screen readers speak."""
    _shapes: list[str] = field(factory=list)

    def box(self, x: float, y: float, width: float, height: float, *, fill: str = FILL, line: str = LINE) -> None:
        """Draw a rectangle, given by its upper left corner."""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}" '
            f'stroke="{line}"/>'
        )

    def text(
        self, x: float, y: float, text: str, *, colour: str = INK, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Draw a line of text around the height ``y``. ``anchor``: its ``start``, ``middle`` or ``end`` is at ``x``."""
        weight = ' font-weight="bold"' if bold else ""
        place = f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}"{weight}'
        # A white outline below the text keeps it readable where lines cross it.
        self._shapes.append(f'{place} stroke="#ffffff" stroke-width="3" aria-hidden="true">{escape(text)}</text>')
        self._shapes.append(f'{place} fill="{colour}">{escape(text)}</text>')

    def lines(self, x: float, y: float, lines: Sequence[str], *, colour: str = INK, anchor: str = "middle") -> None:
        """Draw several lines of text, whose common middle is at the height ``y``."""
        first = y - (len(lines) - 1) * LINE_HEIGHT / 2
        for number, line in enumerate(lines):
            self.text(x, first + number * LINE_HEIGHT, line, colour=colour, anchor=anchor)

    def line(self, points: Sequence[tuple[float, float]], *, colour: str = FAINT, dashed: bool = False) -> None:
        """Draw straight lines from point to point."""
        path = " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(f'<path d="M{path}" fill="none" stroke="{colour}"{dashes}/>')

    def arrow(
        self,
        begin: tuple[float, float],
        end: tuple[float, float],
        *,
        bend: float = 0.0,
        colour: str = FAINT,
    ) -> tuple[float, float]:
        """Draw a curved arrow that bends to its left by ``bend``; return the point in the middle of the curve."""
        (x1, y1), (x2, y2) = begin, end
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        x = (x1 + x2) / 2 + 2 * bend * (y2 - y1) / length
        y = (y1 + y2) / 2 - 2 * bend * (x2 - x1) / length
        self._shapes.append(
            f'<path d="M{x1:.1f},{y1:.1f} Q{x:.1f},{y:.1f} {x2:.1f},{y2:.1f}" fill="none" stroke="{colour}"/>'
        )
        self._head((x, y), end, colour)
        return (x1 + 2 * x + x2) / 4, (y1 + 2 * y + y2) / 4

    def _head(self, come_from: tuple[float, float], tip: tuple[float, float], colour: str) -> None:
        angle = math.atan2(tip[1] - come_from[1], tip[0] - come_from[0])
        corners = [tip] + [
            (tip[0] - 8 * math.cos(angle + side), tip[1] - 8 * math.sin(angle + side)) for side in (0.4, -0.4)
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self._shapes.append(f'<polygon points="{points}" fill="{colour}"/>')

    def svg(self) -> str:
        """Return the picture as an SVG document."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
            f'width="{self.width:.0f}" font-family="sans-serif" font-size="11" role="img">'
        )
        paper = f'<rect width="{self.width:.0f}" height="{self.height:.0f}" rx="6" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", paper, *self._shapes, "</svg>"]) + "\n"


@frozen(kw_only=True)
class Edge:
    """An arrow between two nodes of a graph, with its labels."""

    begin: str
    end: str
    labels: Sequence[str]
    bend: float = 14.0
    """The distance by which the arrow bends to its left. If below 0, the arrow bends to its right, or loops below its
    node."""
    at: float = 0.5
    """The position of the labels on the arrow, from 0 (begin) to 1 (end). It differs for arrows that cross."""


NODE_WIDTH, NODE_HEIGHT = 104.0, 34.0
STEEP = 2.0
"""The smallest ratio of height to width at which an arrow has its labels beside it. A flatter arrow has them on it."""


def draw_graph(picture: Picture, nodes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> None:
    """Draw named boxes, given by their middles, and labelled arrows between them."""
    for edge in edges:
        if edge.begin != edge.end:
            picture.arrow(*_ends(nodes, edge), bend=edge.bend)
    for name, (x, y) in nodes.items():
        picture.box(x - NODE_WIDTH / 2, y - NODE_HEIGHT / 2, NODE_WIDTH, NODE_HEIGHT)
        picture.text(x, y, name, bold=True)
    for edge in edges:
        if edge.begin == edge.end:
            _loop(picture, nodes[edge.begin], edge.labels, side=1 if edge.bend < 0 else -1)
        else:
            _label(picture, nodes, edge)


def _ends(nodes: Mapping[str, tuple[float, float]], edge: Edge) -> tuple[tuple[float, float], tuple[float, float]]:
    return _border(nodes[edge.begin], nodes[edge.end]), _border(nodes[edge.end], nodes[edge.begin])


def _label(picture: Picture, nodes: Mapping[str, tuple[float, float]], edge: Edge) -> None:
    """Draw the labels on the arrow or, if it is steep, beside the arrow, on the side to which it bends."""
    (x1, y1), (x2, y2) = _ends(nodes, edge)
    length = math.hypot(x2 - x1, y2 - y1)
    height = 4 * edge.bend * edge.at * (1 - edge.at)
    x = x1 + (x2 - x1) * edge.at + height * (y2 - y1) / length
    y = y1 + (y2 - y1) * edge.at - height * (x2 - x1) / length
    if not edge.bend or abs(y2 - y1) < STEEP * abs(x2 - x1):
        picture.lines(x, y, edge.labels, colour=LINE)
    elif (y2 > y1) == (edge.bend > 0):
        picture.lines(x + 4, y, edge.labels, colour=LINE, anchor="start")
    else:
        picture.lines(x - 4, y, edge.labels, colour=LINE, anchor="end")


def _loop(picture: Picture, node: tuple[float, float], labels: Sequence[str], side: int) -> None:
    """Draw an arrow from a node to itself, with its labels: above the node, or below it if ``side`` is 1."""
    x, y = node[0], node[1] + side * NODE_HEIGHT / 2
    picture.arrow((x - 18, y), (x + 18, y), bend=-16 * side)
    picture.lines(x, y + side * (18 + len(labels) * LINE_HEIGHT / 2), labels, colour=LINE)


def _border(node: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Return the point where the line from the node's middle to ``towards`` leaves the node's box."""
    x, y = towards[0] - node[0], towards[1] - node[1]
    share = min(
        (NODE_WIDTH / 2 + 2) / abs(x) if x else math.inf,
        (NODE_HEIGHT / 2 + 2) / abs(y) if y else math.inf,
    )
    return node[0] + x * share, node[1] + y * share
