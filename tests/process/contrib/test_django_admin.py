"""The four tables in Django's admin: read only, and two actions, each with a right of its own."""

import html

from tests.django_project.site import Site
from tests.helpers import wait_until

MODULE = "admin_scenes"


def test_a_user_with_only_the_view_permission_changes_nothing(site: Site) -> None:
    assert site.play("looks", module=MODULE) == {
        "codes": [200] * 4,
        "rows": [2, 1, 1, 0, 2, 0],
        "has_name": True,
        "inputs": [],
        "add": 403,
        "delete": 403,
        "cancel": [],
        "delete_selected": [],
        "where": "staged_jobs",
        "stranger": 403,
    }


def test_users_with_the_permissions_cancel_and_retry_jobs(site: Site) -> None:
    cancelled, place, retried, place_again, again, *logged = site.play("cancels_and_retries", module=MODULE)
    assert (cancelled, place) == (["1 job cancelled"], "dead_jobs")
    assert (retried, place_again) == (["1 job staged again"], "staged_jobs")
    assert again == ["0 jobs staged again"]
    assert [message for _, message in logged] == ["cancelled", "staged again"]


def test_no_row_is_saved_or_deleted_as_a_model(site: Site) -> None:
    raised = site.play("is_not_saved", module=MODULE)
    assert len(raised) == 2
    assert all(line.startswith("rows of job-drain are read only here") for line in raised)


def test_the_last_error_is_a_column_with_escaped_markup(site: Site) -> None:
    text = "\u202ereversed <b>bold</b> \x1b[31m" + "x" * 300 + "\nsecond line"
    ids = site.play("enqueue_failures", text, module=MODULE)
    wait_until(lambda: site.manage("drain_run", "--once").returncode == 0)
    assert site.manage("drain_work", "--burst").returncode == 0
    found = site.play("failures", *ids, module=MODULE)

    cells = found["cells"]
    (retrying,) = cells["inflightjob error"]
    assert retrying.startswith(
        "ValueError: no paper for \\u202ereversed &lt;b&gt;bold&lt;/b&gt; \\x1b[31mxxx"
    )
    assert html.unescape(retrying).endswith("xxx\u2026")
    assert len(html.unescape(retrying)) == 200
    assert cells["inflightjob state"] == ["retrying"]
    assert cells["deadjob error"] == ["it was shredded", retrying]
    assert all(cell.startswith("\\u202ereversed &lt;b&gt;") for cell in cells["deadjob tag"])

    for page, job_id in zip(found["pages"], ids, strict=True):
        assert f"({job_id})" in page
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert "<b>bold" not in page
    for page in found["pages"][:2]:
        assert "Traceback (most recent call last):\n  File " in html.unescape(page)
        assert "xxx\nsecond line" in page
