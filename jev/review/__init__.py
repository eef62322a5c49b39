"""Going through uncertain rows: a queue of rows in, rows with reviewed answers out."""

from jev.review.queue import BadRow, Item, Queue, ReviewError, load_queue
from jev.review.session import Session, Summary
from jev.review.store import Store

__all__ = ["BadRow", "Item", "Queue", "ReviewError", "Session", "Store", "Summary", "load_queue"]
