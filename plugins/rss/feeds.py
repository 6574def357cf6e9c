"""Feeds of every kind as one shape: RSS 0.9 to 2.0, Atom, JSON Feed.

A document type declaration is refused before the XML parser sees it: without one there are no entities,
neither such that expand without end nor such that name files.
"""

from __future__ import annotations

import codecs
import hashlib
import html.entities
import json
import re
import xml.etree.ElementTree as ET
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from dates import parse_date
from ductile_html import plain_text
from ductile_sdk import Failure

#: Most entries of one document that are looked at.
MAX_ENTRIES = 1000
#: Characters of one field of an event.
MAX_TEXT = 20_000
#: Namespaces whose elements are read, with the prefix that they get here.
_NAMESPACES = {
    "": "", "http://purl.org/rss/1.0/": "", "http://my.netscape.com/rdf/simple/0.9/": "",
    "http://backend.userland.com/rss2": "", "http://www.w3.org/2005/Atom": "", "http://purl.org/atom/ns#": "",
    "http://purl.org/dc/elements/1.1/": "dc:", "http://purl.org/dc/terms/": "dc:",
    "http://purl.org/rss/1.0/modules/content/": "content:",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#": "rdf:",
}  # fmt: skip
_ABOUT = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}about"
_UNSAFE_LINKS = ("javascript", "data", "vbscript")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_DECLARED = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']([A-Za-z0-9._:-]+)[\"']")
_PROLOG = re.compile(r"(?:\s+|<!--.*?-->|<\?.*?\?>)*", re.DOTALL)
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ENTITY = re.compile(r"&([A-Za-z][A-Za-z0-9]{1,31});")


DTD_REFUSED = "the feed has a document type declaration (DTD), which is refused"


class Feed(NamedTuple):
    title: str | None
    entries: list[dict[str, Any]]


