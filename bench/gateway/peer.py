"""`python -m bench.gateway.peer BROKER PORT`: the same with aiohttp and confluent-kafka.

It does what the gateway does for a single event, and no more: it checks the JSON, stores the event with an
idempotent producer, and answers with partition and offset when the log has it. Delivery reports are served in
a thread, as the examples of confluent-kafka do.
"""

import asyncio
import json
import sys
import threading

import uvloop
from aiohttp import web
from confluent_kafka import Producer


async def serve(broker: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 1})

    def poll() -> None:
        while True:
            producer.poll(0.1)

    threading.Thread(target=poll, daemon=True).start()

    async def store(request: web.Request) -> web.Response:
        body = await request.read()
        json.loads(body)
        stored = loop.create_future()

        def delivered(error, message) -> None:
            place = error or (message.partition(), message.offset())
            loop.call_soon_threadsafe(stored.set_result, place)

        topic = request.match_info["topic"]
        producer.produce(topic, body, on_delivery=delivered)
        place = await stored
        if not isinstance(place, tuple):
            return web.json_response({"error": str(place)}, status=503)
        return web.json_response({"topic": topic, "offsets": [{"partition": place[0], "offset": place[1]}]})

    app = web.Application()
    app.router.add_post("/topics/{topic}", store)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
