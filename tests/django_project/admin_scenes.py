"""Scenes in the admin, played as those of `scenes`."""

import re
from typing import Any

import django

if __name__ == "__main__":
    django.setup()

from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import setup_test_environment

from tests.django_project.shop import tasks

TABLES = ("stagedjob", "inflightjob", "finishedjob", "deadjob")


def client(*rights: str) -> Client:
    """A member of the staff with these rights alone, who is logged in."""
    user = User.objects.create_user(f"user{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


def message(response: Any) -> list[str]:
    return [str(each) for each in response.context["messages"]]


def act(client: Client, table: str, action: str, *ids: object) -> tuple[int, list[str]]:
    """Choose an action for rows of a list."""
    answer = client.post(
        f"/admin/drain/{table}/", {"action": action, "_selected_action": list(ids)}, follow=True
    )
    return answer.status_code, message(answer)


def looks() -> dict[str, Any]:
    """What somebody sees who may only look."""
    job_id = tasks.send_receipt.enqueue(1).id
    tasks.send_mail.using(queue_name="default").enqueue(2)
    viewer = client(*(f"view_{table}" for table in TABLES))
    codes = [viewer.get(f"/admin/drain/{table}/").status_code for table in TABLES]
    rows = [
        len(viewer.get("/admin/drain/stagedjob/", {"q": term}).context["cl"].result_list)
        for term in ("", job_id, "tests.django_project.shop.tasks.send_mail", "9" * 30, "default", "fault")
    ]
    page = viewer.get(f"/admin/drain/stagedjob/{job_id}/change/")
    return {
        "codes": codes,
        "rows": rows,
        "has_name": "tests.django_project.shop.tasks.send_receipt" in page.content.decode(),
        "inputs": re.findall(r'name="(_save|job_name)"', page.content.decode()),
        "add": viewer.get("/admin/drain/stagedjob/add/").status_code,
        "delete": viewer.post(f"/admin/drain/stagedjob/{job_id}/delete/", {"post": "yes"}).status_code,
        "cancel": act(viewer, "stagedjob", "cancel", job_id)[1],
        "delete_selected": act(viewer, "stagedjob", "delete_selected", job_id)[1],
        "where": where(int(job_id)),
        "stranger": client().get("/admin/drain/stagedjob/").status_code,
    }


def enqueue_failures(text: str) -> list[str]:
    """Ids of three tasks: one will wait for another attempt, one fail for good, one give up."""
    ids = [tasks.fail.enqueue(text).id, tasks.fail.enqueue(text).id, tasks.give_up.enqueue(1).id]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE staged_jobs SET tag = %s", [text[:200]])
        cursor.execute("UPDATE staged_jobs SET max_attempts = 1 WHERE id = %s", [ids[1]])
    return ids


def failures(*ids: str) -> dict[str, Any]:
    """Cells of the lists, and the page of each job."""
    viewer = client(*(f"view_{table}" for table in TABLES))
    cells = {}
    for table in ("inflightjob", "deadjob"):
        list_ = viewer.get(f"/admin/drain/{table}/").content.decode()
        for name in ("error", "state", "tag"):
            cells[f"{table} {name}"] = re.findall(f'<td class="field-{name}">(.*?)</td>', list_)
        cells[f"{table} links"] = re.findall(r'<th class="field-(\w+)"><a', list_)
    pages = [
        viewer.get(f"/admin/drain/{table}/{job_id}/change/")
        for table, job_id in zip(("inflightjob", "deadjob", "deadjob"), ids, strict=True)
    ]
    return {"cells": cells, "pages": [page.content.decode() for page in pages]}


def cancels_and_retries() -> list[Any]:
    """What becomes of a job that is cancelled and retried; each by somebody with only that right."""
    job_id = int(tasks.send_receipt.enqueue(1).id)
    cancels, retries = client("view_stagedjob", "cancel_stagedjob"), client("view_deadjob", "retry_deadjob")
    steps: list[Any] = [act(cancels, "stagedjob", "cancel", job_id)[1], where(job_id)]
    steps += [act(retries, "deadjob", "retry", job_id)[1], where(job_id)]
    steps += [act(retries, "deadjob", "retry", job_id)[1]]
    with connection.cursor() as cursor:
        cursor.execute("SELECT object_id, change_message FROM django_admin_log ORDER BY id")
        steps += [list(row) for row in cursor.fetchall()]
    return steps


def where(job_id: int) -> str:
    with connection.cursor() as cursor:
        for table in ("staged_jobs", "inflight_jobs", "dead_jobs"):
            cursor.execute(f"SELECT FROM {table} WHERE id = %s", [job_id])
            if cursor.rowcount:
                return table
    return "nowhere"


def is_not_saved() -> list[str]:
    """What is raised as a row is saved or deleted."""
    from drain.contrib.django.models import StagedJob
    from drain.errors import DrainError

    job = StagedJob.objects.get(pk=tasks.send_receipt.enqueue(1).id)
    raised = []
    for act in (job.save, job.delete):
        try:
            act()
        except DrainError as error:
            raised.append(str(error))
    return raised


if __name__ == "__main__":
    import json
    import sys

    setup_test_environment()
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](*json.loads(sys.argv[2]))))
