"""`-o jsonpath=…` as kubectl takes it."""

import pytest

from job_supervisor.cli.output import JsonPathTemplate, TemplateError

_DATA = {
    "jobs": [
        {"job": "a", "phase": "Running", "run": 1, "x.y/z": "q", "workers": ["w1", "w2"], "running": True},
        {"job": "b", "phase": "Suspended", "run": 2, "workers": [], "since": None},
    ]
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.jobs[*].job}", "a b"),
        (".jobs[0].run", "1"),
        ("jobs[0].run", "1"),
        ("{$.jobs[0].running}", "true"),
        ("job {.jobs[1].job} runs: {.jobs[1].run}", "job b runs: 2"),
        (r'{range .jobs[*]}{.job}{"\t"}{.phase}{"\n"}{end}', "a\tRunning\nb\tSuspended\n"),
        ("{range .jobs[*]}{range .workers[*]}<{@}>{end};{end}", "<w1><w2>;;"),
        ('{.jobs[?(@.phase=="Running")].job}', "a"),
        ("{.jobs[?(@.run>1)].job}", "b"),
        (r"{.jobs[0].x\.y/z}", "q"),
        ("{.jobs[0]['job','phase']}", "a Running"),
        ("{.jobs[-1:].job}", "b"),
        ("{..run}", "1 2"),
        ("{.jobs[0].workers}", '["w1","w2"]'),
        ("{.nothing.here}", ""),
        ("{.jobs[1].since}", ""),
        ("{'}{'}", "}{"),
    ],
)
def test_a_template_is_filled_in(template: str, text: str) -> None:
    assert JsonPathTemplate(template).render(_DATA) == text


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{.a", "a brace is not closed"),
        ("{range .a}x", "{range} without {end}"),
        ("x{end}", "{end} without {range}"),
        ("{.a[}", "is not a JSONPath"),
        ("{.jobs[?(@.x==}", "is not a JSONPath"),
    ],
)
def test_a_template_that_is_wrong_is_explained(template: str, why: str) -> None:
    with pytest.raises(TemplateError) as raised:
        JsonPathTemplate(template)
    assert why in str(raised.value)
