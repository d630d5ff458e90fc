"""State, result and idempotency keys of a job are those of the role that staged it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

import drain
from drain.admission import uniqueness
from drain.tables import claims, dead, finishes, staged
from tests.helpers import ROOT, ids_in, query
from tests.hostility import Place

KEY = "webhook:9f"
SHOP = ("test_web1", "test_web2")


@pytest.fixture
def applications(place: Place) -> Iterator[Place]:
    """Two applications: `test_rival`, and `test_shop` with a login role for each process."""
    query(place.url, "CREATE ROLE test_rival LOGIN; CREATE ROLE test_shop NOLOGIN")
    query(place.url, "GRANT drain_application TO test_rival, test_shop")
    for login in SHOP:
        query(place.url, f"CREATE ROLE {login} LOGIN; GRANT test_shop TO {login}")
    yield place
    for role in ("test_rival", *SHOP, "test_shop"):
        query(place.url, f"DROP ROLE {role}")


def stage_in_every_state(place: Place, login: str) -> list[int]:
    """Stage four jobs as this role; one each is waiting, in flight, finished with a result, and dead."""
    with place.connected(login) as application:
        ids = drain.stage_many(application, "m.f", [(number,) for number in range(3)])
        ids.append(drain.stage(application, "m.f", idempotency_key=KEY))
    with place.connected("enqueuer") as leader:
        staged.move(leader, ids[1:3], 0)
        staged.bury(leader, ids[3:], "unreadable", "the reason")
    with place.connected("worker") as worker:
        claim = claims.claim(worker, ids[2], worker="w", limits={})
        assert claim is not None
        assert finishes.finish(worker, claim, result='"the result"')
    return ids


def seen_by(place: Place, login: str, ids: list[int]) -> list[str | None]:
    with place.connected(login) as reader:
        found = [drain.state(reader, each) for each in ids]
    return [None if each is None else each.state for each in found]


EVERY_STATE = ["waiting", "waiting", "finished", "dead"]


def test_another_application_sees_neither_state_nor_result_nor_error(applications: Place) -> None:
    ids = stage_in_every_state(applications, "application")

    assert seen_by(applications, "application", ids) == EVERY_STATE
    assert seen_by(applications, "rival", ids) == [None] * 4
    with applications.connected("application") as owner, applications.connected("rival") as rival:
        assert drain.result(owner, ids[2]) == "the result"
        with pytest.raises(drain.UnknownJobError, match="another role staged it"):
            drain.result(rival, ids[2])
        with pytest.raises(drain.UnknownJobError):
            drain.result(rival, ids[3])


def test_roles_that_may_read_the_tables_see_every_state(applications: Place) -> None:
    ids = stage_in_every_state(applications, "application")

    assert seen_by(applications, "inspection", ids) == EVERY_STATE
    assert seen_by(applications, "owner", ids) == EVERY_STATE


def test_login_roles_share_the_jobs_they_stage_as_their_group(applications: Place) -> None:
    for login in SHOP:
        query(applications.url, f"ALTER ROLE {login} SET role = test_shop")
    ids = stage_in_every_state(applications, "web1")
    query(applications.url, "ALTER ROLE test_web2 RESET role")

    assert query(applications.url, "SELECT DISTINCT staged_by FROM staged_jobs") == [("test_shop",)]
    assert seen_by(applications, "web1", ids) == EVERY_STATE
    # As a member of the group, too.
    assert seen_by(applications, "web2", ids) == EVERY_STATE
    assert seen_by(applications, "rival", ids) == [None] * 4
    with applications.connected("web1") as web1:
        again = drain.stage(web1, "m.f", idempotency_key=KEY)
    assert again == ids[3]


def test_jobs_of_a_dropped_role_are_visible_only_to_inspection(applications: Place) -> None:
    query(applications.url, "CREATE ROLE test_gone LOGIN; GRANT drain_application TO test_gone")
    ids = stage_in_every_state(applications, "gone")
    query(applications.url, "DROP ROLE test_gone")

    assert seen_by(applications, "application", ids) == [None] * 4
    assert seen_by(applications, "inspection", ids) == EVERY_STATE


def test_jobs_without_a_role_are_visible_only_to_inspection(
    applications: Place,
) -> None:
    ids = stage_in_every_state(applications, "application")
    for table in ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs"):
        query(applications.url, f"UPDATE {table} SET staged_by = NULL")

    assert seen_by(applications, "application", ids) == [None] * 4
    assert seen_by(applications, "inspection", ids) == EVERY_STATE


def test_a_retried_dead_job_still_belongs_to_its_staging_role(applications: Place) -> None:
    ids = stage_in_every_state(applications, "application")
    with applications.connected("owner") as owner:
        assert dead.revive(owner, dead.Selection()) == 1

    assert seen_by(applications, "application", ids[3:]) == ["waiting"]


def test_a_job_restaged_by_a_cancel_belongs_to_its_staging_role(
    applications: Place,
) -> None:
    with applications.connected("application") as first, applications.connected("rival") as rival:
        stands = drain.stage(first, "m.f", ["first"], unique_key="doc:42")
        gone = drain.stage(rival, "m.f", ["rival"], unique_key="doc:42")
    with applications.connected("enqueuer") as leader:
        rows = [
            staged.DueJob(each, "default", "m.f", None, expired=False, priority=0, unique_key="doc:42")
            for each in (stands, gone)
        ]
        uniqueness.settle(leader, rows)
    with applications.connected("operator") as operator:
        assert drain.cancel(operator, stands).count == 1

    (again,) = ids_in(applications.url, "staged_jobs")
    assert seen_by(applications, "rival", [again]) == ["waiting"]
    assert seen_by(applications, "application", [again]) == [None]


def test_an_idempotency_key_that_another_role_took_first_is_still_free(applications: Place) -> None:
    with applications.connected("rival") as rival:
        taken = drain.stage(rival, "m.f", [1], run_at=datetime(9990, 1, 1, tzinfo=UTC), idempotency_key=KEY)
    with applications.connected("application") as application:
        own = drain.stage(application, "m.f", [1], idempotency_key=KEY)
        assert drain.stage(application, "m.f", [1], idempotency_key=KEY) == own
        # The stored text of the other role's key leads nowhere.
        assert drain.stage(application, "m.f", [1], idempotency_key=f"test_rival {KEY}") not in (own, taken)

    assert own != taken
    assert len(ids_in(applications.url, "staged_jobs")) == 3


def test_a_key_from_before_the_upgrade_applies_to_every_role(applications: Place) -> None:
    query(
        applications.url,
        "INSERT INTO idempotency_keys (idempotency_key, job_id, job_name, digest, expires_at) "
        f"VALUES ('{KEY}', 7, 'm.f', sha256('m.f [1] {{}}'), now() + interval '1 h')",
    )
    with applications.connected("application") as application:
        assert drain.stage(application, "m.f", [1], idempotency_key=KEY) == 7
        with pytest.raises(drain.IdempotencyConflictError):
            drain.stage(application, "m.f", [2], idempotency_key=KEY)
        query(applications.url, "UPDATE idempotency_keys SET expires_at = now() - interval '1 s'")
        own = drain.stage(application, "m.f", [2], idempotency_key=KEY)
        assert own != 7
        assert drain.stage(application, "m.f", [2], idempotency_key=KEY) == own


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_is_checked_before_the_role_is_added(applications: Place, key: str) -> None:
    with applications.connected("application") as application, pytest.raises(psycopg.errors.CheckViolation):
        application.execute('SELECT drain_stage_once(%s, 9, \'{"job_name": "m.f"}\')', [key])


def test_a_key_means_the_same_job_under_any_quoting_setting(applications: Place) -> None:
    with applications.connected("application") as application:
        job_id = drain.stage(application, "m.f", [1], idempotency_key=KEY)
        application.execute("SET quote_all_identifiers = on")
        assert drain.stage(application, "m.f", [1], idempotency_key=KEY) == job_id


def test_digests_of_the_same_arguments_differ(applications: Place) -> None:
    with applications.connected("application") as application:
        for key in ("a", "b"):
            drain.stage(application, "m.f", [1], idempotency_key=key)

    assert query(applications.url, "SELECT count(DISTINCT digest) FROM idempotency_keys") == [(2,)]


def test_every_function_with_owner_rights_is_documented(place: Place) -> None:
    text = (ROOT / "SECURITY.md").read_text()
    names = query(place.url, "SELECT proname FROM pg_proc WHERE prosecdef AND proname ~ '^drain_'")

    assert names
    assert [name for (name,) in names if f"| `{name}()` |" not in text] == []
