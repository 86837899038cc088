#!/usr/bin/env python3
"""worker.py QUEUE: takes tasks from a queue of Cairn, does them, and says how it went. See README.md."""
import http.client, json, os, socket, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor, wait

URL, KEY = os.environ.get("CAIRN_URL", "http://127.0.0.1:8420"), os.environ.get("CAIRN_KEY")
HEADERS = {"Content-Type": "application/json", **({"Authorization": f"Bearer {KEY}"} if KEY else {})}


def work(text):
    """Your own work goes here. It gets the input of the step, and what it returns becomes the step's output."""
    words = text.split()
    return {"words": len(words), "longest": max(words, key=len)}


def call(verb, **body):
    """Asks again while the server is away or busy: saying the same thing twice does no harm."""
    while True:
        try:
            request = urllib.request.Request(f"{URL}/v1/tasks/{verb}", json.dumps(body).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException) as error:
            status = getattr(error, "code", 503)
            if status == 409: return print(error.read().decode())  # LEASE_LOST: somebody else has the task now
            if status < 500 and status != 429: raise  # ours to mend: a wrong key, a wrong queue
            time.sleep(1)


def do(task, token):
    job = pool.submit(work, task["input"])
    while not wait([job], timeout=10).done:  # its lease is 30 seconds, and starts again with each heartbeat
        call("heartbeat", task=token)
    if job.exception():  # the plan says whether it is tried again
        call("fail", task=token, code="WORK_FAILED", message=repr(job.exception()))
    else:
        call("complete", task=token, output=job.result())


with ThreadPoolExecutor(1) as pool:
    while True:
        for task in call("poll", queue=sys.argv[1], worker=f"{socket.gethostname()}-{os.getpid()}", waitMs=20000)["items"]:
            do(task, task["task"])
