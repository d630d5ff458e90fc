import json
import pickle
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from redis import Redis, ResponseError
from rq import Queue
from rq.job import Job, JobStatus
from rq.utils import import_attribute

import drain.rq
from drain import wire
from drain.errors import ConfigError, UnavailableError, UndeliverableError
from drain.wire import (
    Consumer,
    Delivery,
    PoppedId,
    Producer,
    ReplacedDelivery,
    foreign_jobs,
    keys,
    scripts,
    sources,
)
from drain.wire.calls import Kind, classify
from drain.workers.entry import execute
from drain.workers.execution import rq_calls
from tests.helpers import ROOT, pushed

INSTALLATION = "0f3c1a2b-1111-2222-3333-444455556666"
LIST = "rq:queue:default"
WIRE = ROOT / "drain" / "wire"
KEY = re.compile(r"""['"](?:rq|drain):[a-z:]*""")


@pytest.fixture
def redis(redis_url: str) -> Iterator[Producer]:
    with closing(Producer(redis_url, "shop")) as connected:
        yield connected


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as connected:
        yield connected


def tracked(job_id: int, queue: str = "default") -> Delivery:
    return wire.tracked("shop", job_id, queue, "shop.jobs.send", None, delivery=100 + job_id)


def test_rq_reads_a_tracked_job_as_a_call_of_the_entry_point_with_its_id(
    redis: Producer, client: Redis
) -> None:
    redis.push([wire.tracked("shop", 7, "mail", "shop.jobs.send", 30, delivery=12)])

    job = Job.fetch("shop-7-12", connection=client)

    assert (job.func_name, job.args, job.kwargs) == ("drain.rq.execute", (7,), {})
    assert (job.origin, job.get_status(), job.description) == ("mail", JobStatus.QUEUED, "shop.jobs.send #7")
    assert job.created_at is not None
    assert job.enqueued_at is not None
    assert [queue.name for queue in Queue.all(connection=client)] == ["mail"]


@pytest.mark.parametrize("job_id", [7, 2**39 - 1, 10**15 - 1])
def test_a_call_names_the_installation_and_keeps_the_hash_compact(
    redis: Producer, client: Redis, job_id: int
) -> None:
    redis.push([wire.tracked("shop", job_id, "mail", "shop.jobs.send", 30, 12, INSTALLATION)])

    job = Job.fetch(f"shop-{job_id}-12", connection=client)

    assert (job.args, job.kwargs) == ((job_id, UUID(INSTALLATION).bytes), {})
    assert client.object("encoding", job.key) in (b"listpack", b"ziplist")


# What the pages of django-rq, of rq-dashboard and of Sentry read.
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("shop.jobs.send_receipt", "drain.rq.shop.jobs.send_receipt"),
        ("billing.shop.jobs.send_receipt", "drain.rq.shop.jobs.send_receipt"),
        ("billing.jobs.send_receipt_to_customer", "drain.rq.send_receipt_to_cus…"),
        ("execute", "drain.rq.execute"),
        ("_private", "drain.rq._private"),
    ],
)
def test_rqs_pages_show_a_tracked_job_by_its_own_name(
    redis: Producer, client: Redis, name: str, shown: str
) -> None:
    redis.push([wire.tracked("shop", 7, "mail", name, 30, 12, INSTALLATION)])

    job = Job.fetch("shop-7-12", connection=client)

    assert (job.func_name, job.description) == (shown, f"{name} #7")
    assert str(job.get_call_string()).startswith(f"{shown}(7, b'")
    assert client.object("encoding", job.key) in (b"listpack", b"ziplist")
    assert job.func is execute
    assert classify(job.data, INSTALLATION) == (Kind.OURS, 7, INSTALLATION)


