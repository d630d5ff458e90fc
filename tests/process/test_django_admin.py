"""The four tables in Django's admin: read only, and two actions, each with a right of its own."""

from tests.django_project.site import Site

MODULE = "admin_scenes"


def test_who_may_only_look_changes_nothing(site: Site) -> None:
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


def test_a_job_is_cancelled_and_retried_by_those_who_may(site: Site) -> None:
    cancelled, place, retried, place_again, again, *logged = site.play("cancels_and_retries", module=MODULE)
    assert (cancelled, place) == (["1 job cancelled"], "dead_jobs")
    assert (retried, place_again) == (["1 job staged again"], "staged_jobs")
    assert again == ["0 jobs staged again"]
    assert [message for _, message in logged] == ["cancelled", "staged again"]


def test_no_row_is_saved_or_deleted_as_a_model(site: Site) -> None:
    raised = site.play("is_not_saved", module=MODULE)
    assert len(raised) == 2
    assert all(line.startswith("rows of job-drain are read only here") for line in raised)
