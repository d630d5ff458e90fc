"""`drain.contrib.django.DrainBackend`: `django.tasks`, or `django-tasks` before Django 6, from enqueue to result."""

import json

import pytest

from drain.database import schema
from tests.django_project.site import Site
from tests.helpers import ROOT, environment, query, run_program, wait_until

pytest.importorskip("django")


def test_migrate_makes_the_tables_and_can_be_repeated(site: Site) -> None:
    assert query(site.database_url, "SELECT max(version) FROM drain_schema") == [(schema.VERSION,)]
    assert site.manage("migrate").returncode == 0
    assert site.manage("makemigrations", "--check", "--dry-run").returncode == 0
    assert site.manage("check").returncode == 0
    assert site.manage("migrate", "--database", "other", "drain").returncode == 0


def test_each_new_version_of_the_schema_has_a_migration() -> None:
    *_, newest = sorted((ROOT / "drain" / "contrib" / "django" / "migrations").glob("0*.py"))
    assert newest.stem.endswith(f"_version_{schema.VERSION}")


def test_a_task_commits_and_rolls_back_with_the_transaction(site: Site) -> None:
    job_id, status = site.play("roll_back_and_commit")
    assert status == "READY"
    assert site.notes() == ["2 committed"]
    assert query(site.database_url, "SELECT id::text, job_name, job_args, job_kwargs FROM staged_jobs") == [
        (job_id, "tests.django_project.shop.tasks.send_receipt", [2], {"copies": 3})
    ]


def test_a_task_may_wait_for_another(site: Site) -> None:
    first, second = site.play("enqueue_one_after_another")
    assert query(site.database_url, "SELECT child_id, parent_id FROM job_edges") == [(second, first)]


def test_a_task_runs_in_a_worker_and_its_result_is_kept(site: Site) -> None:
    ids = site.play("enqueue_all")
    before = site.play("read", ids)
    assert {each["status"] for each in before.values()} == {"READY"}
    with site.running():
        site.ended(len(ids) - 1)
    found = site.play("read", ids)

    receipt = found["receipt"]
    assert receipt["status"] == "SUCCESSFUL"
    assert receipt["value"] == {"sent": [1, 2]}
    assert (receipt["args"], receipt["kwargs"]) == ([1], {"copies": 2})
    assert (receipt["attempts"], receipt["workers"], receipt["errors"]) == (1, 1, [])
    assert sorted(receipt["times"].values()) == list(receipt["times"].values())

    settled = found["settle"]
    assert (settled["status"], settled["value"]) == ("SUCCESSFUL", {"settled": 8})

    mail = found["mail"]
    assert (mail["status"], mail["value"], mail["queue"], mail["priority"]) == (
        *("SUCCESSFUL", "mailed 2", "mail", 7),
    )

    failed = found["fail"]
    assert (failed["status"], failed["attempts"]) == ("FAILED", 2)
    assert [kind for kind, _ in failed["errors"]] == ["ValueError"] * 2
    for _, trace in failed["errors"]:
        assert "no paper for 3" in trace
        assert "in fail" in trace

    at_first = found["at_first"]
    assert (at_first["status"], at_first["value"], at_first["attempts"]) == ("SUCCESSFUL", 3, 3)
    assert [kind for kind, _ in at_first["errors"]] == ["OSError"] * 2

    assert (found["hang"]["status"], found["hang"]["errors"][0][0]) == ("FAILED", "JobTimeoutError")
    assert (found["give_up"]["status"], found["give_up"]["attempts"]) == ("FAILED", 1)
    assert (found["refuse"]["status"], found["refuse"]["attempts"]) == ("FAILED", 1)
    assert (found["object"]["status"], found["object"]["attempts"]) == ("FAILED", 1)
    assert "cannot be kept as JSON" in found["object"]["errors"][0][1]
    assert (found["later"]["status"], found["later"]["is_delayed"]) == ("READY", True)
    assert found["soon"]["status"] == "SUCCESSFUL"

    notes = site.notes()
    assert notes.count("1 receipt x2") == 1
    assert [note for note in notes if " fail " in note] == [
        "0 fail started by DrainBackend, attempt 1",
        "0 fail started by DrainBackend, attempt 2",
        "0 fail finished FAILED by DrainBackend, attempt 2",
    ]
    assert [note for note in notes if " fail_at_first " in note] == [
        *(f"0 fail_at_first started by DrainBackend, attempt {number}" for number in (1, 2, 3)),
        "0 fail_at_first finished SUCCESSFUL by DrainBackend, attempt 3",
    ]
    assert [note for note in notes if " hang " in note] == [
        "0 hang started by DrainBackend, attempt 1",
        "0 hang finished FAILED by DrainBackend, attempt 1",
    ]
    assert [note for note in notes if " refuse " in note] == [
        "0 refuse started by DrainBackend, attempt 1",
        "0 refuse finished FAILED by DrainBackend, attempt 1",
    ]
    assert [note for note in notes if " send_mail " in note] == [
        "0 send_mail started by DrainBackend, attempt 1",
        "0 send_mail finished SUCCESSFUL by DrainBackend, attempt 1",
    ]