@pytest.mark.parametrize(
    "name",
    [
        "__loader__",
        "__builtins__.eval",
        "a'b\"c",
        "a\nb",
        "a..b",
        ".a",
        "größe.messen",
        "os system",
        "N}t.",
        "a\x00",
    ],
)
def test_a_name_without_dots_appears_only_in_the_description(
    redis: Producer, client: Redis, name: str
) -> None:
    redis.push([wire.tracked("shop", 7, "mail", name, 30, 12, INSTALLATION)])

    job = Job.fetch("shop-7-12", connection=client)

    assert (job.func_name, job.func) == (wire.ENTRY_POINT, execute)
    assert str(job.description).endswith("#7")


def test_every_attribute_of_the_module_is_the_entry_point() -> None:
    for name in ("os.system", "annotations", "import_module", "a" * 300, "rq_settings.os"):
        assert import_attribute(f"{wire.NAMED}.{name}") is execute
    public = {name for name in vars(drain.rq) if not name.startswith("__")}
    assert public == set()


def test_calls_of_older_versions_are_recognized_as_ours() -> None:
    old = b"workers.entry.execute"
    for call in (
        b"(\x8c\x15%bNI7\nC\x10%b\x86}t." % (old, UUID(INSTALLATION).bytes),
        b"(\x8c\x15%bN\x8a\x05\x07\x00\x00\x00\x00C\x10%b\x86}t." % (old, UUID(INSTALLATION).bytes),
    ):
        assert pickle.loads(call) == (old.decode(), None, (7, UUID(INSTALLATION).bytes), {})
        assert classify(call, INSTALLATION) == (Kind.OURS, 7, INSTALLATION)
    assert classify(b"(V%b\nN(I7\nt(dt." % old, INSTALLATION) == (Kind.FOREIGN, 7, "")


def test_a_call_is_judged_by_its_bytes() -> None:
    call = wire.tracked("shop", 7, "mail", "a.b", None, 1, INSTALLATION).data
    other = str(UUID(int=1))
    for data in (call, zlib.compress(call)):
        assert classify(data, INSTALLATION) == (Kind.OURS, 7, INSTALLATION)
        assert classify(data, other) == (Kind.FOREIGN, 7, INSTALLATION)
    assert classify(wire.tracked("shop", 7, "mail", "a.b", None, 1).data, other) == (Kind.FOREIGN, 7, "")
    for nothing in (None, b"", ResponseError("WRONGTYPE")):
        assert classify(nothing, INSTALLATION).kind is Kind.GONE
    for plain in (call + b".", b"x" + call, zlib.compress(call + bytes(10**6)), b"\x80\x04N."):
        assert classify(plain, INSTALLATION).kind is Kind.PLAIN


def test_the_script_writes_the_fields_of_each_delivery_in_order(redis: Producer, client: Redis) -> None:
    ids = (1, 255, 256, 2**32 + 5, 2**39 - 1, 2**39)
    jobs = [
        each
        for job_id in ids
        for each in (
            wire.tracked("a-12-3", job_id, "mail", "a.b", None, 5, INSTALLATION),
            wire.tracked("a-12-3", job_id, "mail", "c.d", 30, 6, INSTALLATION),
            wire.tracked("a-12-3", job_id, "default", "a.b", None, 7, INSTALLATION),
            wire.forwarded("a-12-3", job_id, "mail", "a.b", "[1, 2]", "{}", 5),
        )
    ]
    redis.push(jobs)

    for job in jobs:
        found = client.hmget(f"rq:job:{job.rq_id}", ["origin", "timeout", "description", "data"])
        timeout = str(job.template.timeout)
        assert found == [job.queue.encode(), timeout.encode(), job.description.encode(), job.data]
    for queue in ("mail", "default"):
        pushed = [job.rq_id.encode() for job in jobs if job.queue == queue]
        assert listed(client, f"rq:queue:{queue}") == pushed


def test_the_largest_id_is_read_back_exactly(redis: Producer, client: Redis) -> None:
    redis.push([tracked(2**63 - 1)])

    (rq_id,) = Queue("default", connection=client).job_ids
    assert Job.fetch(rq_id, connection=client).args == (2**63 - 1,)


