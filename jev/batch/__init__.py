"""Batch labelling: rows in, answers out, with a ledger that no kill can confuse."""
