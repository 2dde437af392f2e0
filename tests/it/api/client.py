"""Drives a client that openapi-python-client has made of the API's document.

    python3 client.py FOLDER-OF-THE-CLIENT ADDRESS TOKEN
"""

import sys

folder, address, token = sys.argv[1:]
sys.path.insert(0, folder)

from tenure_client import AuthenticatedClient
from tenure_client.api.jobs import cancel_job, enqueue, get_job, list_jobs, retry_job, wait_for_job
from tenure_client.models import Error, NewJob
from tenure_client.models.answer_result import AnswerResult
from tenure_client.models.list_jobs_status import ListJobsStatus
from tenure_client.models.status import Status

client = AuthenticatedClient(base_url=f"{address}/api/v1", token=token)


def job(payload, **more):
    return NewJob(queue="q", kind="k", payload=payload, **more)


first = enqueue.sync_detailed(client=client, body=job({"do": "echo", "with": "from a client"}), idempotency_key="a")
assert first.status_code == 201 and not first.parsed.duplicate, first
again = enqueue.sync_detailed(client=client, body=job({"do": "echo", "with": "once more"}), idempotency_key="a")
assert again.status_code == 200 and again.parsed.duplicate and again.parsed.id == first.parsed.id, again

done = wait_for_job.sync(first.parsed.id, client=client, timeout="20s")
assert done.status == Status.COMPLETED and done.output == "from a client", done
assert done.finished_at > done.created_at and done.attempt == 1, done
assert get_job.sync(done.id, client=client).output == "from a client"

later = enqueue.sync(client=client, body=job(None, delay="1h", max_attempts=3))
listed = list_jobs.sync(client=client, queue="q", status=ListJobsStatus.SCHEDULED)
assert [of.id for of in listed] == [later.id] and listed[0].max_attempts == 3, listed
waited = wait_for_job.sync_detailed(later.id, client=client, timeout="100ms")
assert waited.status_code == 202 and waited.parsed.status == Status.QUEUED, waited
cancelled = cancel_job.sync(later.id, client=client)
assert cancelled.id == later.id and cancelled.result == AnswerResult.CANCELLED, cancelled

dead = enqueue.sync(client=client, body=job({"do": "fail"}))
ended = wait_for_job.sync(dead.id, client=client)
assert ended.status == Status.FAILED and ended.last_error == "no such customer", ended
assert retry_job.sync(dead.id, client=client).result == AnswerResult.REDRIVEN

conflict = retry_job.sync_detailed(later.id, client=client)
assert conflict.status_code == 409 and isinstance(conflict.parsed, Error), conflict
assert conflict.parsed.error.code == "already_ended", conflict
wrong = enqueue.sync(client=client, body=NewJob(queue="no queue", kind="k", payload=1))
assert isinstance(wrong, Error) and "1 to 64 of A-Z a-z 0-9 _ -" in wrong.error.message, wrong
stranger = AuthenticatedClient(base_url=f"{address}/api/v1", token="not the token")
assert list_jobs.sync(client=stranger).error.code == "unauthenticated"
print("done")