def test_the_most_urgent_task_runs_first(site: Site) -> None:
    ids = site.play("enqueue_with_priorities")
    assert [row[0] for row in query(site.database_url, "SELECT priority FROM staged_jobs ORDER BY id")] == [
        *(100, 1, 0, -1, -100),
    ]
    found = site.play("read", dict(enumerate(ids)))
    assert [each["priority"] for each in found.values()] == [-100, -1, 0, 1, 100]
    wait_until(lambda: site.manage("drain_run", "--once").returncode == 0)
    # One at a time: jobs that finish together are recorded in any order.
    assert site.manage("drain_work", "--burst", "--prefetch", "1").returncode == 0
    order = query(site.database_url, "SELECT id::text FROM finished_jobs ORDER BY claimed_at")
    assert [job_id for (job_id,) in order] == ids[::-1]


def test_a_cancelled_task_has_failed(site: Site) -> None:
    job_id, _ = site.play("roll_back_and_commit")
    assert site.play("refresh", job_id) == ["READY", "FAILED", "JobCancelledError"]


def test_a_failing_task_enqueued_receiver_does_not_prevent_staging(site: Site) -> None:
    job_id, *heard = site.play("listen_to_task_enqueued")
    assert heard == [["DrainBackend", job_id, "READY"]]
    assert query(site.database_url, "SELECT id::text FROM staged_jobs") == [(job_id,)]


def test_bad_input_is_refused_in_one_line(site: Site) -> None:
    raised = site.play("refused")
    assert {name: line.partition(":")[0].removesuffix("Error") for name, line in raised.items()} == {
        **dict.fromkeys(("queue", "priority", "naive"), "InvalidTask"),
        "object": "Type",
        **dict.fromkeys(("nan", "nul"), "Stage"),
        **dict.fromkeys(("word", "unknown", "huge"), "TaskResultDoesNotExist"),
        "mismatch": "TaskResultMismatch",
        "broken": "TransactionManagement",
        "loop": "SynchronousOnlyOperation",
        "isolated": "Value",
    }
    assert not [line for line in raised.values() if "\n" in line]
    assert "nowhere" in raised["queue"]
    assert "send_receipt cannot be written as JSON" in raised["object"]
    staged = query(site.database_url, "SELECT count(*) FROM staged_jobs")
    assert staged == [(1,)]
    assert "'json.dumps' is not the path of one" in site.play("job_that_is_no_task")