def test_rq_times_out_a_tracked_job_only_after_its_own_limit(redis: Producer, client: Redis) -> None:
    redis.push([wire.tracked("shop", 1, "default", "a.b", 30, delivery=1)])
    redis.push([wire.tracked("shop", 2, "default", "a.b", None, delivery=2)])

    limited, unlimited = (Job.fetch(rq_id, connection=client) for rq_id in ("shop-1-1", "shop-2-2"))

    assert float(str(limited.timeout)) > 30
    assert unlimited.timeout == -1


def test_the_hash_of_a_tracked_job_leaves_redis_soon_after_it_has_run(redis: Producer, client: Redis) -> None:
    redis.push([tracked(1)])

    # Not 0, for which RQ takes nine more round trips a job.
    assert 0 < (Job.fetch("shop-1-101", connection=client).result_ttl or 0) <= 3600


def test_no_argument_and_no_function_of_a_tracked_job_reaches_redis(redis: Producer, client: Redis) -> None:
    redis.push([tracked(1)])

    fields: Any = client.hgetall("rq:job:shop-1-101")

    assert fields.pop(b"description") == b"shop.jobs.send #1"
    assert b"shop.jobs" not in b"".join(fields.values())


def test_a_forwarded_job_matches_one_enqueued_by_rq(redis: Producer, client: Redis) -> None:
    args, kwargs = [1, "two", [3.5, None]], {"four": {"five": True}}
    redis.push(
        [wire.forwarded("shop", 7, "mail", "shop.jobs.send", json.dumps(args), json.dumps(kwargs), None)]
    )
    own = Queue("mail", connection=client).enqueue("shop.jobs.send", *args, **kwargs)

    ours = Job.fetch("shop-7-forward", connection=client)

    assert (ours.func_name, ours.args, ours.kwargs) == (own.func_name, own.args, own.kwargs)
    assert (ours.origin, ours.timeout, ours.get_status()) == (own.origin, own.timeout, own.get_status())
    assert ours.result_ttl is None


def test_the_time_limit_of_a_forwarded_job_is_the_one_that_was_staged(redis: Producer, client: Redis) -> None:
    redis.push([wire.forwarded("shop", 1, "default", "a.b", "[]", "{}", 5)])

    assert float(str(Job.fetch("shop-1-forward", connection=client).timeout)) == 5


def test_arguments_that_python_cannot_read_are_undeliverable() -> None:
    with pytest.raises(UndeliverableError, match="cannot be encoded"):
        wire.forwarded("shop", 1, "default", "a.b", f"[{'9' * 5_000}]", "{}", None)


def test_arguments_that_are_nested_too_deep_are_undeliverable() -> None:
    with pytest.raises(UndeliverableError, match="cannot be encoded"):
        wire.forwarded("shop", 1, "default", "a.b", "[" * 200_000 + "]" * 200_000, "{}", None)


def test_the_order_within_each_queue_is_kept(redis: Producer, redis_url: str) -> None:
    redis.push([tracked(3, "a"), tracked(9, "b"), tracked(1, "a"), tracked(2, "b"), tracked(2, "a")])
    redis.push([tracked(0, "a")])

    assert pushed(redis_url, "a") == ["shop-3-103", "shop-1-101", "shop-2-102", "shop-0-100"]
    assert pushed(redis_url, "b") == ["shop-9-109", "shop-2-102"]


def test_a_push_of_thousands_arrives_whole_and_in_order(
    redis: Producer, redis_url: str, client: Redis
) -> None:
    ids = list(range(8_501, 0, -1))
    redis.push([tracked(id_) for id_ in ids])

    assert pushed(redis_url) == [f"shop-{id_}-{100 + id_}" for id_ in ids]
    assert client.exists(*(f"rq:job:{rq_id}" for rq_id in pushed(redis_url))) == len(ids)