def parse_feed(content: bytes, content_type: str, url: str) -> Feed:
    """Return the feed in this document. Failure, not to be retried, if it is none."""
    text = decode(content, content_type)
    try:
        feed = _parse_json(text) if text.lstrip().startswith("{") else _parse_xml(text)
    except (ET.ParseError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise Failure(f"the document is not a feed: {error}", retry=False) from None
    return Feed(feed.title, [_finished(entry, url) for entry in feed.entries])


def entry_key(entry: dict[str, Any]) -> str:
    """Identify an entry: its id, else its link, else its content."""
    named = entry["id"] or entry["link"] or json.dumps([entry["title"], entry["text"], entry["published_at"]])
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def decode(content: bytes, content_type: str) -> str:
    """Decode by byte order mark, XML declaration or header, in this order; what fits none is replaced."""
    for mark, name in _BOMS:
        if content.startswith(mark):
            return content.decode(name, "replace")
    declared = _DECLARED.match(content.lstrip()[:200])
    charset = content_type.lower().partition("charset=")[2].split(";")[0].strip(" \"'")
    named = declared[1].decode() if declared else charset
    # Pages that call themselves Latin-1 are Windows-1252, as browsers know.
    named = "cp1252" if named.lower() in ("iso-8859-1", "latin-1", "latin1", "us-ascii") else named
    for name in ("utf-8", named or "utf-8"):
        try:
            return content.decode(name)
        except (LookupError, UnicodeError):
            continue
    return content.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------- XML


def _parse_xml(text: str) -> Feed:
    # Removed first: a character that XML does not allow could hide a declaration.
    text = _DECLARATION.sub("", _NOT_XML.sub("", text).lstrip("\ufeff"), count=1)
    start = _PROLOG.match(text)
    if start is not None and text[start.end() :][:9].upper() == "<!DOCTYPE":
        raise Failure(DTD_REFUSED, retry=False)
    parser = ET.XMLParser(target=_WithoutDoctype())  # noqa: S314 - there is no document type, as checked above
    root = ET.fromstring(_ENTITY.sub(_character, text).strip(), parser)  # noqa: S314 - as above
    kind = _name(root.tag)
    if kind == "feed":
        return Feed(_text(_children(root).get("title")), [_atom(each) for each in _all(root, "entry")])
    if kind in ("rss", "rdf:RDF"):
        channel = _children(root).get("channel")
        entries = [*_all(channel, "item"), *_all(root, "item")]
        title = None if channel is None else _text(_children(channel).get("title"))
        return Feed(title, [_rss(each) for each in entries[:MAX_ENTRIES]])
    raise ValueError(f"its first element is <{kind}>")


class _WithoutDoctype(ET.TreeBuilder):
    def doctype(self, *_: Any) -> None:
        raise Failure(DTD_REFUSED, retry=False)


def _character(found: re.Match[str]) -> str:
    """The character of an HTML entity, which XML does not know; those of markup stay as they are."""
    character = html.entities.html5.get(found[1] + ";", "")
    return found[0] if not character or set(character) & set("<>&\"'") else character


def _name(tag: Any) -> str:
    """Return the name with our prefix; empty for elements of other namespaces, comments and instructions."""
    if not isinstance(tag, str):
        return ""
    namespace, _, local = tag.rpartition("}")
    prefix = _NAMESPACES.get(namespace.lstrip("{"))
    return "" if prefix is None else prefix + local


def _children(element: ET.Element) -> dict[str, ET.Element]:
    """The first child of each name."""
    found: dict[str, ET.Element] = {}
    for child in element:
        found.setdefault(_name(child.tag), child)
    return found


def _all(element: ET.Element | None, name: str) -> list[ET.Element]:
    found = [] if element is None else [child for child in element if _name(child.tag) == name]
    return found[:MAX_ENTRIES]


def _text(element: ET.Element | None) -> str | None:
    if element is None:
        return None
    if element.get("type") == "xhtml":
        markup = "".join(ET.tostring(child, encoding="unicode") for child in element)
        return re.sub(r"(</?)[a-z0-9]+:|\sxmlns(:\w+)?=\"[^\"]*\"", r"\1", markup).strip() or None
    return "".join(element.itertext()).strip() or None


def _rss(item: ET.Element) -> dict[str, Any]:
    by = _children(item)
    guid = by.get("guid")
    link = _text(by.get("link")) or (by["link"].get("href") if "link" in by else None)
    if link is None and guid is not None and guid.get("isPermaLink") != "false":
        link = _text(guid)
    return {
        "id": _text(guid) or item.get(_ABOUT),
        "title": _text(by.get("title")),
        "link": link,
        "author": _text(by.get("author")) or _text(by.get("dc:creator")),
        "published": _text(by.get("pubDate")) or _text(by.get("dc:date")) or _text(by.get("dc:created")),
        "updated": _text(by.get("dc:modified")),
        "summary": _text(by.get("description")),
        "content": _text(by.get("content:encoded")),
        "categories": [_text(each) for each in (*_all(item, "category"), *_all(item, "dc:subject"))],
        "enclosures": [
            {"url": each.get("url"), "media_type": each.get("type"), "size": each.get("length")}
            for each in _all(item, "enclosure")
        ],
    }


def _atom(entry: ET.Element) -> dict[str, Any]:
    by = _children(entry)
    links = _all(entry, "link")
    page = next((each for each in links if each.get("rel", "alternate") == "alternate"), None)
    author = by.get("author")
    return {
        "id": _text(by.get("id")),
        "title": _text(by.get("title")),
        "link": None if page is None else page.get("href"),
        "author": None if author is None else _text(_children(author).get("name")),
        "published": _text(by.get("published")) or _text(by.get("issued")) or _text(by.get("updated")),
        "updated": _text(by.get("updated")) or _text(by.get("modified")),
        "summary": _text(by.get("summary")),
        "content": _text(by.get("content")),
        "categories": [each.get("label") or each.get("term") for each in _all(entry, "category")],
        "enclosures": [
            {"url": each.get("href"), "media_type": each.get("type"), "size": each.get("length")}
            for each in links
            if each.get("rel") == "enclosure"
        ],
    }


# ------------------------------------------------------------------------------------------------ JSON


def _parse_json(text: str) -> Feed:
    document = json.loads(text)
    if "jsonfeed.org" not in str(document.get("version")):
        raise ValueError("it is JSON, but not a JSON Feed")
    entries = [each for each in document.get("items") or [] if isinstance(each, dict)]
    return Feed(_string(document.get("title")), [_json(each) for each in entries[:MAX_ENTRIES]])


def _json(item: dict[str, Any]) -> dict[str, Any]:
    authors = item.get("authors") or [item.get("author") or {}]
    return {
        "id": _string(item.get("id")),
        "title": _string(item.get("title")),
        "link": _string(item.get("url") or item.get("external_url")),
        "author": _string(authors[0].get("name")),
        "published": _string(item.get("date_published")),
        "updated": _string(item.get("date_modified")),
        "summary": _string(item.get("summary")),
        "content": _string(item.get("content_html") or item.get("content_text")),
        "categories": [_string(each) for each in item.get("tags") or []],
        "enclosures": [
            {
                "url": _string(each.get("url")),
                "media_type": each.get("mime_type"),
                "size": each.get("size_in_bytes"),
            }
            for each in item.get("attachments") or []
        ],
    }


def _string(value: Any) -> str | None:
    """Ids and dates may be numbers."""
    return None if value is None or isinstance(value, (dict, list)) else str(value).strip() or None


# ------------------------------------------------------------------------------------------------ both


def _finished(entry: dict[str, Any], url: str) -> dict[str, Any]:
    """The entry with dates read, links made absolute, text without markup, and nothing too long."""
    published, updated = entry.pop("published"), entry.pop("updated")
    body = entry["content"] or entry["summary"] or ""
    title = entry["title"]
    return {
        **{name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in entry.items()},
        "title": " ".join(plain_text(title).split())[:MAX_TEXT] if title else None,
        "link": _link(entry["link"], url),
        "text": plain_text(body[: 10 * MAX_TEXT])[:MAX_TEXT],
        "published_at": parse_date(published),
        "updated_at": parse_date(updated),
        "categories": [each[:MAX_TEXT] for each in entry["categories"][:100] if each],
        "enclosures": [_enclosure(each, url) for each in entry["enclosures"][:100] if each["url"]],
    }


def _enclosure(given: dict[str, Any], url: str) -> dict[str, Any]:
    size = str(given["size"] or "")
    media_type = given["media_type"] if isinstance(given["media_type"], str) else None
    digits = size.isascii() and size.isdigit()
    return {
        "url": _link(given["url"], url),
        "media_type": media_type,
        "size": int(size[:18]) if digits else None,
    }


def _link(link: str | None, url: str) -> str | None:
    try:
        absolute = urljoin(url, "".join((link or "").split())) if link else None
        return None if absolute is None or urlsplit(absolute).scheme in _UNSAFE_LINKS else absolute[:4096]
    except ValueError:
        return None
