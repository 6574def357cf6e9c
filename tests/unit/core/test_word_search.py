"""A text is found among many by its words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.word_search import rank_by_words

TOOLS = {
    "run__pictures__resize": "Makes an image smaller or larger.",
    "run__pictures__rotate": "Turns images by a multiple of 90 degrees.",
    "run__mail__send": "Sends a message with an attached image.",
    "run__invoice__send": "Sends an invoice.",
    "start__nightly_import": "The pipeline nightly_import.",
}


def find(query: str) -> list[str]:
    return rank_by_words(query, [(name, (name, description)) for name, description in TOOLS.items()])


def test_a_text_with_more_of_the_words_comes_first() -> None:
    assert find("send invoice")[:2] == ["run__invoice__send", "run__mail__send"]
    assert find("resize an image")[0] == "run__pictures__resize"


def test_a_word_in_the_name_counts_more_than_one_in_the_description() -> None:
    documents = [("a", ("other", "about mail")), ("b", ("mail", "about others"))]
    assert rank_by_words("mail", documents) == ["b", "a"]


def test_words_are_found_by_their_beginning_in_any_case() -> None:
    """Plural and singular match each other; a word inside another word does not match."""
    assert find("IMAGES") == ["run__pictures__rotate", "run__pictures__resize", "run__mail__send"]
    assert find("night") == ["start__nightly_import"]
    assert find("mage") == find("voice") == []


def test_a_query_without_words_finds_nothing() -> None:
    assert find("") == find(" _ .") == []


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=20))
def test_each_text_is_found_at_most_once_and_by_its_own_words(query: str, texts: list[str]) -> None:
    matches = rank_by_words(query, [(number, (text,)) for number, text in enumerate(texts)])
    assert len(matches) == len(set(matches))
    for number, text in enumerate(texts):
        own_matches = rank_by_words(text, [(number, (text,))])
        assert own_matches == ([number] if any(character.isalnum() for character in text) else [])