def test_tracked_and_forwarded_jobs_may_share_a_push(redis: Producer, client: Redis) -> None:
    redis.push([tracked(1), wire.forwarded("shop", 2, "default", "a.b", "[]", "{}", None), tracked(3)])

    assert Job.fetch("shop-1-101", connection=client).result_ttl is not None
    assert Job.fetch("shop-2-forward", connection=client).result_ttl is None


def test_an_empty_push_writes_nothing(redis: Producer, client: Redis) -> None:
    redis.push([])

    assert client.dbsize() == 0


def test_a_delivery_that_was_replaced_leaves_no_hash(redis: Producer, client: Redis) -> None:
    redis.push([tracked(1), tracked(2)])
    redis.forget([ReplacedDelivery("shop-1-101", "default")])
    redis.forget([])

    assert not client.exists("rq:job:shop-1-101")
    assert client.exists("rq:job:shop-2-102")


def test_ids_contain_only_characters_that_rq_allows(redis: Producer, client: Redis) -> None:
    delivery = wire.tracked("a_b-C", 5, "default", "a.b", None, delivery=6)

    assert delivery.rq_id == wire.tracked_id("a_b-C", 5, 6) == "a_b-C-5-6"
    Job.create("a.b", id=delivery.rq_id, connection=client)


@pytest.mark.parametrize(
    ("rq_id", "number"),
    [
        ("shop-17-900", 900),
        ("shop-17-forward", None),
        ("another-shop-17-900", None),
        ("shop-2-17-900", None),
        ("17", None),
        ("somebody-else", None),
        ("0b9fb1f4-92e3-4b1a-8bd4-7a6d8a9f2c11", None),
        ("shop-1-" + "9" * 5000, None),
        ("shop-" + "9" * 5000 + "-1", None),
        ("shop-1-\uff11", None),
    ],
)
def test_the_delivery_number_is_read_only_from_our_ids(rq_id: str, number: int | None) -> None:
    assert wire.delivery_number("shop", rq_id) == number


@pytest.mark.parametrize(
    ("listed", "lowest"),
    [
        ([], None),
        (["shop-1-8", "shop-2-9"], 8),
        (["somebody-else", "another-shop-1-3", "shop-7-forward", "shop-2-9"], 9),
        (["shop-1-1000", "shop-2-9"], 9),
        (["somebody-else"] * 49, None),
        (["somebody-else"] * 50, 0),
    ],
    ids=[
        "nothing",
        "ours",
        "ours behind others",
        "a number that was never handed out",
        "others",
        "many others",
    ],
)
def test_the_lowest_delivery_is_our_first_one_in_the_list(
    redis: Producer, listed: list[str], lowest: int | None
) -> None:
    if listed:
        redis._redis.rpush("rq:queue:default", *listed)
    redis._redis.rpush("rq:queue:mail", "shop-3-10")

    found = redis.lowest_deliveries(["default", "mail"], up_to=20)

    assert found == {"default": lowest, "mail": 10}
    assert redis.depth("default") == len(listed)


def test_a_queue_key_that_is_not_a_list_does_not_affect_other_queues(
    redis: Producer, redis_url: str, client: Redis
) -> None:
    client.set("rq:queue:default", "no list")

    redis.push([tracked(1), tracked(2, "mail")])

    assert pushed(redis_url, "mail") == ["shop-2-102"]
    assert redis.lowest_deliveries(["default"], up_to=200) == {"default": 0}
    assert redis.depth("default") == 0


@pytest.mark.parametrize("kind", ["whole", "thin"])
@pytest.mark.parametrize("key", ["drain:shop", "drain:owners:queues"])
def test_our_key_of_the_wrong_type_is_rewritten(
    redis: Producer, client: Redis, caplog: pytest.LogCaptureFixture, key: str, kind: str
) -> None:
    redis.identify(INSTALLATION, "shop at localhost")
    redis.mark()
    client.delete(key)
    client.rpush(key, "of another program")
    if kind == "whole":
        redis.push([tracked(1)])
    else:
        redis.push_thin({"default": ["shop-1-0101"]})

    assert client.llen(LIST) == 1
    assert redis.fed_by_others(["default"]) == {}
    # What may be missing is pushed again.
    assert redis.remembers() == (key != "drain:shop")
    assert f"Redis key {key} had the wrong type" in caplog.text


