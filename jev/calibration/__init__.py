"""Calibration: temperatures that make a stated 0.9 right nine times in ten, and gates set by them."""
