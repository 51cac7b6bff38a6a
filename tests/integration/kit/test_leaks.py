import asyncpg

from tests.support.leaks import Canaries, Leak, in_nats, in_postgres

PROMPT = "Meet me beneath the crooked elm at ten"


async def test_events_that_hold_a_canary_are_found(bus, nats_url):
    await bus.ensure_stream("LEAKY", ["leaky.>"], 60.0)
    await bus.publish("leaky.good", b"nothing to see", msg_id="1")
    await bus.publish("leaky.bad", PROMPT.encode(), msg_id="2")
    (leak,) = await in_nats(nats_url, Canaries(prompt=[PROMPT]))
    assert leak == Leak("nats LEAKY leaky.bad", "prompt[0]")


async def test_rows_that_hold_a_canary_are_found(postgres_url):
    connection = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    await connection.execute("CREATE TABLE leaky (id int, note text)")
    await connection.executemany("INSERT INTO leaky VALUES ($1, $2)", [(1, "nothing"), (2, PROMPT)])
    try:
        assert await in_postgres(postgres_url, Canaries(prompt=[PROMPT])) == [
            Leak("table leaky", "prompt[0]")
        ]
    finally:
        await connection.execute("DROP TABLE leaky")
        await connection.close()