@pytest.mark.parametrize("kind", ["whole", "thin"])
def test_an_rq_key_of_the_wrong_type_is_reported_but_blocks_no_push(
    redis: Producer, client: Redis, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    client.set("rq:queues", "of another program")
    for _ in range(2):
        if kind == "whole":
            redis.push([tracked(1)])
        else:
            redis.push_thin({"default": ["shop-1-0101"]})
    assert client.llen(LIST) == 2
    assert caplog.text.count("rq:queues") == 1


def test_a_key_with_the_name_of_a_delivery_stops_no_push(redis: Producer, client: Redis) -> None:
    client.set("rq:job:shop-1-101", "of another program")
    redis.push([tracked(1), tracked(2)])
    assert client.llen(LIST) == 2
    assert client.hget("rq:job:shop-1-101", "origin") == b"default"


def test_push_together_refuses_all_jobs_if_one_key_is_not_a_list(
    redis: Producer, redis_url: str, client: Redis
) -> None:
    client.set("rq:queue:default", "no list")

    assert redis.push_together([tracked(1), tracked(2, "mail")]) == ["default"]
    assert client.keys() == [b"rq:queue:default"]

    client.delete("rq:queue:default")
    assert redis.push_together([tracked(1), tracked(2, "mail")]) == []
    assert (pushed(redis_url), pushed(redis_url, "mail")) == (["shop-1-101"], ["shop-2-102"])


@pytest.mark.parametrize("options", ["decode_responses=true", "encoding=nope", "encoding_errors=nope"])
def test_text_decoding_options_in_a_url_are_ignored(redis_url: str, client: Redis, options: str) -> None:
    with closing(Producer(f"{redis_url}&{options}", "shop")) as odd:
        odd.push([tracked(1)])
        assert odd.lowest_deliveries(["default"], up_to=200) == {"default": 101}
        assert odd.queues() == {"default"}
        assert list(odd.listed("default")) == [[(1, 101)]]
    assert Job.fetch("shop-1-101", connection=client).args == (1,)


@pytest.mark.parametrize(
    "url",
    ["rediss://localhost?ssl_cert_reqs=bogus", "redis://localhost?protocol=9", "redis://localhost?db=x"],
)
def test_an_invalid_url_option_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="DRAIN_REDIS_URL cannot be read"):
        wire.connect(url)


def test_the_mark_exists_until_redis_loses_its_data(redis: Producer, client: Redis) -> None:
    assert not redis.remembers()
    redis.mark()
    assert redis.remembers()
    client.flushall()
    assert not redis.remembers()


@pytest.mark.parametrize("kind", ["whole", "thin"])
def test_a_push_does_not_mark_an_emptied_redis_as_complete(redis: Producer, client: Redis, kind: str) -> None:
    redis.identify(INSTALLATION, "shop")
    redis.mark()
    client.flushall()
    if kind == "whole":
        redis.push([tracked(1)])
    else:
        redis.push_thin({"default": ["shop-1-01"]})
    assert not redis.remembers()
    redis.mark()
    assert redis.remembers()


@pytest.fixture
def consumer(redis_url: str) -> Iterator[Consumer]:
    with closing(Consumer(redis_url, "shop", ["default"])) as connected:
        yield connected


def listed(client: Redis, key: str = LIST) -> list[bytes]:
    found: list[bytes] = client.lrange(key, 0, -1)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("other", ["plain", "shop-more-8-80", "shop-8-x"])
