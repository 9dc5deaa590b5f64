"""Run an act as a job: a task whose progress a page shows."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from faststream_outbox.console.access import Access
from faststream_outbox.console.answers import Console
from faststream_outbox.console.errors import MissingError, RefusedError
from faststream_outbox.console.site import Job, Site
from faststream_outbox.operations import ActResult, AuditFilter, KeyBusyError, OperationsTableError, Progress
from faststream_outbox.runtime.telemetry import describe

# Most acts end sooner: then the user sees the result at once.
_SHORT: Final = 1.0
# Among how many acts of a user the entry of one is looked for.
_RECENT: Final = 20

Act = Callable[[Callable[[Progress], None]], Awaitable[ActResult]]


async def run_job(console: Console, request: Request, job: Job, act: Act) -> Response:
    """Start an act, wait for it a little, and answer with the way to its page."""
    job.task = asyncio.create_task(_run(console.site, job, act))
    console.site.add_job(job)
    await asyncio.wait([job.task], timeout=_SHORT)
    return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs/{job.id}", 303)


async def _run(site: Site, job: Job, act: Act) -> None:
    def progress(at: Progress) -> None:
        job.progress = at

    try:
        job.result = await act(progress)
        job.audit_id = job.result.audit_id
    except asyncio.CancelledError:
        job.stopped = True
    except (KeyBusyError, OperationsTableError, TypeError, ValueError) as error:
        job.error = str(error)
    except (DBAPIError, OSError) as error:
        job.error = f"The database refused it: {describe(getattr(error, 'orig', None) or error)}"
    except Exception as error:  # noqa: BLE001 - the page shows any error
        job.error = describe(error)
    if job.result is None and job.progress is not None and job.progress.done:
        job.audit_id = await _audit_id(site, job)


async def _audit_id(site: Site, job: Job) -> int | None:
    """Return the entry of an act that has ended early, and could not say it."""
    if site.operations.audit_table is None:
        return None
    with suppress(DBAPIError, OSError):
        page = await site.operations.audit(AuditFilter(by=job.user, action=job.action), limit=_RECENT)
        same = (each for each in page.items if each.reason == job.reason and each.target.items() >= job.target.items())
        return next((each.id for each in same), None)
    return None


async def stop_job(console: Console, request: Request, access: Access) -> Response:
    """Stop an act after the slice that it is in; what it has done stays done."""
    job = _job(console.site, str(request.path_params["id"]))
    if job.user != access.user:
        raise RefusedError(f"Only {job.user} may stop this act.")
    if job.task is not None and job.runs:
        job.task.cancel()
        await asyncio.wait([job.task])
    return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs/{job.id}", 303)


def _job(site: Site, job_id: str) -> Job:
    if job_id not in site.jobs:
        raise MissingError("This act is not known here: it ended long ago, or runs in another process.")
    return site.jobs[job_id]
