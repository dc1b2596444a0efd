"""The reference of the SDK is that of its docstrings."""

import kubeai.elastic

from tests.docs.docs_sdk_page import PAGE, page


def test_the_page_is_what_the_docstrings_say() -> None:
    """`python -m tests.docs.docs_sdk_page` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_it_has_every_name_that_a_script_may_import() -> None:
    text = page()
    named = [name for name in kubeai.elastic.__all__ if callable(getattr(kubeai.elastic, name))]
    assert [name for name in named if f"\n### {name}\n" not in text] == []
    for module in ("kubeai.torch.loop", "kubeai.elastic.integrations.huggingface"):
        assert f"\n## {module}\n" in text