def test_foreign_ids_and_our_own_behind_them_stay_in_their_list(
    consumer: Consumer, client: Redis, other: str
) -> None:
    client.rpush(LIST, "shop-6-60", "shop-7-70", other, "shop-9-90")
    popped = consumer.pop(10)
    assert popped is not None
    assert [each.rq_id for each in popped] == ["shop-6-60", "shop-7-70"]
    assert listed(client) == [other.encode(), b"shop-9-90"]


@pytest.mark.parametrize(
    ("rotates", "served"), [(True, ["a", "b", "c", "a", "c"]), (False, ["a", "a", "a", "a", "a"])]
)
@pytest.mark.parametrize("by", ["pop", "wait and pop", "take"])
def test_a_busy_list_yields_to_others_only_if_lists_rotate(
    redis_url: str, client: Redis, rotates: bool, served: list[str], by: str
) -> None:
    def push(queue: str, *numbers: int) -> None:
        client.rpush(f"rq:queue:{queue}", *(f"shop-{number}-{number}" for number in numbers))

    push("a", 1, 2, 3, 4, 5)
    push("b", 6)
    push("c", 7, 8)
    with closing(Consumer(redis_url, "shop", ["a", "b", "c"], rotates=rotates)) as consumer:

        def serve() -> PoppedId:
            awaited = None if by == "pop" else consumer.wait(1)
            taken = consumer.take(awaited) if by == "take" and awaited else None
            rest = consumer.pop(
                0 if taken else 1, None if taken else awaited, taken=awaited if taken else None
            )
            (popped,) = [taken] if taken else rest or []
            return popped

        assert [serve().queue for _ in served] == served


def test_a_plain_job_stays_in_rqs_intermediate_list_while_a_worker_has_it(
    consumer: Consumer, client: Redis
) -> None:
    client.rpush(LIST, "plain", "shop-7-70")
    assert consumer.pop(10) == [PoppedId("plain", "default", None, 0)]
    assert (listed(client), listed(client, f"{LIST}:intermediate")) == ([b"shop-7-70"], [b"plain"])


def popped_ids(popped: list[PoppedId] | None) -> list[str]:
    return [each.rq_id for each in popped or []]


def test_tracked_jobs_are_popped_from_behind_unwanted_plain_ones(consumer: Consumer, client: Redis) -> None:
    client.rpush(LIST, "shop-1-10", "plain", "shop-2-20", "other", "shop-3-30")
    assert popped_ids(consumer.pop(2, plain=False)) == ["shop-1-10", "shop-2-20"]
    assert consumer.leaves_plain
    # One that the blocking command pops goes back.
    awaited = consumer.wait(1)
    assert popped_ids(consumer.pop(2, awaited, plain=False)) == ["shop-3-30"]
    assert (listed(client), listed(client, f"{LIST}:intermediate")) == ([b"plain", b"other"], [])
    assert popped_ids(consumer.pop(2)) == ["plain"]
    assert not consumer.leaves_plain


def test_a_plain_job_is_popped_from_behind_unwanted_tracked_ones(consumer: Consumer, client: Redis) -> None:
    client.rpush(LIST, "shop-1-10", "plain", "other")
    assert popped_ids(consumer.pop(5, tracked=False)) == ["plain"]
    assert popped_ids(consumer.pop(5, tracked=False)) == ["other"]
    assert popped_ids(consumer.pop(5, tracked=False)) == []
    assert listed(client) == [b"shop-1-10"]


def test_plain_and_tracked_jobs_are_distinguished_without_postgres(redis_url: str, client: Redis) -> None:
    def is_away() -> str:
        raise UnavailableError("PostgreSQL is unavailable")

    Queue("default", connection=client).enqueue(print, job_id="plain")
    with closing(Consumer(redis_url, "shop", ["default"], installation=is_away)) as consumer:
        assert popped_ids(consumer.pop(1)) == ["plain"]