@pytest.mark.parametrize("use_tz", ["yes", "no"])
def test_times_follow_the_time_zone_setting_of_the_project(site: Site, use_tz: str) -> None:
    assert site.play("times", SITE_USE_TZ=use_tz) == {"aware": use_tz == "yes", "same": True}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"OPTIONS": {"max_atempts": 3}}, "did you mean 'max_attempts'?"),
        ({"OPTIONS": {"timeout_seconds": 0}}, "timeout_seconds must be a whole number above 0"),
        ({"OPTIONS": {"retry_delays": 10}}, "retry_delays must be a list of seconds"),
        ({"OPTIONS": {"database": "nowhere"}}, "no database 'nowhere'; there are: default, other"),
        ({"OPTIONS": []}, None),
        ({"OPTIONS": [1]}, "['OPTIONS'] must be a dict"),
        ({"QUEUES": ["a b"]}, "'a b' is not a queue name"),
        ({"OPTIONS": {"database": "other"}}, "job-drain needs PostgreSQL, and DATABASES['other'] is sqlite"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(
    site: Site, settings: dict[str, object], text: str | None
) -> None:
    tasks = json.dumps({"second": {"BACKEND": "drain.contrib.django.DrainBackend", **settings}})
    line = site.play("enqueue_on", "second", SITE_TASKS=tasks)
    if text is None:
        assert line == "nothing"
    else:
        assert text in line
        assert "\n" not in line
        checked = site.manage("check", SITE_TASKS=tasks)
        assert checked.returncode == 1
        assert text in checked.stderr


def test_the_programs_need_a_configured_database(site: Site) -> None:
    tasks = json.dumps(
        {"default": {"BACKEND": "drain.contrib.django.DrainBackend", "OPTIONS": {"database": "nowhere"}}}
    )
    refused = site.manage("drain_run", "--once", SITE_TASKS=tasks)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "DATABASES has no 'nowhere', which OPTIONS['database'] names: there are default, other" in line


def test_the_programs_need_a_single_postgres_database(site: Site) -> None:
    tasks = json.dumps(
        {"second": {"BACKEND": "drain.contrib.django.DrainBackend", "OPTIONS": {"database": "other"}}}
    )
    run = site.manage("drain_run", "--once", SITE_TASKS=tasks)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("Error: TASKS has backends of several databases, default, other")
    alone = json.dumps(
        {"default": {"BACKEND": "drain.contrib.django.DrainBackend", "OPTIONS": {"database": "other"}}}
    )
    run = site.manage("drain_work", SITE_TASKS=alone)
    assert run.returncode == 1
    assert run.stderr.startswith("Error: job-drain needs PostgreSQL")
    assert run.stderr.count("\n") == 1


def test_program_help_comes_from_drain(site: Site) -> None:
    for words in (("drain_work", "--help"), ("help", "drain_work")):
        printed = site.manage(*words)
        assert printed.returncode == 0
        assert "--grace-seconds" in printed.stdout
    assert site.manage("drain_work", "--no-such-option").returncode == 2


def test_each_command_of_drain_works_with_the_settings_of_django(site: Site) -> None:
    job_id, _ = site.play("roll_back_and_commit")
    status = site.manage("drain", "status", "--json")
    assert (status.returncode, status.stderr) == (0, "")
    assert json.loads(status.stdout)["staged"] == 1
    shown = site.manage("drain", "show", job_id, "--settings=tests.django_project.settings")
    assert "tests.django_project.shop.tasks.send_receipt" in shown.stdout
    assert site.play("call_drain", "list", "staged", "--json")[0]["id"] == int(job_id)
    assert site.manage("drain", "run", "--once", "--metrics-port", "0").returncode == 0
    assert site.manage("drain", "work", "--burst").returncode == 0
    assert "2 receipt x3" in site.notes()


def test_help_and_exit_codes_match_those_of_drain(site: Site) -> None:
    words = (
        (),
        ("--help",),
        ("status", "--help"),
        ("dead",),
        ("no-such-command",),
        ("show", "7"),
        ("show", "x"),
    )
    sqlite = json.dumps(
        {"default": {"BACKEND": "drain.contrib.django.DrainBackend", "OPTIONS": {"database": "other"}}}
    )
    for line in words:
        ours = site.manage("drain", *line)
        theirs = run_program(
            "from drain.__main__ import main; main(prog_name='drain')",
            *line,
            env=environment(site.database_url, site.redis_url),
            check=False,
        )
        assert ours.returncode == theirs.returncode, line
        for mine, other in ((ours.stdout, theirs.stdout), (ours.stderr, theirs.stderr)):
            assert mine.replace("manage.py drain", "drain").split() == other.split(), line
    assert "Inspect" in site.manage("help", "drain").stdout
    assert site.manage("drain", "status", "--help", SITE_TASKS=sqlite).returncode == 0
    refused = site.manage("drain", "status", SITE_TASKS=sqlite)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: job-drain needs PostgreSQL")


def test_every_drain_setting_can_be_a_django_setting(site: Site) -> None:
    for name, value, error in (
        ("DRAIN_NAMESPACE", "a b", "DRAIN_NAMESPACE may hold letters"),
        ("DRAIN_METRICS_PORT", "ninety", "DRAIN_METRICS_PORT must be a port"),
    ):
        settings = json.dumps({name: value})
        refused = site.manage("drain", "run", "--once", SITE_SETTINGS=settings, **{name: ""})
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert refused.stderr.startswith(f"Error: {error}")


@pytest.mark.parametrize(
    ("database", "url"),
    [
        (
            {"NAME": "a b", "USER": "u@x", "PASSWORD": "p/w:", "HOST": "h", "PORT": 6432, "OPTIONS": {}},
            "postgresql://u%40x:p%2Fw%3A@/a%20b?host=h&port=6432",
        ),
        (
            {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "/run/pg", "PORT": "", "OPTIONS": {}},
            "postgresql:///shop?host=%2Frun%2Fpg",
        ),
        (
            {
                "NAME": "s",
                "USER": "u",
                "PASSWORD": "",
                "HOST": "a,b",
                "PORT": "1,2",
                "OPTIONS": {"sslmode": "require", "assume_role": "r", "isolation_level": 2},
            },
            "postgresql://u@/s?sslmode=require&host=a%2Cb&port=1%2C2&options=-c%20role%3Dr",
        ),
    ],
)
def test_the_database_url_is_built_from_the_django_settings(
    site: Site, database: dict[str, object], url: str
) -> None:
    assert site.play("url_of", database) == url
