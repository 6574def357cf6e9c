"""Reading of SVG pictures."""

from __future__ import annotations

from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def read_svg(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - it comes from the function under test