@pytest.mark.parametrize(("behind", "most_looks"), [(0, 1), (2000, 5)], ids=["at the tail", "further on"])
def test_our_jobs_are_found_among_many_of_another_database(
    redis_url: str, client: Redis, monkeypatch: pytest.MonkeyPatch, behind: int, most_looks: int
) -> None:
    monkeypatch.setattr(foreign_jobs, "_SLICE", 500)
    monkeypatch.setattr(foreign_jobs, "_SEARCHED", 2500)
    monkeypatch.setattr(sources, "_SKIPPED_SECONDS", 0.0)
    another = INSTALLATION.replace("0", "1")
    theirs = [f"other-{number}-1" for number in range(10_000 + behind)]
    with client.pipeline(transaction=False) as pipeline:
        call = wire.tracked("other", 1, "default", "m.f", None, 1, another).data
        for rq_id in theirs:
            pipeline.hset(f"rq:job:{rq_id}", "data", call)
        pipeline.rpush(LIST, *theirs[:10_000], "shop-1-10", "shop-2-20", *theirs[10_000:])
        pipeline.execute()
    consumer = Consumer(redis_url, "shop", ["default"], installation=lambda: INSTALLATION)
    with closing(consumer):
        looks = [popped_ids(consumer.pop(5)) for _ in range(most_looks)]
    assert ["shop-1-10", "shop-2-20"] in looks
    assert sorted(listed(client)) == sorted(rq_id.encode() for rq_id in theirs)


def test_the_leader_reads_no_more_than_the_beginning_of_a_long_id(redis: Producer, client: Redis) -> None:
    client.rpush(LIST, "x" * 1_000_000, "shop-1-10")
    client.set("rq:queue:mail", "no list")
    before = client.info("stats")["total_net_output_bytes"]
    found = redis.lowest_deliveries(["default", "mail", "empty"], up_to=200)
    assert found == {"default": 10, "mail": 0, "empty": None}
    assert client.info("stats")["total_net_output_bytes"] - before < 100_000


@pytest.mark.parametrize("by", ["pop", "wait"])
@pytest.mark.parametrize("queues", [["default"], ["default", "mail"]])
def test_an_id_that_is_too_long_for_any_job_is_dropped_and_reported(
    redis_url: str, client: Redis, caplog: pytest.LogCaptureFixture, by: str, queues: list[str]
) -> None:
    client.rpush(LIST, "x" * 1001, "shop-1-10", "x" * 1000)
    with closing(Consumer(redis_url, "shop", queues)) as consumer:
        awaited = consumer.wait(1) if by == "wait" else None
        assert popped_ids(consumer.pop(9, awaited)) == ["shop-1-10"]
    assert listed(client) == [b"x" * 1000]
    assert listed(client, f"{LIST}:intermediate") == []
    assert caplog.text.count("longer than 1,000 bytes") == 1


