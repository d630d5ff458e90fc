"""`drain web`: the pages of flows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tests.database.contrib.test_web_dead import confirm
from tests.flows import Flows, flows
from tests.helpers import query
from tests.sound_pages import assert_sound
from tests.web_pages import visitor

HOSTILE = "<script>\x1b\u202e&\"'"


def start(url: str, **options: str) -> int:
    ((flow_id,),) = query(url, "SELECT id FROM drain_flow(%s::text::jsonb)", json.dumps(options))
    return int(flow_id)


def stage(url: str, flow: int, node: str, after: Sequence[int] = ()) -> int:
    options = json.dumps({"flow": flow, "node": node, "after": after})
    ((job_id,),) = query(url, "SELECT drain_stage('shop.f', '[]', %s::text::jsonb)", options)
    return int(job_id)


def dead_end(jobs: Flows) -> tuple[int, int, int]:
    """A flow whose first node is dead."""
    flow = start(jobs.url, name="onboarding")
    fetch = stage(jobs.url, flow, "fetch")
    load = stage(jobs.url, flow, "load", [fetch])
    jobs.look()
    jobs.die(fetch)
    jobs.look()
    return flow, fetch, load


def test_the_pages_show_flows_and_a_job_leads_to_its_flow(database_url: str, redis_url: str) -> None:
    with flows(database_url, redis_url) as jobs, visitor(database_url, redis_url) as browser:
        jobs.look()
        assert "No flows." in browser.get("/flows")
        flow, fetch, load = dead_end(jobs)
        listed = browser.get("/flows")
        assert f'<a href="/flows/{flow}">{flow} onboarding</a>' in listed
        assert "Failed</span>" in listed
        shown = browser.get(f"/flows/{flow}")
        assert "0 of 2 completed, 2 dead" in shown
        assert f"drain flow retry {flow}" in shown
        boxes = re.findall(
            r'<a href="/jobs/(\d+)"><g class="(\w+)" transform="translate\((\d+) (\d+)\)">', shown
        )
        assert boxes == [(str(fetch), "dead", "1", "1"), (str(load), "dead", "211", "1")]
        assert shown.count('<path d="M161 21C186 21 186 21 211 21"/>') == 1
        assert f'<a href="/flows/{flow}">node fetch of flow {flow} onboarding</a>' in browser.get(
            f"/jobs/{fetch}"
        )
        jobs.finish(finished := stage(jobs.url, flow, "log"))
        jobs.look()
        assert f"node log of flow {flow} onboarding</a>" in browser.get(f"/jobs/{finished}")
        assert "Flow</dt>" not in browser.get(f"/jobs/{jobs.stage()}")
        assert "no flow has the id" in browser.get(f"/flows/{fetch + 1000}", status=404)


def test_the_page_of_a_failed_flow_names_its_undo_instead_of_a_retry(
    database_url: str, redis_url: str
) -> None:
    with flows(database_url, redis_url) as jobs, visitor(database_url, redis_url) as browser:
        jobs.look()
        flow = start(jobs.url, undo="orders")
        member = stage(jobs.url, flow, "a")
        jobs.look()
        jobs.die(member)
        jobs.look()
        ((undo,),) = query(jobs.url, "SELECT undone_by FROM flows")
        assert "Undoing</span>" in browser.get("/flows")
        jobs.die(undo)
        shown = browser.get(f"/flows/{flow}")
        assert "Failed</span>" in shown
        assert f'<a href="/jobs/{undo}">{undo}</a>' in shown
        assert "drain flow retry" not in shown
        assert f"undone by job {undo}" in browser.get(f"/jobs/{member}")


def test_a_retry_that_does_nothing_reports_why(database_url: str, redis_url: str) -> None:
    with flows(database_url, redis_url) as jobs, visitor(database_url, redis_url) as browser:
        jobs.look()
        flow = start(jobs.url, undo="orders")
        member = stage(jobs.url, flow, "a")
        jobs.look()
        jobs.die(member)
        browser.log_in()
        form = {"seen_at": "2100-01-01T00:00:00Z", "id": str(member)}
        with jobs.open() as one:
            jobs.stage(flow=flow, on=one)
            for path in (f"/jobs/{member}/retry", "/dead/retry"):
                assert (
                    "changing their flow or its undo; try again" in browser.post(path, form, of="/dead").text
                )
        jobs.look()
        assert "is undone by job" in browser.post("/dead/retry", form, of="/dead").text
        jobs.discard(member)
        jobs.look()
        question = browser.post("/dead/discard", form | {"id": str(flow)}, of="/dead")
        for refused in (
            browser.post(f"/jobs/{flow}/discard", form, of="/dead"),
            confirm(browser, "discard", question),
        ):
            assert "still being undone; try again" in refused.text


def test_hostile_names_of_flows_and_nodes_are_escaped(database_url: str, redis_url: str) -> None:
    flow = start(database_url, name=HOSTILE, description=HOSTILE)
    first = stage(database_url, flow, HOSTILE)
    stage(database_url, flow, f"{HOSTILE}2", [first])
    with visitor(database_url, redis_url) as browser:
        for page in ("/flows", f"/flows/{flow}", f"/jobs/{first}"):
            assert_sound(shown := browser.get(page))
            assert "&lt;script&gt;\\x1b\\u202e&amp;&#34;&#39;" in shown, page
            assert not set("\x1b\u202e") & set(shown)
            assert "<script>" not in shown.replace('<script src="', "")


def test_a_large_flow_shows_some_members_and_no_graph(database_url: str, redis_url: str) -> None:
    flow = start(database_url)
    query(
        database_url,
        """
        WITH jobs AS (
            INSERT INTO staged_jobs (job_name) SELECT 'm.f' FROM generate_series(1, 20000) RETURNING id)
        INSERT INTO job_edges (child_id, parent_id, awaited_id, on_failure)
        SELECT %s, id, id, 'hold' FROM jobs
        """,
        flow,
    )
    with visitor(database_url, redis_url) as browser:
        shown = browser.get(f"/flows/{flow}")
        assert "0 of 20,000 completed" in shown
        assert "200 of 20,000: dead and running ones first" in shown
        assert '<svg class="flow"' not in shown


def test_flows_are_paged(database_url: str, redis_url: str) -> None:
    ids = [start(database_url) for _ in range(21)]
    with visitor(database_url, redis_url) as browser:
        first = browser.get("/flows")
        (following,) = re.findall(r'<a rel="next" href="([^"]+)"', first)
        shown = [re.findall(r'<a href="/flows/(\d+)">', page) for page in (first, browser.get(following))]
        assert [len(page) for page in shown] == [20, 1]
        assert [int(flow_id) for page in shown for flow_id in page] == ids[::-1]
