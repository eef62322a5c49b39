"""Batch labelling: rows in, answers out, with a ledger that no kill can confuse."""

from jev.batch.job import Job
from jev.batch.readers import JobError, RowError
from jev.batch.run import OpenJob, Summary, in_process
from jev.batch.runner import JobStopped, Progress, Rows, run_rows

__all__ = [
    "Job",
    "JobError",
    "JobStopped",
    "OpenJob",
    "Progress",
    "RowError",
    "Rows",
    "Summary",
    "in_process",
    "run_rows",
]