def test_a_broken_intermediate_list_is_reported_and_blocks_only_its_queue(
    redis_url: str, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(f"{LIST}:intermediate", "of another program")
    client.rpush(LIST, "plain")
    client.rpush("rq:queue:mail", "shop-1-10")
    with closing(Consumer(redis_url, "shop", ["default", "mail"])) as consumer:
        for _ in range(2):
            assert popped_ids(consumer.pop(1)) == ["shop-1-10"]
            assert consumer.skips_lists
            assert consumer.wait(0.01) is None
            client.rpush("rq:queue:mail", "shop-1-10")
        assert caplog.text.count(f"{LIST}:intermediate is not a list") == 1
        client.delete(f"{LIST}:intermediate", "rq:queue:mail")
        assert popped_ids(consumer.pop(1)) == ["plain"]


@pytest.mark.parametrize("has_begun", [True, False], ids=["begun", "not begun"])
def test_a_plain_job_is_returned_unless_rq_has_started_it(
    consumer: Consumer, client: Redis, has_begun: bool
) -> None:
    client.rpush(LIST, "plain")
    popped = consumer.pop(1)
    assert popped is not None
    if has_begun:
        client.zadd("rq:executions:plain", {"execution": 1})
    assert consumer.give_back_unbegun(popped[0]) is not has_begun
    assert listed(client) == ([] if has_begun else [b"plain"])


def test_returned_ids_go_back_to_the_head_in_order(consumer: Consumer, client: Redis) -> None:
    client.rpush(LIST, "shop-6-60", "shop-7-70")
    popped = consumer.pop(2)
    assert popped is not None
    client.rpush(LIST, "shop-8-80")
    consumer.give_back([(each.queue, each.rq_id) for each in popped])
    assert listed(client) == [b"shop-6-60", b"shop-7-70", b"shop-8-80"]


def test_a_redis_that_refuses_is_unavailable(client: Redis, redis_url: str) -> None:
    client.acl_setuser("nobody", enabled=True, nopass=True, categories=["-@all"])
    try:
        with closing(Producer(f"{redis_url}&username=nobody&password=x", "shop")) as refused:
            for ask in (refused.ping, refused.mark, lambda: refused.push([tracked(1)])):
                with pytest.raises(UnavailableError, match="does not take commands"):
                    ask()
    finally:
        client.acl_deluser("nobody")


def test_a_redis_that_is_not_running_is_unavailable() -> None:
    with (
        closing(Producer("redis://127.0.0.1:1/0", "shop")) as away,
        pytest.raises(UnavailableError, match=":1/0"),
    ):
        away.ping()


def test_job_descriptions_cannot_control_a_terminal() -> None:
    delivery = wire.tracked("shop", 1, "mail", "no\x1b[31mname\r\nx", 60, 1, "")
    assert delivery.description == r"no\x1b[31mname\r\nx #1"


def test_the_package_docstring_names_each_module() -> None:
    named = re.findall(r"^    (\w+) {2,}", wire.__doc__ or "", re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in WIRE.glob("*.py") if path.stem != "__init__")


def test_every_redis_key_in_use_is_documented() -> None:
    sources = [*WIRE.glob("*.py"), *WIRE.glob("lua/*.lua")]
    spelled = {key[1:] for path in sources for key in KEY.findall(path.read_text(encoding="utf-8"))}
    assert {"rq:queue:", "rq:suspended", "rq:job:", "drain:owners:queues"} <= spelled
    assert {key for key in spelled if f" {key}" not in (keys.__doc__ or "")} == set()


def test_no_other_package_contains_a_redis_key() -> None:
    others = [path for top in ("drain", "workers", "pipeline") for path in (ROOT / top).rglob("*.py")]
    spelled = {path for path in others if KEY.search(path.read_text(encoding="utf-8"))}
    assert {path for path in spelled if path.parent != WIRE} == set()


def test_python_and_lua_use_the_same_keys() -> None:
    assert f"local QUEUE_OWNERS = '{keys.QUEUE_OWNERS}'" in scripts.load("owners")
    spelled = "".join(path.read_text(encoding="utf-8") for path in WIRE.glob("lua/*.lua"))
    for key in (
        keys.QUEUES,
        keys.queue_key(""),
        keys.job_key(""),
        keys.results_key(""),
        keys.held_dependents_key(""),
    ):
        assert f"'{key}'" in spelled


@pytest.mark.parametrize(
    ("rq_id", "number"),
    [
        (wire.tracked_id("shop", 7, 12), 12),
        (wire.tracked_id("an-older-namespace", 7, 12), 12),
        (wire.tracked_id("shop", 17, 12), 0),
        (wire.tracked_id("shop", 7, 10**18), 0),
        ("shop-7-forward", 0),
        ("shop-7-²", 0),
        ("7-12", 0),
        ("6f1c7bde-0d5b-4a4b-9a35-3c6f0a2e7711", 0),
        ("", 0),
    ],
)
def test_a_claim_takes_its_delivery_number_from_its_own_rq_id(rq_id: str, number: int) -> None:
    assert rq_calls.delivery_of(7, rq_id) == number
