"""An id that comes alone is claimed at once, and leaves RQ's intermediate list afterwards."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from redis import ConnectionError, Redis  # noqa: A004

from drain.wire import AwaitedId, Consumer, PoppedId
from tests import jobs_in_batches as jobs
from tests.helpers import NAMESPACE, wait_until
from tests.worker_processes import Yard

QUEUE, INTERMEDIATE = "rq:queue:default", "rq:queue:default:intermediate"
OURS = f"{NAMESPACE}-7-70"
SOON = 5.0


@pytest.fixture
def consumer(redis_url: str) -> Iterator[Consumer]:
    with closing(Consumer(redis_url, NAMESPACE, ["default"])) as consumer:
        yield consumer


def awaited(consumer: Consumer, client: Redis, rq_id: str) -> AwaitedId:
    client.rpush(QUEUE, rq_id)
    found = consumer.wait(SOON)
    assert found is not None
    return found


def ids_in(client: Redis, key: str) -> list[bytes]:
    found: list[bytes] = client.lrange(key, 0, -1)  # type: ignore[assignment]
    return found


def test_a_taken_id_leaves_the_intermediate_list_with_the_next_look(
    consumer: Consumer, client: Redis
) -> None:
    first = awaited(consumer, client, OURS)
    assert consumer.take(first) == PoppedId(OURS, "default", 7, 70)
    assert ids_in(client, INTERMEDIATE) == [OURS.encode()]
    client.rpush(QUEUE, f"{NAMESPACE}-8-80")

    assert consumer.pop(5, taken=first) == [PoppedId(f"{NAMESPACE}-8-80", "default", 8, 80)]
    assert (ids_in(client, INTERMEDIATE), ids_in(client, QUEUE)) == ([], [])


def test_a_taken_id_leaves_the_intermediate_list_even_if_no_other_is_wanted(
    consumer: Consumer, client: Redis
) -> None:
    first = awaited(consumer, client, OURS)
    assert consumer.take(first)
    client.rpush(QUEUE, f"{NAMESPACE}-8-80")
    assert consumer.pop(0, taken=first) == []
    assert (ids_in(client, INTERMEDIATE), ids_in(client, QUEUE)) == ([], [f"{NAMESPACE}-8-80".encode()])


@pytest.mark.parametrize("rq_id", ["plain", f"{NAMESPACE}-7", f"{NAMESPACE}-7-x", "other-7-70"])
def test_an_id_that_may_not_be_ours_is_not_taken(consumer: Consumer, client: Redis, rq_id: str) -> None:
    assert consumer.take(awaited(consumer, client, rq_id)) is None


def test_while_rq_is_suspended_nothing_is_taken(consumer: Consumer, client: Redis) -> None:
    found: list[AwaitedId | None] = []
    thread = threading.Thread(target=lambda: found.append(consumer.wait(SOON)))
    thread.start()
    wait_until(lambda: any(each["cmd"] == "blmove" for each in client.client_list()))
    client.set("rq:suspended", 1)
    client.rpush(QUEUE, OURS)
    thread.join(SOON)

    (first,) = found
    assert first is not None
    assert first.is_suspended
    assert consumer.take(first) is None
    assert consumer.pop(1, first) is None
    assert (ids_in(client, INTERMEDIATE), ids_in(client, QUEUE)) == ([], [OURS.encode()])


@pytest.mark.parametrize("queues", [["default"], ["default", "mail"]], ids=["one queue", "two queues"])
def test_a_received_id_survives_losing_the_answer_after_it(
    redis_url: str, client: Redis, queues: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain RQ job would not be delivered again."""
    client.rpush(QUEUE, "plain")
    with closing(Consumer(redis_url, NAMESPACE, queues)) as consumer:
        connection = consumer._waiter._opened().connection
        read = connection.read_response
        answers: list[object] = []

        def lose_the_second() -> object:
            if answers:
                connection.disconnect()
                raise ConnectionError("gone")
            answers.append(read())
            return answers[0]

        monkeypatch.setattr(connection, "read_response", lose_the_second)
        first = consumer.wait(SOON)
        monkeypatch.undo()
        assert first is not None
        assert consumer.take(first) is None
        assert consumer.pop(1, first) == [PoppedId("plain", "default", None, 0)]


def test_the_connection_stays_usable_after_a_key_that_is_not_a_list(
    consumer: Consumer, client: Redis
) -> None:
    """The second answer of the exchange is read too."""
    client.set(QUEUE, "no list")
    with pytest.raises(Exception, match=r"(?i)wrong"):
        consumer.wait(SOON)
    client.delete(QUEUE)
    assert awaited(consumer, client, OURS).rq_id == OURS.encode()


@pytest.mark.parametrize("queues", [("default",), ("default", "mail")], ids=["one queue", "two queues"])
def test_jobs_that_come_one_by_one_leave_no_id_behind(
    yard: Yard, client: Redis, queues: tuple[str, ...]
) -> None:
    with yard.working(*queues):
        for number in range(5):
            (job_id,) = yard.pushed(jobs.note, str(number))
            yard.wait_for("finished_jobs", [job_id])
        wait_until(lambda: not ids_in(client, INTERMEDIATE))
    assert ids_in(client, QUEUE) == []
    assert sorted(yard.effects()) == [str(number) for number in range(5)]
