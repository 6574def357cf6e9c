"""Feeds in the four formats, and the date parser of the rss plugin."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

_DATES = Path(__file__).parents[2] / "plugins" / "rss" / "dates.py"
_spec = importlib.util.spec_from_file_location("rss_dates", _DATES)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
parse_date = _module.parse_date

RSS = """<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/"
     xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:media="http://search.yahoo.com/mrss/">
<channel><title>Planet</title><link>https://example.org/</link>
<item><title>Second</title><link>https://example.org/2</link><guid isPermaLink="false">urn:2</guid></item>
<item><media:title>not this</media:title><title>First &amp;amp; best</title><link>https://example.org/1</link>
<guid isPermaLink="false">urn:1</guid><pubDate>Sun, 08 Feb 2026 11:00:00 +0100</pubDate>
<dc:creator>Ada</dc:creator>
<description>short</description>
<content:encoded><![CDATA[<p>One</p><script>no()</script>more&nbsp;thing]]></content:encoded>
<category>news</category><enclosure url="https://example.org/1.mp3" length="7" type="audio/mpeg"/></item>
</channel></rss>"""

RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
  xmlns:dc="http://purl.org/dc/elements/1.1/">
<channel rdf:about="https://example.org/"><title>Planet</title></channel>
<item rdf:about="urn:2"><title>Second</title><link>https://example.org/2</link></item>
<item rdf:about="urn:1"><title>First &amp;amp; best</title><link>https://example.org/1</link>
<dc:date>2026-02-08T10:00:00Z</dc:date><dc:creator>Ada</dc:creator><dc:subject>news</dc:subject>
<description>&lt;p&gt;One&lt;/p&gt;more thing</description>
<enclosure url="https://example.org/1.mp3" length="7" type="audio/mpeg"/></item>
</rdf:RDF>"""

ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Planet</title><id>urn:feed</id>
<entry><id>urn:2</id><title>Second</title><link href="https://example.org/2"/></entry>
<entry><id>urn:1</id><title type="html">First &amp;amp; best</title><author><name>Ada</name></author>
<link rel="self" href="https://example.org/self"/><link rel="alternate" href="https://example.org/1"/>
<link rel="enclosure" href="https://example.org/1.mp3" length="7" type="audio/mpeg"/>
<published>2026-02-08T10:00:00Z</published><updated>2026-02-09T10:00:00Z</updated><category term="news"/>
<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>One</p>more thing</div></content></entry>
</feed>"""

JSON_FEED = json.dumps(
    {
        "version": "https://jsonfeed.org/version/1.1",
        "title": "Planet",
        "items": [
            {"id": "urn:2", "title": "Second", "url": "https://example.org/2"},
            {
                "id": "urn:1",
                "title": "First &amp; best",
                "url": "https://example.org/1",
                "authors": [{"name": "Ada"}],
                "date_published": "2026-02-08T10:00:00Z",
                "content_html": "<p>One</p>more thing",
                "tags": ["news"],
                "attachments": [
                    {"url": "https://example.org/1.mp3", "mime_type": "audio/mpeg", "size_in_bytes": 7}
                ],
            },
        ],
    }
)


def rss_of(*titles: str) -> str:
    """Return an RSS feed with these entries, newest first; the titles are their ids."""
    items = "".join(f"<item><title>{title}</title><guid>urn:{title}</guid></item>" for title in titles)
    return f"<rss version='2.0'><channel><title>Planet</title>{items}</channel></rss>"
